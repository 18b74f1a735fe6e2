"""Everyday programs, plain and under `kinetoscope run`: does the report say what the plain program does?

    PYTHONPATH=src python tests/gpu/prove_everyday.py OUT [NAME…] [--plain N] [--rounds N]

Each program of ``everyday/`` times itself and prints ``step_ms``. It runs plain first and last and recorded
in between; a table of both comes last, the reports go to OUT. On a CUDA device, about ten minutes for all.
Where the host is uneven, one run says little: with rounds the medians of all are compared.
"""

from __future__ import annotations

import json
import re
import statistics
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import proving

HERE = Path(__file__).resolve().parent / "everyday"
PROGRAMS = {
    "trainer": "trainer.py",
    "generate": "generate.py",
    "speech": "speech.py",
    "vision-slow": "vision.py --workers 2 --work-ms 3 --steps 90",
    "vision-many": "vision.py --workers 12 --work-ms 3 --steps 90",
    "vision-fast": "vision.py --workers 12 --pinned",
    "convnet": "convnet.py",
    "host-bound": "host_bound.py",
    "reduce-overhead": "reduce_overhead.py",
    "accumulate": "accumulate.py",
    "experts": "experts.py",
    "loader-cpu": "loader_cpu.py",
    "tiny-cpu": "tiny_cpu.py",
}


def main() -> None:
    parser = proving.arguments(__doc__)
    parser.add_argument("names", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--plain", type=int, default=3, help="plain runs of each (default 3)")
    parser.add_argument("--rounds", type=int, default=1, help="how often each is measured (default 1)")
    arguments = parser.parse_intermixed_args()
    work = Path("/tmp/everyday")
    work.mkdir(exist_ok=True)
    rows = [
        measure(name, work / f"round{number}", arguments.plain)
        for name in arguments.names or PROGRAMS
        for number in range(arguments.rounds)
    ]
    with ThreadPoolExecutor() as pool:  # once nothing is timed any more
        rows = list(pool.map(reported, rows))
    (arguments.out / "everyday.json").write_text(json.dumps(rows, indent=1))
    with tarfile.open(arguments.out / "recordings.tar.xz", "w:xz", preset=4) as pack:
        for path in sorted(work.rglob("*")):
            if path.is_file() and "generated" not in path.parts and path.stat().st_size < 60e6:
                pack.add(path, path.relative_to(work))
    table(rows)
    medians(rows)


def measure(name: str, work: Path, plain_runs: int) -> dict[str, Any]:
    script, *words = PROGRAMS[name].split()
    program = [str(HERE / script), *words]
    work.mkdir(exist_ok=True)
    row: dict[str, Any] = {"name": name, "work": str(work), "plain_ms": [], "plain_s": []}
    for _ in range(max(1, plain_runs - 1)):
        plain(program, row)
    folder = work / name
    began = time.perf_counter()
    ran = proving.kinetoscope("run", "-o", folder, "--", *program, timeout=400)
    row["run_s"] = time.perf_counter() - began
    row["watched_ms"] = step_ms(ran.stdout)
    (work / f"{name}.run.txt").write_text(ran.stdout + ran.stderr)
    for _ in range(min(1, plain_runs - 1)):
        plain(program, row)
    print(name, row["plain_ms"], f"{row['run_s']:.1f} s", flush=True)
    return row


def reported(row: dict[str, Any]) -> dict[str, Any]:
    """The row with what the report says."""
    name, work = row["name"], Path(row["work"])
    folder = work / name
    target = work / f"{name}.json"
    report = proving.kinetoscope("report", folder, "-o", target)
    text = proving.kinetoscope("report", folder, COLUMNS="120").stdout
    (work / f"{name}.txt").write_text(text + report.stderr)
    if report.returncode:
        row["error"] = report.stderr[-300:]
        print(name, row["error"], flush=True)
        return row
    document = json.loads(target.read_text())
    runs = document.get("as_it_runs") or {}
    row["as_it_runs"] = runs
    row["devices"] = document["devices"]
    row["recorded_us"] = [step["duration_us"] for step in document["steps"]]
    row["findings"] = [
        {key: finding.get(key) for key in ("rule", "title", "severity", "saving_us")}
        for finding in document["findings"][:5]
    ]
    return row


def plain(program: list[str], row: dict[str, Any]) -> None:
    began = time.perf_counter()
    done = proving.python(*program, timeout=300)
    row["plain_s"].append(time.perf_counter() - began)
    row["plain_ms"].append(step_ms(done.stdout))
    if done.returncode:
        print(done.stderr[-500:], flush=True)


def step_ms(text: str) -> float | None:
    found = re.search(r"step_ms ([\d.]+)", text)
    return float(found[1]) if found else None


def table(rows: list[dict[str, Any]]) -> None:
    print(
        f"\n{'program':16}{'plain ms':>24}{'report ms':>10}{'ratio':>7}"
        f"{'busy':>7}{'of plain':>9}{'recorded':>9}{'plain s':>8}{'run s':>7}  first finding"
    )
    for row in rows:
        plains = [ms for ms in row["plain_ms"] if ms]
        reported_us = (row.get("as_it_runs") or {}).get("step_us", {}).get("median")
        ratio = reported_us / 1e3 / statistics.median(plains) if reported_us and plains else None
        busy = (row.get("as_it_runs") or {}).get("busy_fraction")
        of_plain = busy * ratio if busy and ratio else None
        recorded = max((device["busy_fraction"] for device in row.get("devices", [])), default=None)
        first = (row.get("findings") or [{}])[0]
        print(
            f"{row['name']:16}{', '.join(f'{ms:.2f}' for ms in plains):>24}"
            f"{figure(reported_us and reported_us / 1e3, 10, 3)}{figure(ratio, 7, 3)}"
            f"{figure(busy, 7, 3)}{figure(of_plain, 9, 3)}{figure(recorded, 9, 3)}"
            f"{figure(min(row['plain_s']), 8, 1)}{figure(row.get('run_s'), 7, 1)}  "
            f"{first.get('rule', '')} {figure(first.get('saving_us'), 8, 0)} µs"
        )


def medians(rows: list[dict[str, Any]]) -> None:
    """Of programs measured in several rounds: the medians of all plain runs and of all that reports said."""
    for name in dict.fromkeys(row["name"] for row in rows):
        rounds = [row for row in rows if row["name"] == name]
        said = [row["as_it_runs"]["step_us"]["median"] / 1e3 for row in rounds if row.get("as_it_runs")]
        plains = [ms for row in rounds for ms in row["plain_ms"] if ms]
        if len(said) > 1 and plains:
            plain_ms, said_ms = statistics.median(plains), statistics.median(said)
            print(
                f"{name:16}{len(plains)} plain runs {min(plains):.2f} to {max(plains):.2f}, "
                f"median {plain_ms:.3f} ms; {len(said)} reports {min(said):.2f} to {max(said):.2f}, "
                f"median {said_ms:.3f} ms: {said_ms / plain_ms:.3f}"
            )


def figure(value: float | None, width: int, digits: int) -> str:
    return f"{'–':>{width}}" if value is None else f"{value:{width}.{digits}f}"


if __name__ == "__main__":
    main()
