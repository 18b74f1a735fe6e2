# Scripted and traced modules, trained and called; torch writes a set of names in the order of their hashes.
# needs: cpu
# variables: PYTHONHASHSEED=0
import warnings

import fingerprint
import torch
from torch import nn

warnings.filterwarnings("ignore")


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        y = self.layer(x)
        if bool(y.sum() > 0):
            y = y * 2
        return y


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
scripted = torch.jit.script(Gate()).to(device)
traced = torch.jit.trace(
    nn.Sequential(nn.Linear(16, 16), nn.Tanh()).to(device), torch.randn(2, 16, device=device)
)
optimizer = torch.optim.SGD([*scripted.parameters(), *traced.parameters()], lr=0.05)
for step in range(70):
    x = torch.randn(4, 16, device=device)
    loss = (traced(scripted(x)) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(step, f"{loss.item():.5f}")
scripted.save("gate.pt")
print(fingerprint.weights(torch.jit.load("gate.pt"), traced), fingerprint.draws())
