"""The card's clocks, power and temperature while it is measured, from NVML. Nothing is ever set."""

from __future__ import annotations

from typing import Literal, Protocol

from kinetoscope.bench.measure.results import ClockReading
from kinetoscope.hardware import nvml

Moment = Literal["before", "during", "after"]


class Clocks(Protocol):
    """Injected into the harness; tests give made-up readings."""

    def read(self, moment: Moment, round: int) -> ClockReading: ...


class NvmlClocks:
    """Readings of one card.

    Args:
        uuid: ``torch.cuda.get_device_properties(i).uuid``; indices differ between CUDA and NVML.
    """

    def __init__(self, uuid: str) -> None:
        self._card = nvml.Card(uuid)

    def read(self, moment: Moment, round: int) -> ClockReading:
        return ClockReading(moment=moment, round=round, **self._card.read()._asdict())


def of_current_device() -> NvmlClocks | None:
    """Clocks of the CUDA device in use, or None where NVML is not there (AMD, containers without it)."""
    import torch

    if not torch.cuda.is_available() or torch.version.hip is not None:
        return None
    try:
        return NvmlClocks(str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))
    except nvml.NvmlError:
        return None
