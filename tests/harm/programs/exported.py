# torch.export in the midst of a loop; the exported program is called and trained on.
# needs: cpu
import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def train(called, steps):
    for _ in range(steps):
        x = torch.randn(4, 16, device=device)
        loss = (called(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.6f}")


train(model, 12)
program = torch.export.export(model, (torch.randn(4, 16, device=device),))
print([str(node.target) for node in program.graph.nodes if node.op == "call_function"])
called = program.module()
train(model, 30)
with torch.no_grad():
    for _ in range(30):
        y = called(torch.ones(4, 16, device=device))
print(fingerprint.tensors(y), fingerprint.weights(model), fingerprint.draws())
