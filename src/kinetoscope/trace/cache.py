"""Parsed tables kept as Parquet, so that opening a trace again takes a tenth of a second.

For a recording they lie in its own folder, ``tables/``; for a bare trace in the user's cache folder, never
next to the user's file. An entry is a folder named by this version of the reader and by what the file holds:
its size, its modification time, and a hash of its first and last 64 KiB and of sixteen blocks between. (Only
an edit that keeps the size, misses all of those and sets the modification time back would be mistaken for the
original.) Entries are written elsewhere and renamed into place, so readers and other writers never see half
of one; one that cannot be read is as good as none.

``KINETOSCOPE_CACHE=0`` turns it off; ``KINETOSCOPE_CACHE_SIZE`` (bytes; 2 GiB if not set) bounds the user's
folder, from which the entries unused for longest go first.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from kinetoscope import __version__
from kinetoscope.recording import manifest, plain_file
from kinetoscope.trace.model import DeviceProperties, Source, Trace

if TYPE_CHECKING:
    import polars as pl

    from kinetoscope.trace.schema import Schema

WORTH_KEEPING = 5_000  # events; keeping their tables costs a sixth of what each later reading saves
CLEANED_AFTER = 50_000  # events; looking at all entries costs more than keeping fewer
_DEFAULT_SIZE = 2 << 30
_EDGE = 64 << 10
_SAMPLES, _SAMPLE = 16, 4 << 10
_REFERENCES = {  # columns that hold numbers of rows, and of which table's
    "host_events": {"lane": "lanes", "parent": "host_events"},
    "device_events": {"lane": "lanes", "launch": "host_events", "op": "host_events", "step": "steps"},
    "steps": {"host_event": "host_events"},
}
_FACTS = "facts.json"


class _Facts(msgspec.Struct, frozen=True):
    source: Source
    devices: tuple[DeviceProperties, ...]
    metadata: dict[str, object]
    files: dict[str, tuple[int, int]] = {}  # of each table, its rows and the bytes of its file


def recall(path: Path, part: int | None = None) -> Trace | None:
    """The trace of this file (the one of that number, where it holds several), if its tables were kept."""
    folder = _entry(path, part)
    if folder is None or not folder.is_dir():
        return None
    import polars as pl

    from kinetoscope.trace import schema

    try:
        facts = msgspec.json.decode(plain_file.content(folder / _FACTS), type=_Facts)
        tables = {
            name: _table(folder, name, declared, facts.files[name])
            for name, declared in schema.TABLES.items()
        }
        _check_references(tables)
        os.utime(folder)
    except (OSError, msgspec.DecodeError, pl.exceptions.PolarsError, ValueError, KeyError, RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
        return None
    return Trace(
        source=replace(facts.source, path=str(path), unused=MappingProxyType(facts.source.unused)),
        devices=tuple(
            replace(device, properties=MappingProxyType(device.properties)) for device in facts.devices
        ),
        metadata=MappingProxyType(facts.metadata),
        **tables,
    )


def keep(path: Path, trace: Trace, part: int | None = None) -> None:
    """Keep the tables for the next time; a folder that cannot be written to is no error."""
    folder = _entry(path, part)
    if folder is None or trace.source.events < WORTH_KEEPING or folder.is_dir():
        return
    import polars as pl

    from kinetoscope.trace import schema

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder.parent))
    except OSError:
        return
    try:
        for name in schema.TABLES:
            trace.table(name).write_parquet(
                partial / f"{name}.parquet", compression="zstd", compression_level=1, statistics=False
            )
        files = {
            name: (len(trace.table(name)), (partial / f"{name}.parquet").stat().st_size)
            for name in schema.TABLES
        }
        facts = _Facts(trace.source, trace.devices, dict(trace.metadata), files)
        (partial / _FACTS).write_bytes(msgspec.json.encode(facts, enc_hook=dict))
        partial.rename(folder)
        if trace.source.events >= CLEANED_AFTER or folder.name.startswith("0"):  # else one time in sixteen
            _forget_oldest(folder)
    except (OSError, pl.exceptions.PolarsError):  # no space, or another writer was first
        pass
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def user_folder() -> Path:
    """Where this platform keeps what can be made again."""
    if home := os.environ.get("XDG_CACHE_HOME"):
        return Path(home) / "kinetoscope"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "kinetoscope"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "kinetoscope" / "Cache"
    return Path.home() / ".cache" / "kinetoscope"


def _entry(path: Path, part: int | None) -> Path | None:
    if os.environ.get("KINETOSCOPE_CACHE") == "0" or not path.is_file():  # opening a pipe would wait
        return None
    try:
        key = _key(path)
    except OSError:
        return None
    return _home(path) / f"{key}{'' if part is None else f'-{part}'}-{__version__}-{_code()}"


@functools.cache
def _code() -> str:
    """The reader's own code: what another version of it wrote may mean something else."""
    times = [module.stat().st_mtime_ns for module in sorted(Path(__file__).parent.rglob("*.py"))]
    return hashlib.blake2b(repr(times).encode(), digest_size=6).hexdigest()


def _home(path: Path) -> Path:
    for folder in path.absolute().parents[:2]:
        tables = folder / "tables"
        if manifest.is_recording(folder) and os.access(folder, os.W_OK) and not tables.is_symlink():
            return tables
    return user_folder() / "traces"


def _key(path: Path) -> str:
    with path.open("rb") as file:
        facts = os.fstat(file.fileno())
        digest = hashlib.blake2b(f"{facts.st_size} {facts.st_mtime_ns}".encode(), digest_size=16)
        starts = [0, *(facts.st_size * part // (_SAMPLES + 1) for part in range(1, _SAMPLES + 1))]
        for start in starts:
            file.seek(start)
            digest.update(file.read(_SAMPLE if start else _EDGE))
        file.seek(max(0, facts.st_size - _EDGE))
        digest.update(file.read(_EDGE))
    return digest.hexdigest()


def _table(folder: Path, name: str, declared: Schema, expected: tuple[int, int]) -> pl.DataFrame:
    import polars as pl

    from kinetoscope.trace import schema

    path = folder / f"{name}.parquet"
    if not path.is_file() or path.stat().st_size != expected[1]:
        raise ValueError(f"{name} is not what was kept")
    table = pl.read_parquet(path)
    if len(table) != expected[0]:
        raise ValueError(f"{name} is not what was kept")
    if table.schema != pl.DataFrame(schema=schema.dtypes(declared)).schema:
        raise ValueError(f"{name} is not as declared")
    return table


def _check_references(tables: dict[str, pl.DataFrame]) -> None:
    """Raise ValueError where a row refers to one that is not there."""
    for table, columns in _REFERENCES.items():
        for column, to in columns.items():
            last = tables[table][column].max()
            if isinstance(last, int) and last >= len(tables[to]):
                raise ValueError(f"{table}.{column} leads nowhere")


def _forget_oldest(newest: Path) -> None:
    """Bring the user's folder under its limit; a recording's own folder has none."""
    home = newest.parent
    if home != user_folder() / "traces":
        return
    text = os.environ.get("KINETOSCOPE_CACHE_SIZE", "")
    left = int(text) if text.isdecimal() else _DEFAULT_SIZE
    entries = [folder for folder in home.iterdir() if folder.is_dir() and not folder.name.startswith(".")]
    for folder in sorted(entries, key=lambda entry: entry.stat().st_mtime, reverse=True):
        left -= sum(file.stat().st_size for file in folder.iterdir())
        if left < 0 and folder != newest:
            shutil.rmtree(folder, ignore_errors=True)
