"""The card's clocks, power and temperature while it is measured, from NVML. Nothing is ever set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from kinetoscope.bench.measure.results import ClockReading
from kinetoscope.hardware import nvml

Moment = Literal["before", "during", "after"]
Clocks = Callable[[Moment, int], ClockReading]
"""Reads them at a moment of a round."""


def of_current_device() -> Clocks | None:
    """Clocks of the CUDA device in use, or None where NVML is not there (AMD, containers without it)."""
    import torch

    if not torch.cuda.is_available() or torch.version.hip is not None:
        return None
    try:  # by its UUID: indices differ between CUDA and NVML
        card = nvml.Card(str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))
    except nvml.NvmlError:
        return None
    return lambda moment, round: ClockReading(moment=moment, round=round, **card.read()._asdict())
