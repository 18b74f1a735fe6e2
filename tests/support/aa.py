"""How often runs of one program are distinguished, and how often an injected slow-down is found. By hand:

    python tests/support/aa.py measure RUNS.json [SECONDS]     a real loop, a process a run, 400 runs at most
    python tests/support/aa.py judge RUNS.json            the tables of docs/evidence/comparing.md
    python tests/support/aa.py inject RUNS.json [SECONDS]      likewise, with real slow-downs in the loop
    python tests/support/aa.py found RUNS.json                 how many of those are found

A run is a list of steps in ms. What is judged is what `diff` (two runs, or folders of five) and `compare`
(pairs, of which a coin says which ran first) conclude from them; a slow-down is every step of one side times
so much.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kinetoscope.bench.versions.campaign import TAIL
from kinetoscope.comparison.step_change import A_RUN_OF_THE_HOST, of_one_run_each
from kinetoscope.statistics.distribution import median
from kinetoscope.statistics.intervals import Ratio, compare_groups, compare_pairs

COMPARISONS, REPEATS, PAIRS = 200, 5, 8
STEPS, TURNS = 60, 20_000
SLOWER = (0.0, 0.01, 0.02, 0.05, 0.10)
Run = list[float]
Judge = Callable[[list[Run], int, Callable[[Run], Run]], Ratio]


def loop(turns: int = TURNS, rows: int = 0) -> None:
    """A step of some milliseconds: matrix products, and Python between them; and one of so many rows."""
    import numpy as np

    left = np.full((256, 256), 0.5, dtype=np.float32)
    more = np.full((rows, 256), 0.5, dtype=np.float32)
    marks = [time.perf_counter()]
    for _ in range(STEPS + 10):
        for _ in range(6):
            left = np.tanh(left @ left * 1e-3)
        sum(i * i for i in range(turns))
        more @ left
        marks.append(time.perf_counter())
    steps = [1e3 * (after - before) for before, after in itertools.pairwise(marks)]
    print(json.dumps(steps[10:]))


def measure(path: Path, seconds: float) -> None:
    began, runs = time.monotonic(), list[Run]()
    while len(runs) < 2 * COMPARISONS and time.monotonic() - began < seconds:
        runs.append(_run())
    path.write_text(json.dumps(runs))
    print(f"{len(runs)} runs of {STEPS} steps")


def inject(path: Path, seconds: float) -> None:
    """Rounds of the loop as it is, and of each slow-down in Python and in a product; the order turns."""
    versions = calibrated()
    began, names, found = time.monotonic(), list(versions), {name: list[Run]() for name in versions}
    while time.monotonic() - began < seconds:
        for name in names:
            found[name].append(_run(*versions[name]))
        names = names[::-1] if len(found[names[0]]) % 2 else [*names[3:], *names[:3]]
    path.write_text(json.dumps(found))
    print(f"{len(found['as it is'])} rounds of {versions}")


def calibrated() -> dict[str, tuple[int, int]]:
    """Turns and rows that take so much of the step, by the quickest of many: the rest is the machine."""
    step, longer, wider = (
        min(min(_run(*more)) for _ in range(6)) for more in ((TURNS, 0), (2 * TURNS, 0), (TURNS, 512))
    )
    versions = {"as it is": (TURNS, 0)}
    for share in SLOWER[1:]:
        turns, rows = share * step / (longer - step) * TURNS, share * step / (wider - step) * 512
        versions |= {
            f"host {share:.0%}": (TURNS + round(turns), 0),
            f"kernel {share:.0%}": (TURNS, round(rows)),
        }
    return versions


def power(path: Path) -> None:
    runs: dict[str, list[Run]] = json.loads(path.read_text())
    base = runs.pop("as it is")
    for name, new in runs.items():
        rounds = list(zip(base, new, strict=True))
        one = [of_one_run_each(*pair, A_RUN_OF_THE_HOST)[0] for pair in rounds]
        several = [
            _medians(rounds[i : i + REPEATS], compare_groups) for i in range(len(rounds) - REPEATS + 1)
        ]
        pairs = [_medians(rounds[i : i + PAIRS], of_pairs) for i in range(len(rounds) - PAIRS + 1)]
        together = _medians(rounds, of_pairs)
        cells = [f"{sum(x.low > 1 for x in way)} of {len(way)}" for way in (one, several, pairs)]
        cells.append(f"{together.low - 1:+.1%} to {together.high - 1:+.1%}")
        print(f"| {name} | {' | '.join(cells)} |")


def of_pairs(base: list[float], new: list[float]) -> Ratio:
    """As `compare` has it."""
    return compare_pairs(base, new, tail=TAIL)


def _medians(rounds: list[tuple[Run, Run]], compare: Callable[[list[float], list[float]], Ratio]) -> Ratio:
    return compare([median(base) for base, _ in rounds], [median(new) for _, new in rounds])


def _run(*arguments: int) -> Run:
    variables = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    words = [sys.executable, __file__, "loop", *map(str, arguments)]
    return json.loads(subprocess.run(words, capture_output=True, check=True, env=variables).stdout)


def two_runs(runs: list[Run], number: int, slow: Callable[[Run], Run]) -> Ratio:
    """`diff` of two recordings: runs that were made one after the other."""
    base, new = _neighbours(runs, number, 2)
    return of_one_run_each(base, slow(new), A_RUN_OF_THE_HOST)[0]


def folders(runs: list[Run], number: int, slow: Callable[[Run], Run]) -> Ratio:
    """`diff` of two folders of repeated recordings, made in turn."""
    chosen = _neighbours(runs, number, 2 * REPEATS)
    return compare_groups([median(run) for run in chosen[::2]], [median(slow(run)) for run in chosen[1::2]])


def in_turn(runs: list[Run], number: int, slow: Callable[[Run], Run]) -> Ratio:
    """`compare`: pairs of runs, of which a coin says which is the base's."""
    chosen, draw = _neighbours(runs, number, 2 * PAIRS), random.Random(number)
    pairs = [draw.sample(chosen[i : i + 2], 2) for i in range(0, 2 * PAIRS, 2)]
    return of_pairs([median(base) for base, _ in pairs], [median(slow(new)) for _, new in pairs])


def _neighbours(runs: list[Run], number: int, count: int) -> list[Run]:
    """Of ``COMPARISONS`` places at even distances; of twice as many runs, pairs share none."""
    at = number * (len(runs) - count) // (COMPARISONS - 1)
    chosen = runs[at : at + count]
    return chosen[::-1] if number % 2 else chosen


def everywhere(share: float) -> Callable[[Run], Run]:
    return lambda run: [step * (1 + share) for step in run]


WAYS: dict[str, Judge] = {
    "diff, one run each": two_runs,
    f"diff, {REPEATS} runs each": folders,
    f"compare, {PAIRS} pairs": in_turn,
}


def quiet(runs: list[Run], spread: float) -> list[Run]:
    """The same runs as a quiet machine would have them: runs differ by so much (standard deviation), and
    steps from their run's median twice as much, in the order and with the tails that were measured."""
    draw = random.Random(1)
    made: list[Run] = []
    for run in runs:
        centre = median(run)
        usual = median([abs(step / centre - 1) for step in run]) or 1.0
        level = 10 * (1 + draw.gauss(0, spread))
        made.append([level * (1 + spread * (step / centre - 1) / usual) for step in run])
    return made


def judge(path: Path) -> None:
    runs: list[Run] = json.loads(path.read_text())
    medians = [median(run) for run in runs]
    middle = median(medians)
    apart = sorted(abs(value / middle - 1) for value in medians)
    print(f"{len(runs)} runs; medians within {100 * apart[int(0.9 * len(apart))]:.1f} % in nine of ten")
    for name, those in (("as measured", runs), ("runs that differ by 0.5 %", quiet(runs, 0.005))):
        print(f"\n| {name} | half interval | " + " | ".join(_head(share) for share in SLOWER) + " |")
        print("|---|---:|" + "---:|" * len(SLOWER))
        for way, compare in WAYS.items():
            print(f"| {way} | {_cells(those, compare)} |")


def _head(share: float) -> str:
    return f"{share:.0%} slower" if share else "A/A (of either half)"


def _cells(runs: list[Run], compare: Judge) -> str:
    shares: list[str] = []
    halves: list[float] = []
    for share in SLOWER:
        found = [compare(runs, number, everywhere(share)) for number in range(COMPARISONS)]
        flagged = [one.low > 1 if share else one.low > 1 or one.high < 1 for one in found]
        shares.append(f"{sum(flagged) / COMPARISONS:.1%}".replace("%", " %"))
        if not share:
            shares[0] += f" ({sum(flagged[: COMPARISONS // 2])}, {sum(flagged[COMPARISONS // 2 :])})"
        halves += [(one.high - one.low) / 2 for one in found] if not share else []
    return " | ".join([f"± {median(halves):.1%}".replace("%", " %"), *shares])


if __name__ == "__main__":
    if sys.argv[1] == "loop":
        loop(*map(int, sys.argv[2:]))
    elif sys.argv[1] == "inject":
        inject(Path(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 300.0)
    elif sys.argv[1] == "found":
        power(Path(sys.argv[2]))
    elif sys.argv[1] == "measure":
        measure(Path(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 150.0)
    else:
        judge(Path(sys.argv[2]))
