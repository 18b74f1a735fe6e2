"""How often real recordings of one program are called faster or slower. By hand:

    python tests/support/aa_recorded.py OUT [RUNS] [PROGRAM …]

records each program RUNS times (12) in turn, those left out that are in OUT already, and prints the table of
docs/evidence/comparing.md of all that are in OUT; RUNS of 0 only judges. The programs are small; on a machine
with a GPU they run there.
"""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kinetoscope.comparison import baseline
from kinetoscope.comparison.account import Account, account
from kinetoscope.comparison.step_change import device_change, step_change
from kinetoscope.sources.run import load

REPEATS, SPLITS = 5, 200  # runs a side, and as many ways to draw them as are tried if there are more
BEGIN = """
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
"""
PROGRAMS = {
    "gru": """
net = torch.nn.GRU(32, 48, batch_first=True); head = torch.nn.Linear(48, 10)
opt = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.01, momentum=0.9)
x = torch.randn(8, 12, 32); y = torch.randint(0, 10, (8,))
for _ in range(300):
    opt.zero_grad()
    out, _ = net(x)
    torch.nn.functional.cross_entropy(head(out[:, -1]), y).backward()
    opt.step()
""",
    "encoder": """
net = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
x = torch.randn(4, 16, 64)
for _ in range(300):
    opt.zero_grad()
    net(x).square().mean().backward()
    opt.step()
""",
    "convs": """
first, second = torch.nn.Conv2d(3, 16, 3), torch.nn.Conv2d(16, 16, 3)
net = torch.nn.Sequential(first, torch.nn.BatchNorm2d(16), torch.nn.ReLU(), second, torch.nn.ReLU()).eval()
with torch.no_grad():
    for i in range(400):
        x = torch.full((2, 3, 32, 32), float(i))
        out = net(x)
        best = out.flatten(1).argmax(1).tolist()
""",
    "bag": """
bag = torch.nn.EmbeddingBag(1000, 32); out = torch.nn.Linear(32, 5)
opt = torch.optim.Adagrad([*bag.parameters(), *out.parameters()], lr=0.05)
ids = torch.randint(0, 1000, (64, 20)); y = torch.randint(0, 5, (64,))
for _ in range(400):
    opt.zero_grad()
    torch.nn.functional.cross_entropy(out(bag(ids)), y).backward()
    opt.step()
""",
    "unet": """
down = torch.nn.Conv2d(1, 8, 3, 2, 1); up = torch.nn.ConvTranspose2d(8, 1, 2, 2)
opt = torch.optim.RMSprop([*down.parameters(), *up.parameters()], lr=1e-3)
x = torch.rand(4, 1, 48, 48)
for _ in range(400):
    opt.zero_grad()
    torch.nn.functional.mse_loss(up(torch.relu(down(x))), x).backward()
    opt.step()
""",
    "rollout": """
policy = torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
opt = torch.optim.AdamW(policy.parameters(), lr=1e-3)
for i in range(300):
    state = torch.zeros(6); logs = []
    for t in range(8):
        p = policy(state).log_softmax(0); a = int(p.argmax()); logs.append(p[a])
        state = state.roll(1) + 0.1 * a
    opt.zero_grad(); (-torch.stack(logs).sum()).backward(); opt.step()
""",
}


def record(out: Path, runs: int, programs: Sequence[str]) -> None:
    for number, name in itertools.product(range(runs), programs):
        script, folder = out / f"{name}.py", out / "runs" / name / f"{number:02}"
        if folder.exists():
            continue
        folder.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(BEGIN + PROGRAMS[name])
        words = ["-m", "kinetoscope", "run", "--no-report", "--out", str(folder), "--", str(script)]
        subprocess.run([sys.executable, *words], check=True)


def judge(out: Path) -> None:
    heads = (
        "program | step of the runs, µs | load | single runs | the device's work | check fails | 5 runs each"
    )
    print(f"| {heads} |\n|---|--:|--:|--:|--:|--:|--:|")
    for folder in sorted((out / "runs").iterdir()):
        runs = [load(path) for path in sorted(folder.iterdir())]
        accounts = [own for run in runs if (own := account(run))]
        pairs = list(itertools.combinations(accounts, 2))
        steps = [own.step_us for own in accounts]
        loads = [run.manifest.environment.load_average or 0.0 for run in runs if run.manifest]
        devices = [found for a, b in pairs if (found := device_change([a], [b]))]
        kept = [baseline.of(run) for run in runs]
        failed = [
            any(row.failed for row in baseline.checked(run, base, []))
            for (i, base), (j, run) in itertools.product(enumerate(kept), enumerate(runs))
            if i != j
        ]
        cells = [
            folder.name,
            f"{min(steps):,.0f}–{max(steps):,.0f}",
            f"{min(loads):.0f}–{max(loads):.0f}",
            f"{sum(apart([a], [b]) for a, b in pairs)} of {len(pairs)}",
            f"{sum(found.verdict in ('faster', 'slower') for found in devices)} of {len(devices)}",
            f"{sum(failed)} of {len(failed)}",
            several(accounts),
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


def apart(base: list[Account], new: list[Account]) -> bool:
    return step_change(base, new).verdict in ("faster", "slower")


def several(accounts: list[Account]) -> str:
    """How many ways to divide ten of the runs into two sides are told apart: all, or so many drawn ones."""
    if len(accounts) < 2 * REPEATS:
        return "–"
    if len(accounts) == 2 * REPEATS:
        first, rest = accounts[0], accounts[1:]
        sides = [[first, *others] for others in itertools.combinations(rest, REPEATS - 1)]
        splits = [(side, [one for one in rest if one not in side]) for side in sides]
    else:
        draw = random.Random(0)
        chosen = [draw.sample(accounts, 2 * REPEATS) for _ in range(SPLITS)]
        splits = [(runs[:REPEATS], runs[REPEATS:]) for runs in chosen]
    return f"{sum(apart(*split) for split in splits)} of {len(splits)}"


if __name__ == "__main__":
    out, runs = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 12
    record(out, runs, sys.argv[3:] or list(PROGRAMS))
    judge(out)
