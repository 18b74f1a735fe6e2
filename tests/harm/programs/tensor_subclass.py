# Parameters and data of a tensor subclass that counts the functions called on it.
# needs: cpu
from collections import Counter

import fingerprint
import torch
from torch import nn

seen = Counter()


class Counted(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        seen[getattr(function, "__name__", str(function))] += 1
        return super().__torch_function__(function, types, args, kwargs or {})


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    x = torch.randn(4, 16, device=device).as_subclass(Counted)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(step, type(loss).__name__, f"{loss.item():.6f}")
print(sorted(seen.items()))
print(fingerprint.weights(model), fingerprint.draws())
