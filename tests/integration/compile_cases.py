"""The cases that a live compile log must tell: attention with its backward, a recompilation, a break, an
error."""

import contextlib
import sys

import torch


class Attention(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.q = torch.nn.Linear(width, width)
        self.k = torch.nn.Linear(width, width)
        self.v = torch.nn.Linear(width, width)

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(-2, -1)
        return torch.softmax(scores, -1) @ self.v(x)


def double(x):
    return x * 2


def talk(x):
    y = x + 1
    print("", end="")
    return y * 2


def branch(x):
    return x * 2 if x.sum() > 0 else x - 1


def main():
    torch.compile(Attention())(torch.rand(2, 8, 32)).sum().backward()
    grow = torch.compile(double, backend="eager")
    for rows in (3, 4):
        grow(torch.ones(rows, 5))
    torch.compile(talk, backend="aot_eager")(torch.ones(3))
    with contextlib.suppress(torch._dynamo.exc.Unsupported):
        torch.compile(branch, backend="eager", fullgraph=True)(torch.ones(3))


if __name__ == "__main__":
    if "--with" in sys.argv:
        import kinetoscope

        with kinetoscope.profile(out=sys.argv[-1], whole=True):
            main()
    else:
        main()
