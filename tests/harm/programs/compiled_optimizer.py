# The optimizer's step is compiled; so is the model.
# needs: cuda
import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3, device="cuda"))
forward = torch.compile(model)


@torch.compile(fullgraph=False)
def update():
    optimizer.step()


for step in range(60):
    x = torch.randn(16, 64, device="cuda")
    loss = (forward(x) - x).abs().mean()
    loss.backward()
    update()
    optimizer.zero_grad()
    if step % 10 == 0:
        print(step, f"{loss.item():.6f}")
print(fingerprint.weights(model), fingerprint.draws())
