"""Everyday programs, plain and under `kinetoscope run`: does the report say what the plain program does?

    PYTHONPATH=src python tests/gpu/prove_everyday.py OUT [NAME…] [--plain N]

Each program of ``everyday/`` times itself and prints ``step_ms``. It runs plain first and last and recorded
in between; a table of both comes last, the reports go to OUT. On a CUDA device, about eight minutes for all.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent / "everyday"
PROGRAMS = {
    "trainer": "trainer.py",
    "generate": "generate.py",
    "speech": "speech.py",
    "vision-slow": "vision.py --workers 2",
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--plain", type=int, default=2, help="plain runs of each (default 2)")
    arguments = parser.parse_args()
    work = Path("/tmp/everyday")
    work.mkdir(exist_ok=True)
    rows = [measure(name, work, arguments.plain) for name in arguments.names or PROGRAMS]
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "everyday.json").write_text(json.dumps(rows, indent=1))
    with tarfile.open(arguments.out / "recordings.tar.xz", "w:xz", preset=4) as pack:
        for path in sorted(work.rglob("*")):
            if path.is_file() and "generated" not in path.parts and path.stat().st_size < 60e6:
                pack.add(path, path.relative_to(work))
    table(rows)


def measure(name: str, work: Path, plain_runs: int) -> dict[str, Any]:
    script, *words = PROGRAMS[name].split()
    program = [str(HERE / script), *words]
    row: dict[str, Any] = {"name": name, "plain_ms": [], "plain_s": []}
    for _ in range(max(1, plain_runs - 1)):
        plain(program, row)
    folder = work / name
    began = time.perf_counter()
    ran = subprocess.run(
        [sys.executable, "-m", "kinetoscope", "run", "-o", str(folder), "--", *program],
        capture_output=True,
        text=True,
        timeout=400,
    )
    row["run_s"] = time.perf_counter() - began
    (work / f"{name}.run.txt").write_text(ran.stdout + ran.stderr)
    row["watched_ms"] = step_ms(ran.stdout)
    if plain_runs > 1:
        plain(program, row)
    target = work / f"{name}.json"
    report = subprocess.run(
        [sys.executable, "-m", "kinetoscope", "report", str(folder), "-o", str(target)],
        capture_output=True,
        text=True,
    )
    text = subprocess.run(
        [sys.executable, "-m", "kinetoscope", "report", str(folder)],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "120"},
    ).stdout
    (work / f"{name}.txt").write_text(text + report.stderr)
    if report.returncode:
        row["error"] = (ran.stderr + report.stderr)[-300:]
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
    print(name, row["plain_ms"], runs.get("step_us"), runs.get("busy_fraction"), flush=True)
    return row


def plain(program: list[str], row: dict[str, Any]) -> None:
    began = time.perf_counter()
    done = subprocess.run([sys.executable, *program], capture_output=True, text=True, timeout=300)
    row["plain_s"].append(time.perf_counter() - began)
    row["plain_ms"].append(step_ms(done.stdout))
    if done.returncode:
        print(done.stderr[-500:], flush=True)


def step_ms(text: str) -> float | None:
    found = re.search(r"step_ms ([\d.]+)", text)
    return float(found[1]) if found else None


def table(rows: list[dict[str, Any]]) -> None:
    print(
        f"\n{'program':16}{'plain ms':>18}{'said ms':>9}{'ratio':>7}{'busy':>7}{'rec. busy':>10}"
        f"{'plain s':>8}{'run s':>7}  first finding"
    )
    for row in rows:
        plains = [ms for ms in row["plain_ms"] if ms]
        said = (row.get("as_it_runs") or {}).get("step_us", {}).get("median")
        ratio = said / 1e3 / statistics.mean(plains) if said and plains else None
        busy = (row.get("as_it_runs") or {}).get("busy_fraction")
        recorded = max((device["busy_fraction"] for device in row.get("devices", [])), default=None)
        first = (row.get("findings") or [{}])[0]
        print(
            f"{row['name']:16}{', '.join(f'{ms:.2f}' for ms in plains):>18}"
            f"{figure(said and said / 1e3, 9, 3)}{figure(ratio, 7, 3)}"
            f"{figure(busy, 7, 3)}{figure(recorded, 10, 3)}"
            f"{figure(min(row['plain_s']), 8, 1)}{figure(row.get('run_s'), 7, 1)}  "
            f"{first.get('rule', '')} {figure(first.get('saving_us'), 8, 0)} µs"
        )


def figure(value: float | None, width: int, digits: int) -> str:
    return f"{'–':>{width}}" if value is None else f"{value:{width}.{digits}f}"


if __name__ == "__main__":
    main()
