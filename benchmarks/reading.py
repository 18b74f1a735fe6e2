"""How long reading a trace takes, as ratios to reading its bytes, in one run.

    python benchmarks/reading.py TRACE.json [--copies 10] [--rounds 3] [--cores] [--hta-python PY]
    [--tracelens-python PY]

TRACE is unpacked into a temporary folder and, where that is asked for, packed again and copied ten times
over, each copy later in time. Every row is a process of its own, the best of the rounds; CPU is that of the
process and its children, RSS the largest sum over all of them (sampled; needs psutil). For
HolisticTraceAnalysis name an interpreter that has it: `pip install HolisticTraceAnalysis "pandas<3"` in an
environment of its own. The same for TraceLens: `pip install git+https://github.com/AMD-AGI/TraceLens`; the
package index has something else under that name. With --cores, ours once more on 1, 2, 4, … of the cores
there are (Linux only).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

SOURCE = Path(__file__).resolve().parents[1] / "src"
BYTES = "import sys\nwith open(sys.argv[1], 'rb', 0) as f:\n    while f.read(1 << 20): pass"
JSON = "import json, sys; json.load(open(sys.argv[1]))"
OURS = "import sys; from kinetoscope.trace.read import read; read(sys.argv[1])"
REPORT = (
    "import sys; from kinetoscope.cli import run; "
    "sys.argv[1:] = ['report', sys.argv[1], '-o', sys.argv[1] + '.report.json']; run()"
)
HTA = (
    "import sys; from hta.common.trace_parser import parse_trace_dataframe as parse; "
    "from hta.configs.parser_config import ParserConfig; parse(sys.argv[1], ParserConfig.get_default_cfg())"
)
TRACELENS = "import sys; from TraceLens import TreePerfAnalyzer; TreePerfAnalyzer.from_file(sys.argv[1])"
TRACELENS_REPORT = (
    "import sys; from TraceLens.Reporting import generate_perf_report_pytorch as reporting; "
    "report = reporting.generate_perf_report_pytorch; "
    "report(sys.argv[1], output_csvs_dir=sys.argv[1] + '.tracelens')"
)
_TS = re.compile(rb'("ts": )(\d+)')


class Cost(NamedTuple):
    wall_s: float
    cpu_s: float
    rss_mb: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument(
        "--copies", type=int, default=10, help="copies in the long trace; 0: none (default 10)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", action="store_true", help="a second table: on 1, 2, 4, … cores")
    parser.add_argument("--hta-python", help="an interpreter with HolisticTraceAnalysis")
    parser.add_argument("--tracelens-python", help="an interpreter with TraceLens")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(arguments, Path(folder))


def run(arguments: argparse.Namespace, folder: Path) -> None:
    plain = folder / "trace.json"
    with opened(arguments.trace) as source, plain.open("wb") as target:
        shutil.copyfileobj(source, target)
    print(
        f"{plain.stat().st_size / 1e6:,.0f} MB unpacked; {os.cpu_count()} cores; best of {arguments.rounds}\n"
    )
    print(f"{'':34} {'wall s':>8} {'CPU s':>8} {'RSS MB':>8} {'x bytes':>8} {'x ours':>8}")
    off = {"KINETOSCOPE_CACHE": "0"}
    on = {"XDG_CACHE_HOME": str(folder / "cache")}

    def cost(
        script: str, path: Path, python: str = sys.executable, rounds: int = arguments.rounds, **env: str
    ) -> Cost:
        return min(measured([python, "-c", script, str(path)], env) for _ in range(rounds))

    floor = cost(BYTES, plain)
    ours = cost(OURS, plain, **off)

    def row(name: str, found: Cost) -> None:
        print(
            f"{name:34} {found.wall_s:8.2f} {found.cpu_s:8.2f} {found.rss_mb:8.0f} "
            f"{found.wall_s / floor.wall_s:8.1f} {found.wall_s / ours.wall_s:8.2f}",
            flush=True,
        )

    row("reading the bytes", floor)
    row("json.load", cost(JSON, plain, rounds=1))
    row("kinetoscope, all cores", ours)
    row("kinetoscope, one process", cost(OURS, plain, KINETOSCOPE_WORKERS="1", **off))
    cost(OURS, plain, rounds=1, **on)
    row("kinetoscope, tables kept", cost(OURS, plain, **on))
    row("kinetoscope, to a JSON report", cost(REPORT, plain, **off))
    for name, pack in (("gzip", packed_gzip), ("zstd", packed_zstd)):
        if (packed := pack(plain)) is not None:
            row(f"kinetoscope, {name}", cost(OURS, packed, **off))
            packed.unlink()
    if arguments.hta_python:
        row("HolisticTraceAnalysis, parse", cost(HTA, plain, arguments.hta_python, rounds=1))
    if arguments.tracelens_python:
        row("TraceLens, parse and tree", cost(TRACELENS, plain, arguments.tracelens_python, rounds=1))
        row("TraceLens, to a report", cost(TRACELENS_REPORT, plain, arguments.tracelens_python, rounds=1))
    if arguments.copies:
        long = repeated(plain, arguments.copies)
        row(f"kinetoscope, {arguments.copies} copies", cost(OURS, long, rounds=1, **off))
        row(f"{arguments.copies} copies, to a JSON report", cost(REPORT, long, rounds=1, **off))
    if arguments.cores:
        print(f"\n{'':10} {'tables s':>24} {'JSON report s':>24} {'RSS MB':>8}")
        for path in (plain, long) if arguments.copies else (plain,):
            on_cores(path, arguments.rounds if path is plain else 1, off)


def on_cores(path: Path, rounds: int, env: dict[str, str]) -> None:
    """Both of ours on 1, 2, 4, … cores, with how many times faster than on one."""
    there = sorted(os.sched_getaffinity(0))
    first: list[float] = []
    for count in sorted({1 << power for power in range(10) if 1 << power <= len(there)} | {len(there)}):
        found = [
            min(
                measured([sys.executable, "-c", script, str(path)], env, there[:count]) for _ in range(rounds)
            )
            for script in (OURS, REPORT)
        ]
        first = first or [cost.wall_s for cost in found]
        walls = " ".join(
            f"{c.wall_s:15.2f} {one / c.wall_s:6.1f} x" for c, one in zip(found, first, strict=True)
        )
        print(f"{path.stem:5} {count:4} {walls} {found[1].rss_mb:8.0f}", flush=True)


@contextmanager
def opened(path: Path) -> Iterator[object]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        yield file


def packed_gzip(plain: Path) -> Path:
    packed = plain.with_suffix(".json.gz")
    with plain.open("rb") as source, gzip.open(packed, "wb", 6) as target:
        shutil.copyfileobj(source, target, 1 << 20)
    return packed


def packed_zstd(plain: Path) -> Path | None:
    try:
        import zstandard
    except ImportError:
        return None
    packed = plain.with_suffix(".json.zst")
    with plain.open("rb") as source, packed.open("wb") as target:
        zstandard.ZstdCompressor(3).copy_stream(source, target)
    return packed


def repeated(plain: Path, copies: int) -> Path:
    """The trace with its events so many times over, each time later by the length of the recording."""
    data = plain.read_bytes()
    start = data.index(b"[", data.index(b'"traceEvents"')) + 1
    end = data.rindex(b"]")
    times = [int(ts) for _, ts in _TS.findall(data)]
    length = max(times) - min(times) + 1_000_000
    long = plain.with_name("long.json")
    with long.open("wb") as target:
        target.write(data[:start])
        for copy in range(copies):
            shift = copy * length
            events = _TS.sub(lambda match, by=shift: match[1] + b"%d" % (int(match[2]) + by), data[start:end])
            target.write((b"," if copy else b"") + events)
        target.write(data[end:])
    return long


def measured(command: list[str], env: dict[str, str], cores: list[int] | None = None) -> Cost:
    """One run: wall, CPU of it and its children, and the largest resident memory of all of them together."""
    paths = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        # Who compiles all modules anew each time measures the compiler, a third of a small report's CPU.
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPATH": paths, **env},
        stdout=subprocess.DEVNULL,
        preexec_fn=None if cores is None else partial(os.sched_setaffinity, 0, cores),
    )
    peak = [0]
    watch = threading.Thread(target=watched, args=(psutil.Process(process.pid), peak))
    watch.start()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    watch.join()
    if status:
        raise SystemExit(f"failed: {json.dumps(command)}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, peak[0] / 1e6)


def watched(process: psutil.Process, peak: list[int]) -> None:
    """Samples of all processes together, and the first one's own high-water mark. (``ru_maxrss`` will not do:
    a process inherits it from the one that started it, and this one has held whole traces.)"""
    while True:
        total = 0
        try:
            for one in (process, *process.children()):
                total += one.memory_info().rss
        except psutil.Error:
            if not process.is_running():
                return
        if not total:
            return
        peak[0] = max(peak[0], total, high_water(process.pid))
        time.sleep(0.02)


def high_water(pid: int) -> int:
    """The most that a process was ever resident with since it was started, in bytes; 0 where the system does
    not say."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0


if __name__ == "__main__":
    main()
