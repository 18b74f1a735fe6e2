# The program traces itself by Python's own means, and counts the calls of its functions.
# needs: cpu
# arguments: settrace | setprofile | monitoring
import sys
import threading
from collections import Counter

import torch
from torch import nn

counts = Counter()


def own(code, file=__file__):  # there is no __file__ any more when the interpreter ends
    return code.co_filename == file


def trace(frame, event, argument):
    if own(frame.f_code):
        counts[frame.f_code.co_name, event] += 1
        return trace
    return None


def start():
    if sys.argv[1] == "settrace":
        threading.settrace(trace)
        sys.settrace(trace)
    elif sys.argv[1] == "setprofile":
        sys.setprofile(trace)
    elif hasattr(sys, "monitoring"):
        kind = sys.monitoring
        kind.use_tool_id(kind.PROFILER_ID, "own")
        kind.register_callback(
            kind.PROFILER_ID, kind.events.PY_START, lambda code, _: counts.update([code.co_name] * own(code))
        )
        kind.set_events(kind.PROFILER_ID, kind.events.PY_START)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x).relu()


def train(steps):
    for _ in range(steps):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()


torch.manual_seed(0)
model = Own()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train(3)
start()
train(50)
print(sys.gettrace() is trace, sys.getprofile() is trace)
sys.settrace(None)
sys.setprofile(None)
print(sorted(counts.items()))
