# Every launch waits for its kernel, as people who look for the cause of an error have it.
# needs: cuda
# variables: CUDA_LAUNCH_BLOCKING=1
import os

import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 14 * 14, 10)).cuda()
torch.backends.cudnn.deterministic = True
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(70):
    x = torch.randn(8, 3, 16, 16, device="cuda")
    loss = nn.functional.cross_entropy(model(x), torch.randint(0, 10, (8,), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(step, f"{loss.item():.6f}")
print(os.environ["CUDA_LAUNCH_BLOCKING"], fingerprint.weights(model), fingerprint.draws())
