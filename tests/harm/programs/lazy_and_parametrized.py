# Lazy modules, weight norm by parametrization, pruning, and parameters that are swapped for others amid
# training.
# needs: cpu
import fingerprint
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.LazyLinear(32), nn.ReLU(), parametrizations.weight_norm(nn.Linear(32, 8))).to(device)
model(torch.ones(1, 8, device=device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(70):
    x = torch.randn(4, 8, device=device)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 25:
        prune.l1_unstructured(model[0], "weight", amount=0.5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if step == 45:
        model[1] = nn.GELU()
        prune.remove(model[0], "weight")
        optimizer.param_groups[0]["params"] = list(model.parameters())
    if step % 20 == 0:
        print(step, f"{loss.item():.6f}", type(model[0]).__name__)
print(fingerprint.weights(model), fingerprint.draws())
