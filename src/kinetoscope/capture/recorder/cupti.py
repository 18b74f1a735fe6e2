"""CUPTI, which torch's profiler leaves attached to the process once it has run.

Its hooks in every call of the runtime make a step that the host sets the pace of 1.2 to 1.4 times as long
(docs/everyday.md): steps timed after a recording were not the program's. The profiler attaches it again when
it is needed next.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

# CUDA 13.0: tried with eager programs and with CUDA graphs. Before CUDA 12.6, graphs did not survive it
# (pytorch issue 75504), and between the two nobody has tried.
TRIED = 130_000


def detach(maps: Path = Path("/proc/self/maps")) -> bool:
    """Detach CUPTI where that is known to be safe; False: it stays attached.

    No profiler may be running.
    """
    loaded = _library(maps)
    if loaded is None:
        return False
    try:
        cupti = ctypes.CDLL(loaded)
        version = ctypes.c_uint32()
        known = cupti.cuptiGetVersion(ctypes.byref(version)) == 0 and version.value >= TRIED
        return known and cupti.cuptiFinalize() == 0
    except (OSError, AttributeError):
        return False


def _library(maps: Path) -> str | None:
    """The file of the CUPTI that this process has loaded."""
    try:
        lines = maps.read_text().splitlines()
    except OSError:  # no such file but on Linux
        return None
    return next((line.split(maxsplit=5)[-1] for line in lines if "libcupti.so" in line), None)
