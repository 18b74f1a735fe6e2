"""How many slow-downs of 10 % `compare --base` finds, in ten repositories that are made for it. By hand:

    python tests/support/slow_downs.py OUT [SECONDS] [NAME …]

makes a repository of each program in OUT, commits it, adds a tenth to the work of its step in the working
tree, and gives `kinetoscope compare` so many seconds (120). A line for each, and how many were found; then
the same without a change, for how many were found that are not there.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
SECONDS, WORK, MORE = 120.0, 100, 110
PROGRAM = """\
import torch

torch.set_num_threads(1)
torch.manual_seed(0)
torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
WORK = {work}


class Step(torch.nn.Module):
    def __init__(self):
        super().__init__()
{before}

    def forward(self):
        for _ in range(WORK):
{unit}


step = Step().requires_grad_(False)
while True:
    step()
"""
# What is made once, and what a step does so many times: some ten to a hundred µs of a CPU.
UNITS = {
    "matmul": ("self.x = torch.randn(96, 96)", "self.x @ self.x"),
    "conv": ("self.net = torch.nn.Conv2d(8, 8, 3); self.x = torch.randn(1, 8, 16, 16)", "self.net(self.x)"),
    "gru": ("self.net = torch.nn.GRUCell(64, 64); self.x = torch.randn(8, 64)", "self.net(self.x, self.x)"),
    "attention": (
        "self.x = torch.randn(1, 2, 32, 32)",
        "torch.nn.functional.scaled_dot_product_attention(self.x, self.x, self.x)",
    ),
    "python": ("pass", "sum(i * i for i in range(400))"),
    "elementwise": ("self.x = torch.randn(16_384)", "(self.x * 2 + 1).tanh()"),
    "embedding": (
        "self.net = torch.nn.Embedding(1000, 64); self.x = torch.randint(0, 1000, (256,))",
        "self.net(self.x).sum()",
    ),
    "sort": ("self.x = torch.randn(1024)", "self.x.sort()"),
    "norm": ("self.net = torch.nn.LayerNorm(256); self.x = torch.randn(64, 256)", "self.net(self.x)"),
    "fft": ("self.x = torch.randn(4096)", "torch.fft.rfft(self.x)"),
}


def repository(home: Path, name: str, work: int) -> Path:
    """A repository of the program as it is, and a working tree that does so much."""
    folder = home / f"{name}-{work}"
    folder.mkdir(parents=True, exist_ok=True)
    before, unit = UNITS[name]

    def write(work: int) -> None:
        text = PROGRAM.format(work=work, before=f"        {before}", unit=f"            {unit}")
        (folder / "train.py").write_text(text)

    write(WORK)
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q", "-b", "main"), ("add", "-A"), (*author, "commit", "-qm", "before")):
        subprocess.run(["git", *words], cwd=folder, check=False, capture_output=True)
    write(work)
    return folder


def compared(folder: Path, seconds: float) -> dict[str, object]:
    words = ["-m", "kinetoscope", "compare", "--base", "git:main", "--budget", str(seconds), "--json"]
    command = [sys.executable, *words, "--", "train.py"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}  # a relative one is of another folder
    done = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, env=environment)
    return json.loads(done.stdout)


def table(home: Path, seconds: float, names: list[str], work: int) -> None:
    print(f"| {work / WORK - 1:.0%} more work | step, ms | change, 95 % | verdict | pairs | s | load |")
    print("|---|--:|--:|---|--:|--:|--:|")
    slower = faster = 0
    for name in names:
        began = time.monotonic()
        found = compared(repository(home, name, work), seconds)
        slower += found["verdict"] == "slower"
        faster += found["verdict"] == "faster"
        ends = (found[key] for key in ("ratio", "low", "high"))  # null: too few pairs for an interval
        ratio, low, high = (math.inf if end is None else 100 * (float(str(end)) - 1) for end in ends)
        cells = [
            name,
            f"{1e3 * found['base']['step_s']:.2f}",  # type: ignore[index]
            f"{ratio:+.1f} % ({low:+.1f} to {high:+.1f})",
            found["verdict"],
            found["pairs"],
            f"{time.monotonic() - began:.0f}",
            f"{found['load']:.1f}",
        ]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    print(f"\n{slower} of {len(names)} were called slower, {faster} faster\n", flush=True)


if __name__ == "__main__":
    out, seconds = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else SECONDS
    for work in (MORE, WORK):
        table(out, seconds, sys.argv[3:] or list(UNITS), work)
