# A module whose forward calls itself, calls the optimizer, and is left by exceptions.
# needs: cpu
import fingerprint
import torch
from torch import nn


class Recursive(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x, depth):
        if depth == 0:
            return self.layer(x)
        if depth == 7:
            raise RuntimeError("too deep")
        return torch.tanh(self(x, depth - 1)) + self.layer(x)


def deepest(model, x, depth=0):
    try:
        return deepest(model, x, depth + 1)
    except RecursionError:
        return depth


class Bottomless(nn.Module):
    depth = 0

    def forward(self, x):
        self.depth += 1
        return self(x)


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = Recursive().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(64):
    x = torch.randn(2, 8, device=device)
    try:
        loss = model(x, step % 8).square().mean()
    except RuntimeError as error:
        print(step, error)
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 16 == 15:
        bottomless = Bottomless()
        try:
            bottomless(x)
        except RecursionError:
            print(step, bottomless.depth, deepest(model, x))
print(fingerprint.weights(model), fingerprint.draws())
