"""What the watch over the whole run costs a program, by pairs of the same steps with it and without.

    python benchmarks/watch.py [--device cuda] [--pairs 30] [--seconds 1.0]

One process trains a small network whose step is paced by its host, in blocks of some seconds: the sampler's
thread runs in one block of each pair and not in the other, in an order drawn at random. Given are the time of
a step with it over the time without, as a mean of pairs with a 95 % interval: elapsed, and of the processor
(the training thread's own time, which other programs on the machine disturb less); and what the sampler's
thread took of a processor. The watch takes fewer samples the longer a program runs: --seconds of at most 10
show what it costs at first, which is the most.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from kinetoscope.capture.process.whole_run import Sampler
from kinetoscope.statistics.intervals import Ratio, compare_rounds


class Block(NamedTuple):
    """Seconds of a step: elapsed, and of the training thread's processor."""

    elapsed_s: float
    processor_s: float


def step_of(device: str) -> Callable[[], None]:
    """A step of training: eight layers and their optimizer."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(8)]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    data = torch.randn(32, 64, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    return step


def block(step: Callable[[], None], device: str, seconds: float) -> Block:
    """Steps for so many seconds."""
    steps, began, thread = 0, time.perf_counter(), time.thread_time()
    while time.perf_counter() - began < seconds:
        step()
        steps += 1
    if device == "cuda":
        torch.cuda.synchronize()
    return Block((time.perf_counter() - began) / steps, (time.thread_time() - thread) / steps)


def words(what: str, ratio: Ratio) -> str:
    low, high = 100 * (ratio.low - 1), 100 * (ratio.high - 1)
    return f"{what:28} {100 * (ratio.ratio - 1):+.2f} % ({low:+.2f} to {high:+.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a block")
    given = parser.parse_args()
    torch.set_num_threads(1)
    step, draw = step_of(given.device), random.Random(0)
    block(step, given.device, 2.0)
    without, watched = list[Block](), list[Block]()
    spent_s = watched_s = 0.0
    for _ in range(given.pairs):
        for with_it in draw.sample([False, True], 2):
            sampler = Sampler(lambda: "timed")
            if with_it:
                sampler.begin()
            began = time.perf_counter()
            (watched if with_it else without).append(block(step, given.device, given.seconds))
            sampler.end()
            if with_it:
                watched_s += time.perf_counter() - began
                spent_s += sampler.cpu_s
    for what in Block._fields:
        pairs = ([getattr(one, what) for one in side] for side in (without, watched))
        print(words(what.replace("_s", " time of a step"), compare_rounds(*pairs)))
    print(f"the sampler's thread took    {100 * spent_s / watched_s:.2f} % of a processor")


if __name__ == "__main__":
    main()
