# Profilers in profilers: the second is refused by torch, as it is without us, and the first goes on.
# needs: cpu
import warnings

import torch
from torch import nn
from torch.autograd import profiler

warnings.filterwarnings("ignore")
torch.manual_seed(0)
model = nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def steps(count):
    for _ in range(count):
        model(torch.ones(2, 16)).sum().backward()
        optimizer.step()


steps(20)


def nested():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as outer:
        steps(2)
        try:
            with profiler.profile():
                steps(1)
            print("a second profiler ran")
        except RuntimeError as error:
            print(type(error).__name__, str(error).split(".")[0][:60])
    return {row.key for row in outer.key_averages()}


for turn in range(3):
    try:
        print(turn, "aten::addmm" in nested(), profiler._is_profiler_enabled)
    except RuntimeError as error:  # up to 2.11 the second one ends the first
        print(turn, type(error).__name__)
    steps(20)
with profiler.profile(use_kineto=False) as legacy:
    steps(1)
print(sum(row.key == "aten::addmm" for row in legacy.key_averages()))
