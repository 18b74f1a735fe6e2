"""The instruments of this machine: timers and clocks. Chosen once; everything else is injected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from msgspec import structs

from kinetoscope.bench.measure import timers
from kinetoscope.bench.measure.results import ClockReading
from kinetoscope.bench.measure.timers import Timer
from kinetoscope.capture.process.environment import cpu_name
from kinetoscope.errors import MissingDependencyError, UsageError
from kinetoscope.hardware import nvml

Moment = Literal["before", "during", "after"]
Clocks = Callable[[Moment, int], ClockReading]  # reads them at a moment of a round


def clocks_of_current_device() -> Clocks | None:
    """Clocks of the CUDA device in use, or None where NVML is not there (AMD, containers without it)."""
    import torch

    if not torch.cuda.is_available() or torch.version.hip is not None:
        return None
    try:  # by its UUID: indices differ between CUDA and NVML
        card = nvml.Card(str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))
    except nvml.NvmlError:
        return None
    return clocks_of(card)


def clocks_of(card: nvml.Card) -> Clocks:
    """The clocks of one card."""
    return lambda moment, round: ClockReading(moment=moment, round=round, **structs.asdict(card.read()))


# A sample of wall time waits for the device once for this long an interval of calls.
WALL_SAMPLE_NS = 50_000_000


class Bench(NamedTuple):
    device: str
    name: str
    timer: Timer
    wall: Timer
    clocks: Clocks | None


def import_torch() -> Any:
    """The user's torch. Raises MissingDependencyError where it is not installed in this interpreter."""
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(
            "measuring needs PyTorch, and this Python has none",
            hint="run kinetoscope with the Python that runs your program",
        ) from error
    return torch


def bench_for(device: str, timer: str | None = None) -> Bench:
    """The bench for kernels that run on ``device`` (``cuda`` or ``cpu``). ``timer``: activity, events,
    graph or host; by default activity records on a GPU and the host's clock on a CPU. Raises UsageError where
    the kernels need a device that is not here, or the timer does not fit it."""
    torch = import_torch()
    if device == "cpu":
        if timer not in (None, "host"):
            raise UsageError(f"the timer {timer!r} needs a GPU", hint="leave --timer away")
        host = timers.HostTimer(timers.host_flush())
        return Bench("cpu", cpu_name() or "CPU", host, timers.HostTimer(shortest_ns=WALL_SAMPLE_NS), None)
    if device != "cuda" or not torch.cuda.is_available():
        raise UsageError(
            f"the kernels were made for {device}, and PyTorch sees no such device here",
            hint="run this on a machine with such a device; the recording holds all that is needed",
        )
    if timer == "host":
        made: Timer = timers.HostTimer(timers.device_flush(), torch.cuda.synchronize)
    else:
        on_device = {"events": timers.EventTimer, "graph": timers.GraphTimer}
        made = on_device.get(timer or "", timers.ActivityTimer)()
    return Bench(
        f"cuda:{torch.cuda.current_device()}",
        torch.cuda.get_device_name(),
        made,
        timers.HostTimer(None, torch.cuda.synchronize, shortest_ns=WALL_SAMPLE_NS),
        clocks_of_current_device(),
    )
