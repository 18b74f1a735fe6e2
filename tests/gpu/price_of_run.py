"""What `kinetoscope run` costs programs of a minute: wall time to the end, plain and recorded in turn.

    PYTHONPATH=src python tests/gpu/price_of_run.py OUT [NAME=STEPS ...] [--rounds 2]

The names are those of programs in ``unseen/`` and its sets; STEPS is how many steps take about a minute. All
programs run side by side, all plain or all recorded, so that what one does to the others is in both.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

UNSEEN = Path(__file__).resolve().parent / "unseen"
PROGRAMS = [
    "tenth/qmix_maze=500",
    "tenth/zeroshot_labels=1500",
    "tenth/tabnet_forest=250",
    "tenth/siglip_compiled=600",
]


def once(program: str, out: Path, recorded: bool) -> dict[str, float | int | str]:
    """Run a program to its end; its wall time in seconds, its exit status and what it said last."""
    name, _, steps = program.partition("=")
    words = [sys.executable, str(UNSEEN / f"{name}.py")]
    if recorded:
        words[1:1] = ["-m", "kinetoscope", "run", "-o", str(out / Path(name).name), "--"]
    began = time.perf_counter()
    done = subprocess.run(
        words, env=os.environ | {"STEPS": steps, "FIX": ""}, capture_output=True, text=True, timeout=200
    )
    took = time.perf_counter() - began
    said = [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("kinetoscope:")]
    return {"wall_s": took, "status": done.returncode, "tail": "\n".join(said[-6:])[-600:]}


def main() -> None:
    """Measure in turn and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("programs", nargs="*", default=PROGRAMS)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows: dict[str, dict[str, list[float]]] = {name: {"plain": [], "run": []} for name in arguments.programs}
    for turn in range(arguments.rounds):
        for kind in ("plain", "run")[:: 1 if turn % 2 == 0 else -1]:
            work = Path("/tmp") / f"price-{turn}"
            with ThreadPoolExecutor(len(rows)) as pool:
                results = list(pool.map(lambda name: once(name, work, kind == "run"), rows))  # noqa: B023
            for name, result in zip(rows, results, strict=True):
                rows[name][kind].append(result["wall_s"])
                print(turn, kind, name, f"{result['wall_s']:.1f} s, status {result['status']}", flush=True)
                if result["status"] or turn == 0:
                    print(re.sub("^", "    ", str(result["tail"]), flags=re.M), flush=True)
            (arguments.out / "price_of_run.json").write_text(json.dumps(rows, indent=1))
    print(f"{'program':28}{'plain s':>24}{'run s':>24}{'ratio':>8}")
    for name, row in rows.items():
        plain, recorded = (" ".join(f"{value:.1f}" for value in row[kind]) for kind in ("plain", "run"))
        print(f"{name:28}{plain:>24}{recorded:>24}{median(row['run']) / median(row['plain']):8.3f}")


if __name__ == "__main__":
    main()
