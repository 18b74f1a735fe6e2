# torch.compile with backends that need no compiler: graph breaks, recompilations, and torch's own count of
# them.
# needs: cpu
# arguments: eager | aot_eager
import sys

import fingerprint
import torch
import torch._dynamo
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"


class Broken(nn.Module):
    """The call of a module that breaks is a break of its caller's graph too."""

    def forward(self, x):
        torch._dynamo.graph_break()
        return x.relu()


model = nn.Sequential(nn.Linear(16, 32), Broken(), nn.Linear(32, 16)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.compile(backend=sys.argv[1])
def loss_of(x, scale):
    y = model(x) * scale
    if y.sum() > 1e9:
        print("large")
    torch._dynamo.graph_break()
    return (y - x).square().mean()


for step in range(50):
    x = torch.randn(4 + step % 3, 16, device=device)
    loss = loss_of(x, 1.0 + step % 2)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0:
        print(step, f"{loss.item():.6f}")
print(
    sorted(torch._dynamo.utils.counters["frames"].items()),
    sum(torch._dynamo.utils.counters["graph_break"].values()),
)
print(fingerprint.weights(model), fingerprint.draws())
