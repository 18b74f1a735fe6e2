"""A server's steps by the raw events of a trace: what the table of steps must say, computed without it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean, median
from typing import Any

Event = dict[str, Any]
MARK = re.compile(r"step\[|execute_(\d+_)?context_|execute_diffusion_")
WORK = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")


@dataclass
class Step:
    """What was launched while its mark was open; times in µs."""

    work: list[Event] = field(default_factory=list)
    launches: set[int] = field(default_factory=set)

    @property
    def first(self) -> float:
        return min(one["ts"] for one in self.work)

    @property
    def last(self) -> float:
        return max(one["ts"] + one["dur"] for one in self.work)


def steps_of(events: Sequence[Event], mark: re.Pattern[str] = MARK) -> list[Step]:
    """The steps of the finest marks that match, in the order of their first work."""
    launched = {
        one["args"]["correlation"]: one["ts"]
        for one in events
        if one.get("cat") in CALLS and one.get("args", {}).get("correlation")
    }
    found: list[Step] = []
    for one in events:
        if one.get("cat") != "user_annotation" or not mark.match(one["name"]):
            continue
        step = Step()
        for work in events:
            number = work.get("args", {}).get("correlation")
            at = launched.get(number)
            if work.get("cat") in WORK and at is not None and one["ts"] <= at < one["ts"] + one["dur"]:
                step.work.append(work)
                step.launches.add(number)
        if step.work:
            found.append(step)
    return sorted(found, key=lambda step: step.first)


def union(events: Iterable[Event], low: float = float("-inf"), high: float = float("inf")) -> float:
    """The time in which any of them ran, between two times."""
    total, until = 0.0, low
    for begin, end in sorted((one["ts"], one["ts"] + one["dur"]) for one in events):
        begin, end = max(begin, until), min(end, high)
        total += max(0.0, end - begin)
        until = max(until, end)
    return total


def exposed(work: Sequence[Event], part: Callable[[Event], str]) -> dict[str, float]:
    """For each part the time in which it alone ran, by looking at every moment at which something changes."""
    moments = sorted({time for one in work for time in (one["ts"], one["ts"] + one["dur"])})
    found = dict.fromkeys(map(part, work), 0.0)
    for begin, end in pairwise(moments):
        middle = (begin + end) / 2
        running = {part(one) for one in work if one["ts"] <= middle < one["ts"] + one["dur"]}
        if len(running) == 1:
            found[running.pop()] += end - begin
    return found


@dataclass
class Figures:
    """Of all steps: medians, and of idle time and parts means, as a row of the table has them."""

    span_us: float
    busy_us: float
    period_us: float | None
    between_us: float | None
    idle_us: float
    kernels: float
    launches: float
    exposed: dict[str, float]


def figures(events: Sequence[Event], part: Callable[[Event], str], mark: re.Pattern[str] = MARK) -> Figures:
    """What one row says of steps that are all alike."""
    steps = steps_of(events, mark)
    work = [one for one in events if one.get("cat") in WORK]
    pairs = list(pairwise(steps))
    # Of a step whose last work runs during the next one no moment is idle in both.
    begins = [max(b.first, min(a.last, b.last)) for a, b in pairwise([steps[0], *steps])]
    begins[0] = steps[0].first
    idle = [step.last - at - union(work, at, step.last) for at, step in zip(begins, steps, strict=True)]
    between = [b.first - a.last - union(work, a.last, b.first) for a, b in pairs if b.first > a.last]
    by_part = [exposed(step.work, part) for step in steps]
    return Figures(
        span_us=median(step.last - step.first for step in steps),
        busy_us=median(union(step.work) for step in steps),
        period_us=median(b.first - a.first for a, b in pairs) if pairs else None,
        between_us=median(b.first - a.last for a, b in pairs) if pairs else None,
        idle_us=(sum(idle) + sum(between)) / len(steps),
        kernels=median(len(step.work) for step in steps),
        launches=median(len(step.launches) for step in steps),
        exposed={name: mean(one.get(name, 0.0) for one in by_part) for one in by_part for name in one},
    )
