"""What comparing many ranks costs: ``python benchmarks/many_ranks.py [TRACE …] --ranks 1000``.

Makes a folder of so many ranks from a few traces: a trace's body is compressed once, with its groups as large
as the run, and only the header that says the rank differs. Without traces they are eight simulated ones of
some 30,000 events each (``PYTHONPATH=src:tests:tests/support``). Then reports on it with one process a core,
and prints time, CPU time, the largest memory of all processes together, and what a rank cost. Asked are 250 s
of CPU and 400 MB for 1,000 ranks, and 2 s by the clock for eight traces of 54 KB.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

LISTED = 30  # ranks of a group that torch lists


def body(trace: Path, ranks: int) -> tuple[dict[str, Any], bytes]:
    """The header, and the events as they follow it in the file, compressed."""
    with gzip.open(trace) if trace.suffix == ".gz" else trace.open("rb") as file:
        content: dict[str, Any] = json.load(file)
    listed = ", ".join(map(str, range(min(ranks, LISTED)))) + (", ..." if ranks > LISTED else "")
    for event in content["traceEvents"]:
        if "Group size" in event.get("args", {}):
            event["args"] |= {"Group size": ranks, "Process Group Ranks": f"[{listed}]"}
    events = json.dumps(content.pop("traceEvents")).encode()
    return content, gzip.compress(b', "traceEvents": ' + events + b"}", 6)


def make(traces: list[Path], ranks: int, folder: Path) -> None:
    bodies = [body(trace, ranks) for trace in traces]
    for rank in range(ranks):
        header, events = bodies[rank % len(bodies)]
        said = header | {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks}}
        front = gzip.compress(json.dumps(said)[:-1].encode())
        (folder / f"rank{rank}.json.gz").write_bytes(front + events)


def simulated(folder: Path) -> list[Path]:
    """Traces of a data-parallel job."""
    from job_sets import DDP
    from job_simulator import recorded

    paths: list[Path] = []
    for rank, trace in recorded(replace(DDP, layers=36, steps=25)):
        paths.append(folder / f"made{rank}.json")
        paths[-1].write_text(json.dumps(trace))
    return paths


def memory(root: int) -> int:
    """Bytes that a process and all below it hold, pages that they share counted once each (PSS)."""
    total, wanted = 0, [root]
    while wanted:
        process = Path("/proc") / str(wanted.pop())
        try:
            lines = (process / "smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
            for below in process.glob("task/*/children"):  # each thread lists those that it started
                wanted += map(int, below.read_text().split())
        except (OSError, StopIteration):  # it has ended
            continue
    return total


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("traces", type=Path, nargs="*")
    arguments.add_argument("--ranks", type=int, default=1000)
    arguments.add_argument("--times", type=int, default=1, help="a row each; the first may compile modules")
    arguments.add_argument("--folder", type=Path, help="where to make them; else a folder that goes at once")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        run = Path(folder) / "run"
        run.mkdir()
        make(given.traces or simulated(Path(folder)), given.ranks, run)
        print("| ranks | events a rank | time | CPU time | CPU time a rank | memory, all processes |")
        print("|--:|--:|--:|--:|--:|--:|")
        for _ in range(given.times):
            print(row(run, Path(folder, "ranks.json"), given.ranks), flush=True)


def row(run: Path, output: Path, ranks: int) -> str:
    """One report, measured. Modules are compiled once, as where kinetoscope is installed."""
    command = [
        sys.executable,
        "-m",
        "kinetoscope",
        "report",
        str(run),
        "--engine",
        "local",
        "-o",
        str(output),
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began, most = time.perf_counter(), 0
    surroundings = {**os.environ, "KINETOSCOPE_CACHE": "0", "PYTHONDONTWRITEBYTECODE": ""}
    process = subprocess.Popen([*command, "-o", str(output)], env=surroundings, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        most = max(most, memory(process.pid))
        time.sleep(0.2)
    took = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    events = json.loads(output.read_text())["events"] / ranks
    times = f"{took:.1f} s | {cpu:.1f} s | {cpu / ranks:.3f} s"
    return f"| {ranks:,} | {events:,.0f} | {times} | {most / 1e6:,.0f} MB |"


if __name__ == "__main__":
    main()
