"""`measure`, by which everything is timed here. Which timer, which clocks and when to stop are arguments."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from kinetoscope.bench.measure.device import Clocks, Moment
from kinetoscope.bench.measure.results import ClockReading, MeasurementSet, Mode, RatioToBase, summarize
from kinetoscope.bench.measure.timers import Call, Timer
from kinetoscope.statistics import distribution, intervals

FEWEST_ROUNDS = 24  # fewer rounds than these are never called precise, whatever their spread
# A distribution that settled earlier still has a median that moves: 5 % wide, 400 samples leave it 1 %.
FEWEST_TO_SETTLE = 1000
# Rounds between two looks at the clocks and the stopping rule: as many again as there were, within these.
FEWEST_IN_CHUNK, MOST_IN_CHUNK = 12, 96
SLOW_CLOCK = 0.75  # a sample taken below this fraction of the rated SM clock is marked
TWIN = " (again)"


def measure(
    # name → callable, or several callables that do the same on different buffers (rotated)
    subjects: Mapping[str, Call | Sequence[Call]],
    *,
    timer: Timer,  # how a sample is taken
    mode: Mode = "hot",  # cold flushes the caches before each sample; hot does not
    # compare the others with this one. It runs twice a round; the twin gives the noise floor
    base: str | None = None,
    clocks: Clocks | None = None,  # reads the card's clocks, power and temperature before, during and after
    precision: float = 0.001,  # stop once every median's relative standard error is below this …
    seconds: float = 3.0,  # … or its distribution settled, or this much time went by (two rounds always run)
    warmup_seconds: float = 0.2,  # discarded rounds first, at least two
    seed: int = 0,  # of the order within rounds
    now: Callable[[], float] = time.monotonic,  # a monotonic clock in seconds
) -> MeasurementSet:
    """Time subjects against each other: interleaved in random order, until the result is precise or settled.
    The result has every sample, and a comparison with the base for each other subject."""
    rotations: dict[str, Sequence[Call]] = {
        name: (calls,) if callable(calls) else tuple(calls) for name, calls in subjects.items()
    }
    if base is not None:
        rotations[base + TWIN] = rotations[base]
    order = random.Random(seed)
    samples: dict[str, list[float]] = {name: [] for name in rotations}
    readings: list[ClockReading] = []
    slow_rounds: list[int] = []

    def read(moment: Moment) -> None:
        if clocks is not None:
            readings.append(clocks(moment, len(next(iter(samples.values())))))

    def run(rounds: int, first: int, during: Callable[[], None]) -> list[tuple[str, float]]:
        schedule: list[tuple[str, Call]] = []
        for number in range(first, first + rounds):
            names = list(rotations)
            order.shuffle(names)
            schedule += [(name, rotations[name][number % len(rotations[name])]) for name in names]
        times = timer.time([call for _, call in schedule], mode, during)
        return [(name, time_ns) for (name, _), time_ns in zip(schedule, times, strict=True)]

    read("before")
    began = now()
    warmups, round_seconds = 0, 0.0
    while warmups < 2 or now() - began < min(warmup_seconds, seconds):
        before_round = now()
        run(1 if warmups < 2 else FEWEST_IN_CHUNK, warmups, lambda: None)
        round_seconds = (now() - before_round) / (1 if warmups < 2 else FEWEST_IN_CHUNK)
        warmups += 1

    began = now()
    rounds = 0
    stopped: Literal["precise", "settled", "out of time"] | None = None
    while stopped is None:
        before = len(readings)
        left = (seconds - (now() - began)) / round_seconds if round_seconds > 0 else MOST_IN_CHUNK
        chunk = max(2 - rounds, 1, min(max(FEWEST_IN_CHUNK, rounds), MOST_IN_CHUNK, int(left)))
        for name, time_ns in run(chunk, rounds, lambda: read("during")):
            samples[name].append(time_ns)
        if any((r.sm_clock_mhz or 0) < SLOW_CLOCK * (r.max_sm_clock_mhz or 0) for r in readings[before:]):
            slow_rounds += range(rounds, rounds + chunk)
        rounds += chunk
        stopped = _stop(list(samples.values()), precision, out_of_time=now() - began >= seconds)
    elapsed = now() - began
    read("after")

    notes: list[str] = []
    if any(len(calls) > 1 for calls in rotations.values()):
        notes.append(f"up to {max(len(calls) for calls in rotations.values())} sets of buffers, rotated")
    if slow_rounds:
        notes.append(f"{len(slow_rounds)} of {rounds} rounds ran below 75 % of the rated SM clock")
    return MeasurementSet(
        subjects=tuple(summarize(name, mode, timer.basis, samples[name]) for name in samples),
        comparisons=_compare(samples, base, seed),
        rounds=rounds,
        stopped=stopped,
        seconds=elapsed,
        seed=seed,
        clocks=tuple(readings),
        slow_clock_rounds=tuple(slow_rounds),
        notes=tuple(notes),
    )


def _stop(
    samples: list[list[float]], precision: float, *, out_of_time: bool
) -> Literal["precise", "settled", "out of time"] | None:
    rounds = len(samples[0])
    if rounds >= FEWEST_ROUNDS and all(distribution.relative_standard_error(s) <= precision for s in samples):
        return "precise"
    if rounds >= FEWEST_TO_SETTLE and all(
        distribution.entropy_settled(s, resolution=distribution.median(s) / 200) for s in samples
    ):
        return "settled"
    return "out of time" if out_of_time else None


def _compare(samples: dict[str, list[float]], base: str | None, seed: int) -> tuple[RatioToBase, ...]:
    if base is None:
        return ()
    few = len(samples[base]) < 2 * intervals.SECTIONS

    def against_base(name: str) -> intervals.Ratio:
        if few:
            return intervals.compare_rounds(samples[base], samples[name])
        return intervals.compare(samples[base], samples[name], seed=seed)

    twins = against_base(base + TWIN)
    floor = abs(twins.ratio - 1)
    rows: list[RatioToBase] = []
    for name in samples:
        if name == base:
            continue
        interval = twins if name == base + TWIN else against_base(name)
        beyond = 0.0 if interval is twins else floor
        rows.append(
            RatioToBase(
                name=name,
                base=base,
                **interval._asdict(),
                confidence=intervals.CONFIDENCE,
                noise_floor=floor,
                verdict=intervals.verdict(interval, noise_floor=beyond),
            )
        )
    return tuple(rows)
