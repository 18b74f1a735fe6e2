"""Parsed tables kept as Parquet, so that opening a trace again takes a tenth of a second.

For a recording they lie in its own folder, ``tables/``; for a bare trace in the user's cache folder, never
next to the user's file. An entry is a folder named by this version of the reader and by what the file holds:
its size, its modification time, and a hash of its first and last 64 KiB and of sixteen blocks between. (Only
an edit that keeps the size, misses all of those and sets the modification time back would be mistaken for the
original.) Entries are written elsewhere and renamed into place, so readers and other writers never see half
of one; one that cannot be read is as good as none. Answers (``sources.kept``) lie in the same folders.

``KINETOSCOPE_CACHE=0`` turns it off; ``KINETOSCOPE_CACHE_SIZE`` (bytes; 2 GiB if not set) bounds the user's
folder, from which the entries unused for longest go first. Of a recording's own, answers alone are bounded.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from kinetoscope import __version__
from kinetoscope.recording import manifest, plain_file
from kinetoscope.trace.model import DeviceProperties, Source, Trace

if TYPE_CHECKING:
    import polars as pl

    from kinetoscope.trace.schema import Schema

WORTH_KEEPING = 5_000  # events; keeping their tables costs a sixth of what each later reading saves
CLEANED_AFTER = 50_000  # events; looking at all entries costs more than keeping fewer
ANSWER, ANALYSES = ".answer", ".analyses"  # how the names of entries end that hold no tables of a trace
_DEFAULT_SIZE, _ANSWERS_SIZE = 2 << 30, 64 << 20
_EDGE = 64 << 10
_SAMPLES, _SAMPLE = 16, 4 << 10
_REFERENCES = {  # columns that hold numbers of rows, and of which table's
    "host_events": {"lane": "lanes", "parent": "host_events", "arguments": "host_arguments"},
    "device_events": {
        "lane": "lanes", "launch": "host_events", "op": "host_events", "step": "steps",
        "arguments": "device_arguments",
    },
    "steps": {"host_event": "host_events"},
}  # fmt: skip
_FACTS = "facts.json"


class _Facts(msgspec.Struct, frozen=True):
    source: Source
    devices: tuple[DeviceProperties, ...]
    metadata: dict[str, object]
    files: dict[str, tuple[int, int]] = {}  # of each table, its rows and the bytes of its file


def recall(path: Path, part: int | None = None, *, links: bool = True) -> Trace | None:
    """The trace of this file (the one of that number, where it holds several), if its tables were kept;
    without ``links`` as ``Trace.unlinked`` has it."""
    folder = _entry(path, part)
    if folder is None or not folder.is_dir():
        return None
    import polars as pl

    from kinetoscope.trace import schema

    try:
        facts = msgspec.json.decode(plain_file.content(folder / _FACTS), type=_Facts)
        tables = {
            name: _table(folder, name, declared, facts.files[name], links)
            for name, declared in schema.HELD.items()
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
    place(folder, lambda partial: _write(partial, trace))
    if trace.source.events >= CLEANED_AFTER or folder.name.startswith("0"):  # else one time in sixteen
        forget_oldest(folder)


def _write(folder: Path, trace: Trace) -> None:
    import polars as pl

    from kinetoscope.trace import schema

    try:
        for name in schema.HELD:
            table = getattr(trace, name)
            # Read again, a column without a value would take its full length in memory, and of a table in
            # several groups of rows whoever adds a column would copy all others.
            known = [one.name for one in table if not len(table) or one.null_count() < len(table)]
            table.select(known).write_parquet(
                folder / f"{name}.parquet",
                compression="zstd",
                compression_level=1,
                statistics=False,
                row_group_size=max(1, len(table)),
            )
    except pl.exceptions.PolarsError as error:
        raise OSError(str(error)) from error
    files = {
        name: (len(getattr(trace, name)), (folder / f"{name}.parquet").stat().st_size) for name in schema.HELD
    }
    facts = _Facts(trace.source, trace.devices, dict(trace.metadata), files)
    (folder / _FACTS).write_bytes(msgspec.json.encode(facts, enc_hook=dict))


def place(entry: Path, write: Callable[[Path], object]) -> None:
    """Have an entry written elsewhere, and rename it into place; where that cannot be, there is none."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".writing-", dir=entry.parent))
    except OSError:
        return
    try:
        write(partial)
        partial.rename(entry)
    except OSError:  # no space, or another writer was first
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
    if is_off() or not path.is_file():  # opening a pipe would wait
        return None
    try:
        name = f"{mark(path)}{'' if part is None else f'-{part}'}-{__version__}-{code(Path(__file__).parent)}"
    except OSError:
        return None
    return home(path) / name


def is_kept(path: Path) -> bool:
    """Whether the tables of a file, of one trace, were kept."""
    folder = _entry(path, None)
    return folder is not None and folder.is_dir()


def is_off() -> bool:
    return os.environ.get("KINETOSCOPE_CACHE") == "0"


@functools.cache
def code(folder: Path) -> str:
    """A mark of the code in a folder: what another version of it wrote may mean something else. Raises
    OSError where it is no folder (but in an archive)."""
    files = [os.path.join(root, name) for root, _, names in os.walk(folder) for name in names]
    facts = [(path, os.stat(path)) for path in sorted(files) if "__pycache__" not in path]
    if not facts:
        raise OSError(errno.ENOTDIR, "no code is there", str(folder))
    marks = [(path, status.st_size, status.st_mtime_ns) for path, status in facts]
    return hashlib.blake2b(repr(marks).encode(), digest_size=6).hexdigest()


def home(path: Path) -> Path:
    for folder in path.absolute().parents[:2]:
        tables = folder / "tables"
        if manifest.is_recording(folder) and os.access(folder, os.W_OK) and not tables.is_symlink():
            return tables
    return users()


def users() -> Path:
    """Where entries on what is in no recording are kept."""
    return user_folder() / "traces"


def mark(path: Path) -> str:
    """A mark of what a file holds: as long as it stays, the content does. Raises OSError where it cannot be
    read, or is no file."""
    with plain_file.opened(path) as file:
        facts = os.fstat(file.fileno())
        digest = hashlib.blake2b(f"{facts.st_size} {facts.st_mtime_ns}".encode(), digest_size=16)
        starts = [0, *(facts.st_size * part // (_SAMPLES + 1) for part in range(1, _SAMPLES + 1))]
        for start in starts:
            file.seek(start)
            digest.update(file.read(_SAMPLE if start else _EDGE))
        file.seek(max(0, facts.st_size - _EDGE))
        digest.update(file.read(_EDGE))
    return digest.hexdigest()


def _table(folder: Path, name: str, declared: Schema, expected: tuple[int, int], links: bool) -> pl.DataFrame:
    import polars as pl

    from kinetoscope.trace import schema

    empty = schema.empty(declared)
    if not expected[0] or (name == "flows" and not links):
        return empty
    path = folder / f"{name}.parquet"
    if not path.is_file() or path.stat().st_size != expected[1]:
        raise ValueError(f"{name} is not what was kept")
    kept = pl.scan_parquet(path)
    columns = kept.collect_schema()
    table = kept.drop([] if links else "external_id", strict=False).collect()
    if len(table) != expected[0] or not columns.items() <= empty.schema.items():
        raise ValueError(f"{name} is not what was kept")
    return schema.conform(table, declared)


def _check_references(tables: dict[str, pl.DataFrame]) -> None:
    """Raise ValueError where a row refers to one that is not there."""
    for table, columns in _REFERENCES.items():
        for column, to in columns.items():
            last = tables[table][column].max()
            if isinstance(last, int) and last >= len(tables[to]):
                raise ValueError(f"{table}.{column} leads nowhere")


def forget_oldest(newest: Path) -> None:
    """Bring the user's folder under its limit, or the answers of a recording, whose tables have none."""
    text, ending = os.environ.get("KINETOSCOPE_CACHE_SIZE", ""), ("",)
    left = int(text) if text.isdecimal() else _DEFAULT_SIZE
    if newest.parent != users():
        left, ending = _ANSWERS_SIZE, (ANSWER, ANALYSES)
    with suppress(OSError):  # of another process that does the same
        kept = [one for one in newest.parent.iterdir() if one.name.endswith(ending) and one.name[0] != "."]
        entries = [one for one in kept if one.is_dir() and not one.is_symlink()]
        for folder in sorted(entries, key=lambda entry: entry.stat().st_mtime, reverse=True):
            left -= sum(file.stat().st_size for file in folder.iterdir())
            if left < 0 and folder != newest:
                shutil.rmtree(folder, ignore_errors=True)
