# Children by os.fork that compute and leave by os._exit or sys.exit, or die of a signal, amid the parent's
# training.
# needs: cpu
import os
import signal
import sys

import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(steps):
    for _ in range(steps):
        loss = model(torch.ones(2, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return f"{loss.item():.8f}"


print(train(12), flush=True)
for turn, way in enumerate(
    (lambda: os._exit(7), lambda: sys.exit(5), lambda: os.kill(os.getpid(), signal.SIGTERM))
):
    child = os.fork()
    if not child:
        print("child", train(6), flush=True)
        way()
        raise SystemExit("never")
    _, status = os.waitpid(child, 0)
    print(turn, os.waitstatus_to_exitcode(status), train(15), flush=True)
print(fingerprint.weights(model), fingerprint.draws())
