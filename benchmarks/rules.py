"""What the rules and the replay cost beyond the tables of a trace, in CPU time.

    python benchmarks/rules.py TRACE.json [--rounds 3]

Each round is a process of its own that reads the trace (its tables kept from a round before the first), then
does one thing after another; of each the best round counts. The rules come last, when all else of a report
is there: what they cost a report.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
CHANGES = 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        print(json.dumps(costs(arguments.trace)))
        return
    with tempfile.TemporaryDirectory() as folder:
        rounds = [a_round(arguments.trace, folder) for _ in range(arguments.rounds + 1)][1:]
    best = {name: min(one[name] for one in rounds) for name in rounds[0]}
    tables, floor = best["tables, kept"], best["reading the bytes"]
    print(f"{'':34} {'CPU s':>8} {'x bytes':>8} {'x tables':>8}")
    for name, cost in best.items():
        print(f"{name:34} {cost:8.3f} {cost / floor:8.1f} {cost / tables:8.2f}")


def a_round(trace: Path, cache: str) -> dict[str, float]:
    command = [sys.executable, __file__, str(trace), "--here"]
    env = {**os.environ, "XDG_CACHE_HOME": cache, "PYTHONPATH": str(SOURCE)}
    return json.loads(subprocess.run(command, env=env, check=True, capture_output=True).stdout)


def costs(path: Path) -> dict[str, float]:
    from kinetoscope.analysis.replay.replay import replays
    from kinetoscope.analysis.replay.what_if import host
    from kinetoscope.document.collect import report
    from kinetoscope.findings import registry
    from kinetoscope.proof.measured import measurements
    from kinetoscope.sources.run import load

    registry.rules()
    found: dict[str, float] = {}

    def took(name: str, done: Callable[[], object], times: int = 1) -> None:
        start = time.process_time()
        done()
        found[name] = (time.process_time() - start) / times

    took("reading the bytes", lambda: read(path))
    start = time.process_time()
    run = load(path)
    found["tables, kept"] = time.process_time() - start
    took("the replay: its graph, the step", lambda: replays(run))
    replay = next(iter(replays(run).values()))
    changes = [host(run, 1 - n / CHANGES).changes[replay.rank] for n in range(1, CHANGES + 1)]
    took("one change of all host time", lambda: [replay.after(change) for change in changes], CHANGES)
    none: Future[list[object]] = Future()
    none.set_result([])
    took("the rest of a report", lambda: report._report(run, measurements(run), none))
    took("the rules and their ledger", lambda: registry.find(run))
    return found


def read(path: Path) -> None:
    with path.open("rb", 0) as file:
        while file.read(1 << 20):
            pass


if __name__ == "__main__":
    main()
