"""A run's tables as Parquet files, as ``kinetoscope query --tables`` lists them."""

from __future__ import annotations

import os
from pathlib import Path

from kinetoscope.analysis.query import tables
from kinetoscope.sources.run import Run


def write(run: Run, folder: Path) -> list[Path]:
    """Write one file a table into ``folder``, which is there; the files' paths."""
    written: list[Path] = []
    for name, frame in tables(run).items():
        written.append(folder / f"{name}.parquet")
        partial = folder / f".{name}.parquet.{os.getpid()}"
        try:
            frame.sink_parquet(partial, compression="zstd")
            partial.replace(written[-1])
        finally:
            partial.unlink(missing_ok=True)
    return written
