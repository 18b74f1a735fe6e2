"""A run as the one file of another tool."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Literal

from kinetoscope.export import perfetto, pftrace, speedscope
from kinetoscope.sources.run import LoadedRun

Format = Literal["perfetto", "speedscope"]


def rendered(run: LoadedRun, to: Format, path: Path) -> bytes:
    """The content of a file of that name: Perfetto's own format where it ends in ``.pftrace``, compressed
    where it ends in ``.gz``."""
    if to == "speedscope":
        content = speedscope.render(run)
    else:
        content = pftrace.render(run) if path.suffix == ".pftrace" else perfetto.render(run)
    return gzip.compress(content, compresslevel=6) if path.suffix == ".gz" else content
