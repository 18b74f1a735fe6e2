# nn.DataParallel over all GPUs: replicas are made and called by threads in every step.
# needs: cuda2
import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
parallel = nn.DataParallel(model, device_ids=[0, 1])
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(60):
    x = torch.randn(32, 64, device="cuda")
    loss = (parallel(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(step, f"{loss.item():.6f}")
print(fingerprint.weights(model), fingerprint.draws())
