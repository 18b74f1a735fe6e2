# Classes of the program's own are pickled by value while it trains and serves, as cloudpickle hands them to
# other processes; methods of tensors are handed on by name.
# needs: cpu
# suite: yes
import io
import pickle

import fingerprint
import torch
from descent import Descent
from torch import nn


class Net(nn.Module):
    def __init__(self):
        nn.Module.__init__(self)
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.layer(x))


def made(name, bases, names, values):
    return type(name, bases, dict(zip(names, values, strict=True)))


class ByValue(pickle.Pickler):
    def reducer_override(self, value):
        if value is not Net:
            return NotImplemented
        kept = {name: one for name, one in vars(Net).items() if name not in ("__dict__", "__weakref__")}
        return made, (Net.__name__, Net.__bases__, list(kept), list(kept.values()))


def copied(value):
    buffer = io.BytesIO()
    ByValue(buffer).dump(value)
    return pickle.loads(buffer.getvalue())


def shown(method):
    return f"{method.__name__} {pickle.loads(pickle.dumps(method))()}"


torch.manual_seed(0)
model = Net()
optimizer = Descent(model.parameters())
x = torch.ones(2, 8)
for step in range(60):
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0:
        kind, other = copied((Net, model))
        print(step, kind is not Net, torch.equal(other(x), model(x)), shown(loss.detach().item))
with torch.no_grad():
    for step in range(60):
        y = model(x)
        if step % 6 == 0:
            print(step, torch.equal(copied(model)(x), y), shown(y[0, :2].tolist))
print(fingerprint.weights(model), fingerprint.draws())
