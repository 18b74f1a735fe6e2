"""What importing kinetoscope costs a program that is profiled: milliseconds over a bare interpreter.

    python benchmarks/import_time.py

Each module is imported by a fresh interpreter, alternately with one that imports nothing; the fastest of each
counts, since everything that disturbs a start makes it slower.
"""

from __future__ import annotations

import subprocess
import sys
import time

RUNS = 15
MODULES = ("kinetoscope", "kinetoscope.cli", "kinetoscope.capture", "argparse")


def start(code: str) -> float:
    """Seconds from starting an interpreter on ``code`` to its end."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began


def cost(module: str) -> float:
    """Milliseconds that ``import module`` adds to a start."""
    pairs = [(start("pass"), start(f"import {module}")) for _ in range(RUNS)]
    return 1000 * (min(with_module for _, with_module in pairs) - min(bare for bare, _ in pairs))


if __name__ == "__main__":
    for name in MODULES:
        print(f"{name:<22} {cost(name):6.1f} ms")
