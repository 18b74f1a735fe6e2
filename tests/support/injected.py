"""What `diff` says of slow-downs that are really in a program, on this machine's CPU. By hand:

    python tests/support/injected.py record FOLDER [SECONDS]  recordings: as it is, and each slow-down
    python tests/support/injected.py judge FOLDER             what is found first: docs/evidence/comparing.md

A slow-down is a loop of Python in ``augment``, or rows of the matrix product in ``project``, that take
1, 2, 5 or 10 % of the step: turns and rows are calibrated once, so that all recordings do the same work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain, combinations
from pathlib import Path

from kinetoscope.comparison.counts import COUNTED, counts
from kinetoscope.comparison.difference import RunDifference, difference
from kinetoscope.sources.run import LoadedRun, load

SLOWER = (1, 2, 5, 10)
TURNS, ROWS = 20_000, 128  # of the program as it is
PLACES = {"host": "augment", "kernel": "aten::mm"}
STEPS = 100

Rounds = list[dict[str, LoadedRun]]


PROGRAM = """\
import sys
import torch

TURNS, ROWS, STEPS = map(int, sys.argv[1:])
torch.set_num_threads(1)
data, weights = torch.randn(1024, 512), torch.randn(512, 512)
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU())
optimizer = torch.optim.SGD(model.parameters())


def augment():
    return sum(turn for turn in range(TURNS))


def project():
    return torch.mm(data[:ROWS], weights)[:128]


for _ in range(STEPS):
    optimizer.zero_grad()
    augment()
    model(project()).square().mean().backward()
    optimizer.step()
"""


def calibrate() -> dict[str, tuple[int, int]]:
    """Turns and rows of each slow-down, by the processor's time of the quickest of many: the rest is the
    machine's."""
    import torch

    torch.set_num_threads(1)
    data, weights = torch.randn(ROWS, 512), torch.randn(512, 512)
    layer = torch.nn.Linear(512, 512)

    def step() -> None:
        sum(turn for turn in range(TURNS))
        torch.nn.functional.gelu(layer(torch.mm(data, weights))).square().mean().backward()

    step_s = _quickest(step)
    turn = _quickest(lambda: sum(turn for turn in range(TURNS))) / TURNS
    row = _quickest(lambda: torch.mm(data, weights)) / ROWS
    print(f"step {1e3 * step_s:.2f} ms, a turn {1e9 * turn:.1f} ns, a row {1e6 * row:.2f} µs", flush=True)
    shares = [(percent, percent / 100 * step_s) for percent in SLOWER]
    return (
        {"as it is": (TURNS, ROWS)}
        | {f"host {percent}": (TURNS + round(more / turn), ROWS) for percent, more in shares}
        | {f"kernel {percent}": (TURNS, ROWS + round(more / row)) for percent, more in shares}
    )


def _quickest(call: Callable[[], object]) -> float:
    found: list[float] = []
    for _ in range(200):
        begin = time.process_time()
        call()
        found.append(time.process_time() - begin)
    return min(found)


def record(folder: Path, seconds: float) -> None:
    """Whole rounds, as many as fit; the order turns, so that none is always after the same."""
    folder.mkdir(parents=True)
    script = folder / "train.py"
    script.write_text(PROGRAM)
    versions = calibrate()
    (folder / "versions.json").write_text(json.dumps(versions))
    names, began, last = list(versions), time.monotonic(), 0.0
    number = 0
    while time.monotonic() - began + last < seconds:
        begin = time.monotonic()
        for name in names if number % 2 == 0 else names[::-1]:
            words = ["run", "--stacks", "--no-report", "-o", str(folder / f"{number} {name}")]
            arguments = [str(script), *map(str, versions[name]), str(STEPS)]
            subprocess.run(
                [sys.executable, "-m", "kinetoscope", *words, *arguments],
                check=True, capture_output=True, env=os.environ,
            )  # fmt: skip
        names = [*names[2:], *names[:2]]
        number, last = number + 1, time.monotonic() - begin
    print(f"{number} rounds of {len(names)} recordings")


def judge(folder: Path) -> None:
    names = list(json.loads((folder / "versions.json").read_text()))
    count = 1 + max(int(path.name.split()[0]) for path in folder.iterdir() if path.is_dir())
    rounds = [{name: load(str(folder / f"{number} {name}")) for name in names} for number in range(count)]
    own = [one["as it is"] for one in rounds]
    differing = [_differing(base, new) for base, new in combinations(own, 2)]
    print(
        f"A/A: counts differ in {sum(map(bool, differing))} of {len(differing)}: {Counter(chain(*differing))}"
    )
    print("| | step, of each round | slower | faster | cause first | among three | all rounds | cause at |")
    print("|---|---|---:|---:|---:|---:|---|---:|")
    for name in names:
        print(f"| {name} | " + " | ".join(_cells(rounds, name)) + " |")


def _differing(base: LoadedRun, new: LoadedRun) -> list[str]:
    before, after = counts(base), counts(new)
    return [name for name, row in COUNTED.items() if row.exact and before[name] != after[name]]


def _cells(rounds: Rounds, name: str) -> Iterable[str]:
    """One run each, a round; then all of them. Of the program as it is, against the next round."""
    own = [one["as it is"] for one in rounds]
    others = [*own[1:], own[0]] if name == "as it is" else [one[name] for one in rounds]
    found = [difference([base], [new]) for base, new in zip(own, others, strict=True)]
    yield ", ".join(f"{100 * (one.step.ratio.ratio - 1):+.0f} %" for one in found if one.step)
    verdicts = Counter(one.step.verdict for one in found if one.step)
    yield from (f"{verdicts[word]} of {len(found)}" for word in ("slower", "faster"))
    place = PLACES.get(name.split()[0])
    if place is None:
        yield from ("–", "–")
    else:
        ranks = [_rank(one, place) for one in found]
        yield from (f"{sum(rank < most for rank in ranks)} of {len(ranks)}" for most in (1, 3))
    whole = difference(own, others)
    step = whole.step
    yield (
        f"{step.verdict}, {100 * (step.low / step.base_us):+.0f} to {100 * (step.high / step.base_us):+.0f} %"
        if step
        else "–"
    )
    yield "–" if place is None else str(1 + _rank(whole, place))


def _rank(found: RunDifference, place: str) -> int:
    """Where the place stands that really grew, as one that grew; behind all where it does not."""
    names = [change.name if change.delta_us > 0 else "" for change in found.changes]
    return next((row for row, name in enumerate(names) if place in name), len(names))


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(Path(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 600.0)
    else:
        judge(Path(sys.argv[2]))
