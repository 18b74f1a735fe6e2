"""On a CUDA device: kernels of replayed graphs have the ops that they have without graphs.

    python tests/gpu/prove_graphs.py OUT

Records each program with and without graphs; prints the share of the replayed time whose op is known, and how
many kernels have another op than where they are launched one by one.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from pathlib import Path

import proving

PROGRAMS = Path(__file__).resolve().parent / "programs"


def recorded(name: str, out: Path, graphs: str) -> Path:
    """The recording of a program with or without graphs."""
    folder = out / f"{name}-{graphs}"
    os.environ["GRAPHS"] = graphs
    done = proving.kinetoscope(
        "run", "--no-report", "--graphs", "-o", folder, "--", PROGRAMS / f"{name}.py", timeout=120
    )
    print(name, f"graphs={graphs}", done.stdout.strip().splitlines()[-1:], done.stderr.strip()[-300:])
    return folder


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for name in ("graph_decode", "reduce_overhead"):
        for graphs in ("1", "0"):
            folder = recorded(name, out, graphs)
            manifest = json.loads((folder / "manifest.json").read_text())
            rank = manifest["ranks"][0]
            print(
                "  captures", rank.get("captures"), rank["steps"].get("notes"), rank["steps"].get("step_name")
            )


def judge(out: Path) -> None:
    """Compare the recordings, on any machine."""
    from kinetoscope.analysis.origins.attribution import belonging
    from kinetoscope.analysis.serving.table import replayed
    from kinetoscope.sources.run import load

    for name in ("graph_decode", "reduce_overhead"):
        ops = {}
        for graphs in ("1", "0"):
            run = load(out / f"{name}-{graphs}")
            table = belonging(run)
            found = defaultdict(set)
            for kernel, op in table.select("name", "op_name").cast(str).iter_rows():
                found[kernel].add(op)
            ops[graphs] = found
            if graphs == "1":
                trace = run.traces[0]
                inside, known, _ = replayed(trace)
                print(f"{name}: {known} of {inside} replayed device events have their op")
        wrong = [
            (kernel, sorted(with_graphs - ops["0"][kernel]))
            for kernel, with_graphs in ops["1"].items()
            if kernel in ops["0"] and not with_graphs <= ops["0"][kernel]
        ]
        print(f"  kernels whose op differs from the run without graphs: {len(wrong)} {wrong[:6]}")


if __name__ == "__main__":
    if sys.argv[1] == "judge":
        judge(Path(sys.argv[2]))
    else:
        main()
