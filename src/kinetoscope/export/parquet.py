"""A run's tables as Parquet files, as ``kinetoscope query --tables`` lists them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from kinetoscope.analysis.query import tables
from kinetoscope.errors import UsageError
from kinetoscope.render import destination
from kinetoscope.sources.run import LoadedRun


def write(run: LoadedRun, folder: Path, inputs: Sequence[str] = ()) -> list[Path]:
    """Write one file a table into ``folder``, which is there, all of them or none; the files' paths.

    Raises:
        UsageError: the system does not let us, or a file of that name is one of the inputs.
    """
    written = {folder / f"{name}.parquet": frame for name, frame in tables(run).items()}
    for path in written:
        destination.check(path, inputs)
    partial = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in written}
    try:
        for path, frame in written.items():
            frame.sink_parquet(partial[path], compression="zstd")
        for path, temporary in partial.items():
            temporary.replace(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UsageError(f"cannot write the tables: {error}", where=f"-o {folder}") from error
    finally:
        for temporary in partial.values():
            temporary.unlink(missing_ok=True)
    return list(written)
