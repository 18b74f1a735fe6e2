"""kinetoscope: where every microsecond of the GPU went, why, and which change buys the most."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinetoscope import types
    from kinetoscope.api import Run, diff, history, load
    from kinetoscope.bench.tune.in_process import tune
    from kinetoscope.capture.api import listen, profile
    from kinetoscope.errors import (
        InputError,
        KinetoscopeError,
        MissingDependencyError,
        NotATraceError,
        ProgramError,
        TooLargeError,
        UsageError,
    )
    from kinetoscope.integrations.notebook import Shell

__version__ = "0.1.0"

# Imported on first use: `import kinetoscope` happens inside profiled programs and must cost next to nothing.
_HOMES = {
    "Run": "kinetoscope.api",
    "load": "kinetoscope.api",
    "diff": "kinetoscope.api",
    "history": "kinetoscope.api",
    "listen": "kinetoscope.capture.api",
    "profile": "kinetoscope.capture.api",
    "tune": "kinetoscope.bench.tune.in_process",
}

__all__ = [
    "InputError",
    "KinetoscopeError",
    "MissingDependencyError",
    "NotATraceError",
    "ProgramError",
    "Run",
    "TooLargeError",
    "UsageError",
    "__version__",
    "diff",
    "history",
    "listen",
    "load",
    "profile",
    "tune",
    "types",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'kinetoscope' has no attribute {name!r}")
    if name == "types":
        return importlib.import_module("kinetoscope.types")
    return getattr(importlib.import_module(_HOMES.get(name, "kinetoscope.errors")), name)


def load_ipython_extension(shell: Shell) -> None:
    """Called by ``%load_ext kinetoscope``."""
    importlib.import_module("kinetoscope.integrations.notebook").load(shell)


def __dir__() -> list[str]:
    return sorted(__all__)
