"""A function that breaks where Python prints, and where it calls what may not be compiled; `--whole`: the
same without.

Per step the breaks cost: a kernel on each side of the first that would have been one, and a kernel of
Python's own at the second (its cumsum), which the compiled function computes in a kernel too.
"""

import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--whole", action="store_true")
parser.add_argument("--mode", default=None)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
options = parser.parse_args()


def noise(x):
    return x * 0.5


aside = noise if options.whole else torch.compiler.disable(noise)


def block(x):
    y = torch.sin(x) * 2
    if not options.whole:
        print("", end="")
    y = torch.cos(y) + 1
    return torch.relu(aside(y)) - 3


step = torch.compile(block, mode=options.mode)
x = torch.rand(4096, 4096, device=options.device)
with torch.no_grad():
    for _ in range(options.steps):
        y = step(x)
print(f"breaks: {y.mean().item():.4f}")
