# Hooks everywhere: of modules, of all modules, of tensors, of optimizers, and an optimizer that steps
# inside the backward pass; some come and go during the loop.
# needs: cpu
# suite: yes
from collections import Counter

import fingerprint
import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.optim.optimizer import register_optimizer_step_post_hook

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
seen = Counter()


def counting(name):
    def hook(*_):
        seen[name] += 1

    return hook


model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)).to(device)
optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model[0].parameters()}
rest = torch.optim.Adam(model[2].parameters(), lr=1e-3)


def in_backward(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in optimizers:
    parameter.register_post_accumulate_grad_hook(in_backward)
model.register_forward_pre_hook(counting("pre"))
model[1].register_full_backward_hook(counting("backward"))
modules.register_module_forward_hook(counting("any"))
register_optimizer_step_post_hook(counting("any step"))
rest.register_step_pre_hook(counting("step"))
for step in range(60):
    handle = model[2].register_forward_hook(lambda m, a, out: out * 1.5) if step % 3 == 0 else None
    x = torch.randn(8, 16, device=device)
    y = model(x)
    y.register_hook(counting("tensor"))
    (y - x).square().mean().backward()
    rest.step()
    rest.zero_grad()
    if handle:
        handle.remove()
print(sorted(seen.items()))
print(len(modules._global_forward_hooks), len(modules._global_forward_pre_hooks), len(model._forward_hooks))
print(fingerprint.weights(model), fingerprint.draws())
