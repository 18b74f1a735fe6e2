# Between steps the model is traced in every way: by torch.fx, make_fx and jit, under modes and by a tensor of
# the program's that wraps another, on the meta device, stacked for vmap.
# needs: cpu
import copy
import warnings

import fingerprint
import torch
import torch.fx
from descent import Descent
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

warnings.filterwarnings("ignore")
ops = []


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.act = nn.Linear(8, 8), nn.ReLU()

    def forward(self, x):
        return self.act(self.layer(x)) + x


class Log(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        ops.append(str(function))
        return function(*args, **(kwargs or {}))


class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        def inside(value):
            return value.inner if isinstance(value, Wrapped) else value

        def wrapped(value):
            return Wrapped(value) if isinstance(value, torch.Tensor) else value

        ops.append(str(function))
        return tree_map(wrapped, function(*tree_map(inside, args), **tree_map(inside, kwargs or {})))


torch.manual_seed(0)
net = Net()
optimizer = Descent(net.parameters())
x = torch.ones(2, 8)


def train(steps):
    for _ in range(steps):
        loss = (net(torch.randn(4, 8)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return f"{loss.item():.6f}"


for _ in range(6):
    ops.clear()
    nodes = len(torch.fx.symbolic_trace(net).graph.nodes), len(make_fx(net)(x).graph.nodes)
    with Log():
        net(x)
    with torch.no_grad():
        net(Wrapped(x))
    with torch.device("meta"):
        Net()(torch.ones(1, 8))
    traced = torch.jit.trace(net, x)
    slope = torch.func.jacrev(lambda x: net(x).sum())(x).sum().item()
    states = torch.func.stack_module_state([copy.deepcopy(net) for _ in range(2)])
    called = torch.func.vmap(
        lambda values, buffers: torch.func.functional_call(net, (values, buffers), (x,))
    )(*states)
    print(nodes, len(ops), torch.equal(traced(x), net(x)), f"{slope:.6f}", tuple(called.shape), train(15))
parametrize.register_parametrization(net.layer, "weight", nn.Identity())
print(type(net.layer).__name__, train(20))
parametrize.remove_parametrizations(net.layer, "weight")
print(type(net.layer).__name__, fingerprint.weights(net), fingerprint.draws())
