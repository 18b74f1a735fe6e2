"""What looking at the whole run costs: steps with and without the thread that looks, in turn, in one process.

    PYTHONPATH=src python tests/gpu/price_of_the_watch.py OUT [--pairs 40]

The host sets the pace of the steps, which launch short kernels one by one: what the thread takes, and the
lock of Python that it holds meanwhile, is not hidden behind the device. Runs of steps follow each other
without, with, with, without; in each with the thread it begins anew, so that it looks as often as it ever
does. Prints the mean of the pairs' differences and its 95 % interval, and of two runs without the thread
likewise, which is what chance does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import nn

from kinetoscope.capture.process.whole_run import Sampler
from kinetoscope.recording.whole_run import PERIODS

WIDE, LAYERS = 256, 40


def stretch(model: nn.Module, x: torch.Tensor, steps: int) -> float:
    """Seconds a step."""
    device = torch.cuda.synchronize if x.is_cuda else lambda: None
    device()
    began = time.perf_counter()
    with torch.no_grad():
        for _ in range(steps):
            model(x)
    device()
    return (time.perf_counter() - began) / steps


def watched(model: nn.Module, x: torch.Tensor, steps: int) -> tuple[float, float]:
    """Seconds a step while the thread looks, and the part of the time that the thread had a processor for."""
    sampler = Sampler(lambda: PERIODS[0])
    sampler.begin()
    try:
        step_s = stretch(model, x, steps)
        return step_s, sampler.cpu_s / (step_s * steps)
    finally:
        sampler.end()


def interval(differences: list[float]) -> tuple[float, float]:
    """The mean and the half of its 95 % interval."""
    return statistics.mean(differences), 2 * statistics.stdev(differences) / len(differences) ** 0.5


def main() -> None:
    """Measure in turn and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a stretch")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layers = [nn.Sequential(nn.Linear(WIDE, WIDE), nn.LayerNorm(WIDE), nn.GELU()) for _ in range(LAYERS)]
    model, x = nn.Sequential(*layers).to(device), torch.randn(8, WIDE, device=device)
    stretch(model, x, 200)
    steps = max(1, round(arguments.seconds / stretch(model, x, 200)))
    rows: dict[str, list[float]] = {"watched": [], "chance": [], "processor": []}
    for _ in range(arguments.pairs // 2):
        before = stretch(model, x, steps)
        (first, took), (second, took_again) = watched(model, x, steps), watched(model, x, steps)
        after = stretch(model, x, steps)
        rows["watched"].append((first + second) / (before + after) - 1)
        rows["chance"].append(2 * (after - before) / (before + after))
        rows["processor"] += [took, took_again]
    (arguments.out / "price_of_the_watch.json").write_text(json.dumps(rows, indent=1))
    processor = 100 * statistics.mean(rows["processor"])
    print(f"{steps} steps a stretch; the thread had a processor for {processor:.2f} % of the time")
    for name in ("watched", "chance"):
        mean, half = interval(rows[name])
        print(f"{name:8} {100 * mean:+.2f} % ± {100 * half:.2f}")


if __name__ == "__main__":
    main()
