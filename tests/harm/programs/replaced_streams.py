# Standard error and output go to files as well, then to a logger, then nowhere; print is the program's own.
# needs: cpu
# suite: yes
import builtins
import contextlib
import io
import logging
import sys

import torch
from descent import Descent
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 8)
optimizer = Descent(model.parameters())
show = builtins.print


def train(steps):
    for _ in range(steps):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    return f"{model.weight.sum().item():.6f}"


class Tee:
    def __init__(self, stream, path):
        self.stream, self.file = stream, open(path, "w")  # noqa: SIM115 (it stays open)

    def write(self, text):
        self.file.write(text)
        self.stream.write(text)

    def flush(self):
        self.file.flush()
        self.stream.flush()

    def isatty(self):
        raise RuntimeError("it is none")


class ToLogger:
    def write(self, text):
        if text.strip():
            logging.getLogger("stderr").error(text.strip())


builtins.print = lambda *words: show("rank 0:", *words)
sys.stdout, sys.stderr = Tee(sys.stdout, "out.txt"), Tee(sys.stderr, "err.txt")
print(train(10))
with contextlib.redirect_stderr(io.StringIO()) as caught:
    print(train(15), repr(caught.getvalue()))
logging.basicConfig(stream=sys.stdout, format="%(name)s %(message)s")
sys.stderr = ToLogger()
print(train(30))
sys.stderr.write("the program's own")
sys.stderr = sys.__stderr__ = None
print(train(30))
