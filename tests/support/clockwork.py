"""MeasurementSet on a clock that only the measured calls move."""

from __future__ import annotations

from collections.abc import Callable

from kinetoscope.bench.measure.harness import measure
from kinetoscope.bench.measure.results import MeasurementSet
from kinetoscope.bench.measure.timers import HostTimer


def measured(**medians_ns: float) -> MeasurementSet:
    """Calls that take exactly so long, the first the base; an underscore in a name is a space."""
    now = 0.0

    def call(median_ns: float) -> Callable[[], None]:
        def run() -> None:
            nonlocal now
            now += median_ns

        return run

    subjects = {name.replace("_", " "): call(median) for name, median in medians_ns.items()}
    timer = HostTimer(flush=lambda: None, clock=lambda: int(now))
    return measure(subjects, timer=timer, mode="cold", base=next(iter(subjects)), warmup_seconds=0)
