"""A run as the one file of another tool, or as Parquet or CSV files of its tables."""

from __future__ import annotations

import gzip
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import polars as pl

from kinetoscope.errors import UsageError
from kinetoscope.export import perfetto, pftrace, speedscope
from kinetoscope.render import destination
from kinetoscope.sources.run import LoadedRun

Format = Literal["perfetto", "speedscope"]


def rendered(run: LoadedRun, to: Format, path: Path) -> bytes:
    """The content of a file of that name: ``.pftrace`` is Perfetto's own format, ``.gz`` compressed."""
    if to == "speedscope":
        content = speedscope.render(run)
    else:
        content = pftrace.render(run) if path.suffix == ".pftrace" else perfetto.render(run)
    return gzip.compress(content, compresslevel=6) if path.suffix == ".gz" else content


def tables(
    frames: Mapping[str, pl.LazyFrame],
    folder: Path,
    to: Literal["parquet", "csv"],
    inputs: Sequence[str] = (),
) -> list[Path]:
    """Write one file a table into ``folder``, which is there, all of them or none; the files' paths. The
    tables are those that ``kinetoscope query --tables`` lists. Raises UsageError where the system does not
    let us, or a file of that name is one of the inputs."""
    written = {folder / f"{name}.{to}": frame for name, frame in frames.items()}
    for path in written:
        destination.check(path, inputs)
    partial = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in written}
    try:
        for path, frame in written.items():
            if to == "csv":
                frame.sink_csv(partial[path])
            else:
                frame.sink_parquet(partial[path], compression="zstd")
        for path, temporary in partial.items():
            temporary.replace(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UsageError(f"cannot write the tables: {error}", where=f"-o {folder}") from error
    finally:
        for temporary in partial.values():
            temporary.unlink(missing_ok=True)
    return list(written)
