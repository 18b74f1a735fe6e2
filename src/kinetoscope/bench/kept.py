"""What `bench` and `tune` left in a recording: the results that can prove something."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from kinetoscope.bench.measure import results
from kinetoscope.bench.tune.rows import Tuning
from kinetoscope.bench.worker import Result
from kinetoscope.errors import InputError


class Kept(NamedTuple):
    """Results of a recording, the newest first; ``problems`` names the files that cannot be read."""

    tunings: tuple[Tuning, ...] = ()
    autotuned: tuple[Result, ...] = ()
    problems: tuple[str, ...] = ()


def read(folder: Path) -> Kept:
    """The settings and configurations that were compared in ``folder/bench``; other measurements prove no saving."""
    # Their names end with the time at which they were written.
    found = [_document(path) for path in sorted((folder / "bench").glob("*.json"), reverse=True)]
    return Kept(
        tuple(document for document in found if isinstance(document, Tuning)),
        tuple(document for document in found if isinstance(document, Result)),
        tuple(document for document in found if isinstance(document, str)),
    )


def _document(path: Path) -> Tuning | Result | str | None:
    """A result, or what is wrong with its file; None for other files."""
    try:
        if path.name.startswith("tune-"):
            return results.load(path, Tuning)
        return results.load(path, Result) if path.name.startswith("autotune-") else None
    except InputError as error:
        return str(error)
