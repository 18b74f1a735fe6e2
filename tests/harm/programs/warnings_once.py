# The same line warns many times: by Python's rules it shows once, and again after the rules change.
# needs: cpu
# suite: yes
import sys
import warnings

import torch
from descent import Descent
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 8)
optimizer = Descent(model.parameters())


def grumble(step):
    warnings.warn("the same line", UserWarning, stacklevel=1)
    warnings.warn(f"another text {step // 20}", RuntimeWarning, stacklevel=2)


for step in range(60):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    grumble(step)
    if step % 15 == 0:
        torch.tensor(model.weight)  # torch's own: copy construction is deprecated
    if step == 30:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                grumble(step)
        print(len(caught))
print(len(globals()["__warningregistry__"]), len(warnings.filters), warnings.showwarning.__module__)
print("torch" in sys.modules, flush=True)
