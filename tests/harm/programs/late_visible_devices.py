# Chooses its device by the environment after the import of torch, before the first use of CUDA.
# needs: cuda
import os

import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.ones(2, 16)).square().mean().backward()
    optimizer.step()
os.environ["CUDA_VISIBLE_DEVICES"] = ""
print(torch.cuda.is_initialized(), torch.cuda.is_available(), torch.cuda.device_count())
for _ in range(50):
    model(torch.ones(2, 16)).square().mean().backward()
    optimizer.step()
try:
    torch.ones(1, device="cuda")
except (RuntimeError, AssertionError) as error:
    print(type(error).__name__)
print(fingerprint.weights(model))
