# A model under FakeTensorMode: optimizers step, modules are called, and no memory is ever touched.
# needs: cpu
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

torch.manual_seed(0)
with FakeTensorMode():
    model = nn.Sequential(nn.Linear(10_000, 10_000), nn.ReLU(), nn.Linear(10_000, 10_000))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for step in range(45):
        loss = model(torch.randn(1_000, 10_000)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 15 == 0:
            print(step, type(loss).__name__, tuple(model[0].weight.grad.shape))
print(f"{torch.rand(()).item():.8f}")
