"""Work that is the same every time: how far its times are apart is the machine's own noise."""

from __future__ import annotations

import time
from collections.abc import Callable

from kinetoscope.bench.measure.device import import_torch
from kinetoscope.statistics import distribution

ON_DEVICE, ON_HOST = 2048, 192  # rows of the square product that is calculated
CALLS, SAMPLES = 20, 5


def calibration() -> Callable[[], float]:
    """What times a matrix product here: seconds of one call, the median of a few samples. On the device
    where there is one."""
    torch = import_torch()
    on_device = torch.cuda.is_available()
    size = ON_DEVICE if on_device else ON_HOST
    left = torch.full((size, size), 0.5, device="cuda" if on_device else "cpu")

    def wait() -> None:
        if on_device:
            torch.cuda.synchronize()

    def sample() -> float:
        wait()
        began = time.perf_counter()
        for _ in range(CALLS):
            torch.mm(left, left)
        wait()
        return (time.perf_counter() - began) / CALLS

    def timed() -> float:
        sample()
        return distribution.median([sample() for _ in range(SAMPLES)])

    return timed
