"""kinetoscope: where every microsecond of the GPU went, why, and which change buys the most."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinetoscope.analysis.run import load as load
    from kinetoscope.bench.tune.in_process import tune as tune
    from kinetoscope.capture.api import profile as profile

__version__ = "0.1.0"

# Imported on first use: `import kinetoscope` happens inside profiled programs and must cost next to nothing.
_HOMES = {
    "load": "kinetoscope.analysis.run",
    "profile": "kinetoscope.capture.api",
    "tune": "kinetoscope.bench.tune.in_process",
}

__all__ = ["__version__", "load", "profile", "tune"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'kinetoscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
