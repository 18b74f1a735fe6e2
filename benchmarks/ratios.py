"""Whether commands became slower: CPU as ratios to floors of the same rounds, and memory, against those kept.

    python benchmarks/ratios.py [--rounds 5] [--keep]

Each command is a process of its own, and each has a floor that is measured right before it in every round:
what any program has to do that answers the same. Load moves both, so that their ratio moves less; of all
rounds the smallest, median and largest ratio are printed next to those of ``ratios.json``, which ``--keep``
writes. A command is slower where all its ratios are above all that were kept; then the exit status is 1. The
trace is one of the tests' (9 MB), and twelve copies of it one after the other (113 MB, 337,000 events).
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from reading import JSON, Cost, measured, repeated

HERE = Path(__file__).resolve().parent
TRACE = HERE.parent / "tests" / "fixtures" / "h200" / "llama_train_eager.json.gz"
KEPT = HERE / "ratios.json"
COPIES = 12


class Row(NamedTuple):
    """A command of ours and its floor, both as words after ``python``; ``cold``: with nothing kept."""

    name: str
    ours: Sequence[str]
    floor: Sequence[str]
    cold: bool = False


def rows(small: Path, large: Path) -> list[Row]:
    ours = ["-m", "kinetoscope"]
    nothing, polars = ["-c", "pass"], ["-c", "import polars"]
    load = ["-c", JSON, str(large)]

    def report(trace: Path) -> list[str]:
        return [*ours, "report", str(trace), "--json"]

    return [
        Row("--help / python", [*ours, "--help"], nothing),
        Row("9 MB: first report / import polars", report(small), polars, cold=True),
        Row("9 MB: report / import polars", report(small), polars),
        *(
            Row(f"9 MB: first {verb} / import polars", [*ours, verb, str(small)], polars, cold=True)
            for verb in ("findings", "kernels", "memory")
        ),
        Row("113 MB: first report / json.load", report(large), load, cold=True),
        Row("113 MB: report / json.load", report(large), load),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="keep these ratios as the ones to compare with")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "trace.json"
        small.write_bytes(gzip.decompress(TRACE.read_bytes()))
        found = ratios(rows(small, repeated(small, COPIES)), arguments.rounds, folder)
    kept = json.loads(KEPT.read_text()) if KEPT.is_file() else {}
    slower = False
    print(f"{'CPU, as ratios; memory':38} {'low':>7} {'median':>7} {'high':>7}   kept")
    for name, (low, middle, high) in found.items():
        before = kept.get(name)
        worse = before is not None and low > before[2]
        slower = slower or worse
        known = "" if before is None else " ".join(f"{one:7.2f}" for one in before)
        print(f"{name:38} {low:7.2f} {middle:7.2f} {high:7.2f}   {known}{'  SLOWER' if worse else ''}")
    if arguments.keep:
        each = (
            f"  {json.dumps(name)}: {json.dumps([round(one, 3) for one in row])}"
            for name, row in found.items()
        )
        KEPT.write_text("{\n" + ",\n".join(each) + "\n}\n")
        return 0
    return int(slower)


def ratios(rows: Sequence[Row], rounds: int, folder: str) -> dict[str, tuple[float, float, float]]:
    """The smallest, median and largest ratio of each row's CPU time, and its memory in MB."""
    each: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        for row in rows:
            floor, own = cost(row.floor, folder, cold=True), cost(row.ours, folder, cold=row.cold)
            if number:  # before the first, bytecode and tables are kept
                each.setdefault(row.name, []).append(own.cpu_s / floor.cpu_s)
                each.setdefault(f"{row.name.partition(' / ')[0]}, MB", []).append(own.rss_mb)
    return {name: (min(found), median(found), max(found)) for name, found in each.items()}


def cost(words: Sequence[str], folder: str, *, cold: bool) -> Cost:
    env = {"KINETOSCOPE_CACHE": "0"} if cold else {"XDG_CACHE_HOME": folder}
    return measured([sys.executable, *words], env)


if __name__ == "__main__":
    raise SystemExit(main())
