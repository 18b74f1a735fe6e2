"""The results that `bench` and `tune` leave in a recording, and those that can prove a saving."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from kinetoscope.bench.measure import results
from kinetoscope.bench.request import BenchResult
from kinetoscope.bench.tune.largest import LargestBatch
from kinetoscope.bench.tune.results import Tuning
from kinetoscope.bench.versions.campaign import VersionsCompared
from kinetoscope.errors import InputError
from kinetoscope.recording import plain_file

_KINDS: dict[str, type[Tuning | BenchResult]] = {"tune": Tuning, "autotune": BenchResult}


class Kept(NamedTuple):
    """Results of a recording, the newest first; ``problems`` names the files that cannot be read."""

    tunings: tuple[Tuning, ...] = ()
    autotuned: tuple[BenchResult, ...] = ()
    problems: tuple[str, ...] = ()


def keep(folder: Path, kind: str, result: BenchResult | Tuning | LargestBatch | VersionsCompared) -> None:
    """Write a result, with every sample, into ``folder/bench``; its name ends with the time."""
    results.save(folder, f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}", result)


def read(folder: Path) -> Kept:
    """The settings and configurations compared in a recording; other measurements prove no saving."""
    documents = [_document(path) for path in sorted((folder / "bench").glob("*.json"), reverse=True)]
    return Kept(
        tuple(document for document in documents if isinstance(document, Tuning)),
        tuple(document for document in documents if isinstance(document, BenchResult)),
        tuple(document for document in documents if isinstance(document, str)),
    )


def _document(path: Path) -> Tuning | BenchResult | str | None:
    """A result, or what is wrong with its file; None for other files."""
    kind = _KINDS.get(path.name.partition("-")[0])
    try:
        return msgspec.json.decode(plain_file.content(path), type=kind) if kind else None
    except (OSError, msgspec.MsgspecError) as error:
        return str(InputError(f"not a measurement of kinetoscope: {error}", where=str(path)))
