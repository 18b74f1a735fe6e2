"""Whose devices a trace is of, by the calls that it holds."""

from __future__ import annotations

from typing import Literal

from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.memo import remembered
from kinetoscope.trace.model import Trace

Maker = Literal["NVIDIA", "AMD", "Intel", "MTIA"]

# The category that runtime and driver calls of each have. Kineto writes HIP's calls as cuda_runtime, too.
_BY_CATEGORY: dict[Maker, str] = {"MTIA": "^mtia_", "Intel": "^xpu_", "AMD": "^hip_"}


@remembered
def maker(trace: Trace) -> Maker | None:
    """Who made the devices; None where no call of a runtime or driver tells."""
    host = trace.host_events
    for name, category in _BY_CATEGORY.items():
        if matching(host, "category", category).any():
            return name
    if matching(host, "name", "^hip[A-Z]").any():
        return "AMD"
    return "NVIDIA" if matching(host, "name", "^(cuda|cu)[A-Z]").any() else None
