"""Attack by chance what is read, where it is read, and where results go. Run from the repository:

    export PYTHONPATH=src:tests/support
    python -m attack [--minutes 60] [--tries N] [--seed 0] [--only CLASS] [--keep FOLDER]

goes through the classes in turn, prints what failed, and at the end a table of tries and failures by class. A
try fails as a fault (a traceback, a panic, an exit status without a meaning), as a hang (more than 30 seconds
of the processor), by its memory (more than 1 GiB and ten times the input), by an input that it changed, or by
what its class forbids, such as a gate that passes on a trace that was cut.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

from attack import inputs, surroundings
from attack.trial import Outcome, Trial, attempted

CLASSES: dict[str, Callable[[random.Random, Path], Trial]] = {
    "cut traces": inputs.cut_traces,
    "damaged traces": inputs.damaged_traces,
    "exports of nsys": inputs.exports,
    "compile logs": inputs.logs,
    "snapshots": inputs.snapshots,
    "flight-recorder dumps": inputs.dumps,
    "baselines": inputs.baselines,
    "gates": inputs.gates,
    "parts": inputs.parts,
    "folders": inputs.folders,
    "kept tables": inputs.caches,
    "SQL": inputs.statements,
    "names in Markdown": inputs.names,
    "scale": inputs.scale,
    "outputs over inputs": surroundings.outputs,
    "signals": surroundings.signals,
    "descriptors": surroundings.descriptors,
    "locales": surroundings.locales,
    "working directories": surroundings.directories,
    "warnings as errors": surroundings.warned,
}
COSTLY = {"kept tables": 4, "scale": 2}  # of so many rounds such a class has one


def one(name: str, seed: int, folder: Path) -> Outcome:
    """The try of a class that a seed stands for."""
    return attempted(CLASSES[name](random.Random(f"{name} {seed}"), folder))


def growth(seed: int) -> str:
    """What is wrong with how the cost of one shape grows from n to 4 n; empty if it is in proportion."""
    spent: list[float] = []
    for n in (1000, 4000):
        with tempfile.TemporaryDirectory() as folder:
            found = attempted(inputs.scale(random.Random(f"growth {seed}"), Path(folder), n))
            if found.wrong:
                return found.wrong
            spent.append(found.cpu_s)
    # Eight times as much for four times the size is no longer in proportion; a second is the start's own.
    return (
        f"growth: {spent[0]:.1f} s, then {spent[1]:.1f} s"
        if spent[1] > 8 * max(spent[0] - 0.8, 0.2) + 1
        else ""
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--tries", type=int, default=1 << 30, help="of each class at most")
    parser.add_argument("--seed", type=int, default=0, help="of the first try; the others follow it")
    parser.add_argument("--only", default="", help="classes whose name holds this")
    parser.add_argument("--keep", type=Path, help="where inputs of failures are copied")
    arguments = parser.parse_args()
    chosen = [name for name in CLASSES if arguments.only in name]
    until, seed = time.monotonic() + 60 * arguments.minutes, arguments.seed
    tries: Counter[str] = Counter()
    failed: dict[str, list[str]] = defaultdict(list)
    slowest: dict[str, float] = defaultdict(float)
    while time.monotonic() < until and seed < arguments.seed + arguments.tries:
        for name in chosen:
            if seed % COSTLY.get(name, 1) or time.monotonic() >= until:
                continue
            with tempfile.TemporaryDirectory() as folder:
                found = one(name, seed, Path(folder))
                tries[name] += 1
                slowest[name] = max(slowest[name], found.cpu_s)
                if found.wrong:
                    failed[name].append(found.wrong)
                    print(f"{name}, seed {seed}: {found.wrong}", file=sys.stderr, flush=True)
                    if arguments.keep is not None:
                        kept = arguments.keep / f"{name.replace(' ', '-')}-{seed}"
                        shutil.copytree(folder, kept, symlinks=True, dirs_exist_ok=True)
        if "scale" in chosen and seed % 8 == 0:
            tries["growth, n and 4 n"] += 1
            if wrong := growth(seed):
                failed["growth, n and 4 n"].append(wrong)
                print(f"growth, seed {seed}: {wrong}", file=sys.stderr, flush=True)
        seed += 1
    print("| class | tries | failed | slowest (CPU) |\n|---|---|---|---|")
    for name, count in tries.items():
        print(f"| {name} | {count} | {len(failed[name])} | {slowest[name]:.1f} s |")
    every = sum(tries.values())
    print(f"\nseeds {arguments.seed} to {seed - 1}: {every} tries, {sum(map(len, failed.values()))} failed")
    return 1 if any(failed.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
