"""A profile's tables as Parquet files, as ``kinetoscope query --tables`` lists them."""

from __future__ import annotations

from pathlib import Path

from kinetoscope.analysis.profile import Profile
from kinetoscope.analysis.query import tables


def write(profile: Profile, folder: Path) -> list[Path]:
    """Write one file a table into ``folder``, which is there; the files' paths."""
    written: list[Path] = []
    for name, frame in tables(profile).items():
        written.append(folder / f"{name}.parquet")
        frame.sink_parquet(written[-1], compression="zstd")
    return written
