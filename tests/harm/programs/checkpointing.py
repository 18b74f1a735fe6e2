# Gradient checkpointing: modules are called again in the backward pass, with their dropout as before.
# needs: cpu
# arguments: reentrant | not
import sys

import fingerprint
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.2)) for _ in range(4)).to(
    device
)
optimizer = torch.optim.Adam(blocks.parameters(), lr=1e-3)
calls = 0


def count(module, args, output):
    global calls
    calls += 1


for block in blocks:
    block.register_forward_hook(count)
for step in range(60):
    x = torch.randn(8, 32, device=device, requires_grad=True)
    y = x
    for block in blocks:
        y = checkpoint(block, y, use_reentrant=sys.argv[1] == "reentrant")
    loss = (y - x.detach()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0:
        print(step, f"{loss.item():.6f}")
print(calls, fingerprint.weights(blocks), fingerprint.draws())
