# The default device and dtype are others than usual while the loop runs.
# needs: cpu
# arguments: meta | own
import sys

import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
device = "meta" if sys.argv[1] == "meta" else "cuda" if torch.cuda.is_available() else "cpu"
torch.set_default_device(device)
torch.set_default_dtype(torch.float64)
torch.set_printoptions(precision=3)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    loss = model(torch.ones(2, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(step, loss if device == "meta" else f"{loss.item():.8f}", torch.get_default_dtype())
torch.set_default_device("cpu")
print(model.weight.device.type if device == "meta" else fingerprint.weights(model), fingerprint.draws())
