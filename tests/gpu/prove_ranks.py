"""Prove the comparison of ranks on two GPUs or more: who is late and why, in DDP, FSDP2, tensor and pipeline
parallel.

    PYTHONPATH=src python tests/gpu/prove_ranks.py OUT [CASE ...]

writes the traces of each case as OUT/<case>_rank<N>.json.gz, each report as OUT/<case>.json, and a table
last. About 17 seconds a case; CASE is one of them, as ddp-none.
"""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import torch

import proving

PROGRAM = proving.ROOT / "tests" / "gpu" / "programs" / "parallel.py"
CASES = {
    ("ddp", "none"): None,
    ("ddp", "host"): "host",
    ("ddp", "kernel"): "more work",
    ("ddp", "loader"): "data loader",
    ("ddp", "sync"): "host",  # its device had nothing left to do: the pause after it is what costs
    ("fsdp", "none"): None,
    ("fsdp", "host"): "host",
    ("tensor", "host"): "host",
    ("tensor", "kernel"): "more work",
    ("pipeline", "none"): None,
    ("1f1b", "none"): None,
    ("1f1b", "host"): "host",
    ("1f1b", "kernel"): "more work",
}
LIMIT_S = 230


def run(way: str, slow: str, out: Path, gpus: int) -> str:
    """Record one case, compare its ranks, and say in a line what was found and how long it took."""
    name, folder = f"{way}-{slow}", out / "work" / f"{way}-{slow}"
    words = ["--nproc-per-node", str(gpus), "--standalone", str(PROGRAM), "--way", way, "--slow", slow]
    began = time.perf_counter()
    done = proving.kinetoscope(
        *("run", "--one-pass", "--no-report", "--out", folder, "-m", "torch.distributed.run", *words),
        timeout=100,
    )
    (out / f"{name}.stderr.txt").write_text(done.stdout + done.stderr)
    traces = sorted(folder.glob("trace/rank*.json"))
    if len(traces) < gpus:
        return f"{name:<16} {len(traces)} traces, status {done.returncode}"
    for path in traces:
        (out / f"{name}_{path.stem}.json.gz").write_bytes(gzip.compress(path.read_bytes(), 9))
    report = out / f"{name}.json"
    said = proving.kinetoscope("report", folder, "--engine", "local", "-o", report)
    if not report.is_file():
        return f"{name:<16} no report: {said.stderr.strip().splitlines()[-1:]}"
    ranks = json.loads(report.read_text())["ranks"]
    verdict, ideal = ranks["verdict"], ranks["ideal"] or {}
    residual = max((row["residual_us"] or 0.0 for row in ranks["clocks"]), default=0.0)
    expected = CASES[way, slow]
    is_right = verdict["cause"] == expected and (expected is None or verdict["rank"] == gpus - 1)
    return (
        f"{name:<16} {verdict['status']:<10} rank {verdict['rank']!s:<5} {verdict['cause']!s:<16} "
        f"{'right' if is_right else '     '}  {verdict['share_of_waiting']:6.1%}  "
        f"slowdown {ideal.get('slowdown', 0):5.2f}  replay {ideal.get('error', 0):+6.1%}  "
        f"clocks {residual:5.1f} µs  {time.perf_counter() - began:5.1f} s"
    )


def main() -> None:
    parser = proving.arguments(__doc__)
    parser.add_argument("cases", nargs="*", default=["-".join(case) for case in CASES])
    arguments = parser.parse_args()
    out: Path = arguments.out
    gpus, began = torch.cuda.device_count(), time.perf_counter()
    lines: list[str] = [f"{gpus} × {torch.cuda.get_device_name(0)}, torch {torch.__version__}"]
    for way, slow in (case for case in CASES if "-".join(case) in arguments.cases):
        if time.perf_counter() - began > LIMIT_S - 30:
            lines.append(f"{way}-{slow}: no time left")
            continue
        lines.append(run(way, slow, out, gpus))
    proving.show(out, lines)


if __name__ == "__main__":
    main()
