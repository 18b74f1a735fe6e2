"""Answers kept for the next time: what a command found, as long as nothing that it depends on has changed.

An answer is a struct of the document. It lies where the tables of traces do (``trace.cache``): in a
recording's own folder, else in the user's. It is named by what was asked, by every file under the inputs
(sizes, times and samples, as a trace's tables are), by the settings in the environment, and by the code of
this package, Python and Polars: where any of it changes, the answer is computed anew.

It begins with a seal that this user alone can make: an answer could say anything, and a recording that came
from another person may bring some along. Such a one, or one that is damaged, is removed.

Next to answers lie tables of the analyses that most commands ask for (``KeptTables``), named and sealed
likewise: another question about the same inputs need not compute them again.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import io
import os
import pkgutil
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kinetoscope import __file__ as package
from kinetoscope import __version__
from kinetoscope.recording import manifest, plain_file, trust
from kinetoscope.sources.paths import captures_next_to
from kinetoscope.trace import cache

if TYPE_CHECKING:
    import polars as pl

LARGEST = 32 << 20  # bytes of an answer: the page of eight million events has less
MOST_FILES = 2048  # of the inputs: to look at more takes as long as many an answer
_FILE = "answer"


class _KeptAnswer(msgspec.Struct, frozen=True, array_like=True):
    """An answer, and the sentences that were said of what was read."""

    remarks: list[str]
    found: msgspec.Raw


class _RecordedCommand(msgspec.Struct):
    command: list[str] = []


def entry(inputs: Sequence[str], asked: str) -> Path | None:
    """Where the answer to what is asked of inputs is kept, as they are now; None where none can be."""
    if cache.is_off() or "-" in inputs:
        return None
    try:
        facts = [fact for item in map(Path, inputs) for fact in _facts(item)]
        user = trust.seal("", b"")  # of two who share a folder, neither removes the other's
        asked_of = (asked, tuple(inputs), facts, _settings(), _software(), user)
    except OSError:
        return None
    digest = hashlib.blake2b(repr(asked_of).encode(errors="surrogatepass"), digest_size=16)
    item = Path(inputs[0])
    home = cache.home(item / _FILE if item.is_dir() else item) if len(inputs) == 1 else cache.users()
    return home / f"{digest.hexdigest()}-{__version__}{cache.ANSWER}"


def recall(entry: Path, kind: str) -> tuple[list[str], Any] | None:
    """The remarks and the answer of a kind (``module:name`` of a struct) that this user kept there."""
    if not entry.is_dir():
        return None
    try:
        answer = msgspec.msgpack.decode(_unsealed(entry / _FILE, entry.name), type=_KeptAnswer)
        found = msgspec.msgpack.decode(answer.found, type=pkgutil.resolve_name(kind) | None)
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
        shutil.rmtree(entry, ignore_errors=True)
        return None
    with suppress(OSError):
        os.utime(entry)  # what was not used for longest goes first
    return answer.remarks, found


def keep(entry: Path, kind: str, remarks: list[str], found: msgspec.Struct | None) -> None:
    """Keep an answer, if it is the same once it is read again, and is not too large."""
    try:
        encoded = msgspec.msgpack.encode(found)
        again = msgspec.msgpack.decode(encoded, type=pkgutil.resolve_name(kind) | None)
        if msgspec.msgpack.encode(again) != encoded:
            return
        content = msgspec.msgpack.encode(_KeptAnswer(remarks, msgspec.Raw(encoded)))
        seal = trust.seal(entry.name, content)
    except (OSError, ValueError, TypeError, msgspec.MsgspecError, RecursionError):
        return
    if len(seal) + len(content) <= LARGEST:
        cache.place(entry, lambda folder: (folder / _FILE).write_bytes(seal + content))
        if entry.name.startswith("0") or len(content) > LARGEST >> 4:  # else one time in sixteen
            cache.forget_oldest(entry)


def _unsealed(file: Path, name: str) -> bytes:
    """The content of a file that this user kept. Raises OSError or ValueError where it is another."""
    content = plain_file.content(file, LARGEST)
    seal, content = content[: trust.SEAL_BYTES], content[trust.SEAL_BYTES :]
    if not hmac.compare_digest(seal, trust.seal(name, content)):
        raise ValueError("this user did not keep it")
    return content


class KeptTables(msgspec.Struct, frozen=True):
    """Tables of analyses of one subject, a run or one of its traces, by the names of the analyses."""

    entry: Path  # of all that is kept of analyses of the same inputs: see ``shelf``
    subject: str

    def get(self, name: str) -> pl.DataFrame | None:
        import polars as pl

        file = self._file(name)
        if not file.exists():
            return None
        try:
            return pl.read_ipc_stream(_unsealed(file, f"{self.entry.name}/{file.name}"))
        except (OSError, ValueError, pl.exceptions.PolarsError):
            shutil.rmtree(self.entry, ignore_errors=True)
            return None

    def put(self, name: str, table: pl.DataFrame) -> None:
        file, written = self._file(name), io.BytesIO()
        table.write_ipc_stream(written, compression="zstd")
        content = written.getvalue()
        with suppress(OSError):
            seal = trust.seal(f"{self.entry.name}/{file.name}", content)
            if len(seal) + len(content) <= LARGEST:
                self.entry.mkdir(0o700, parents=True, exist_ok=True)
                manifest.write_whole(file, seal + content)

    def _file(self, name: str) -> Path:
        return self.entry / f"{self.subject}-{name}"


def shelf(inputs: Sequence[str]) -> Path | None:
    """Where tables of analyses of these inputs are kept (see ``entry``); None where none can be."""
    asked = entry(inputs, "analyses")
    if asked is None:
        return None
    folder = asked.with_suffix(cache.ANALYSES)
    with suppress(OSError):
        os.utime(folder)
    return folder


def _facts(item: Path) -> Iterator[tuple[str, str]]:
    """The files and folders that are read of an input, by path, each with a mark of what it holds. Raises
    OSError where it cannot be known, or is too much."""
    from kinetoscope.compilation.log.recognise import companions

    if item.is_dir():
        yield from _inside(item)
    else:
        yield str(item), cache.mark(item)
        for nearby in captures_next_to(item):
            yield from _inside(nearby)
    yield from ((str(path), cache.mark(path)) for path in companions(item) if path.exists())


def _inside(top: Path) -> Iterator[tuple[str, str]]:
    folders, files = [str(top)], list[str]()
    for folder in folders:  # grows
        is_recording = manifest.is_recording(Path(folder))
        for one in os.scandir(folder):
            if one.is_symlink() and one.is_dir():  # to wherever
                raise OSError(errno.ELOOP, "a link to a folder", one.path)
            if not one.is_dir():
                files.append(one.path)
            elif not (is_recording and one.name == "tables"):  # ours, which say nothing new
                folders.append(one.path)
        if len(files) + len(folders) > MOST_FILES:
            raise OSError(errno.EFBIG, "too much is in it", str(top))
        if is_recording:
            yield folder, _script(Path(folder))
    yield from ((folder, "") for folder in sorted(folders))
    yield from ((file, cache.mark(Path(file))) for file in sorted(files))


def _script(recording: Path) -> str:
    """Which words of the recorded command are files here: findings say whether the program is."""
    try:
        recorded = msgspec.json.decode(plain_file.content(recording / manifest.FILE), type=_RecordedCommand)
    except manifest.UNREADABLE:
        return ""
    return repr([os.path.exists(word) for word in recorded.command])


def _settings() -> list[tuple[str, str]]:
    """Variables of the environment that are ours, without those of the cache."""
    own = (name for name in os.environ if name.startswith("KINETOSCOPE_"))
    return sorted((name, os.environ[name]) for name in own if not name.startswith("KINETOSCOPE_CACHE"))


def _software() -> tuple[object, ...]:
    polars = find_spec("polars")
    where = polars.origin if polars else None
    facts = os.stat(where) if where else None
    return (
        sys.version, cache.code(Path(package).parent), where, facts and (facts.st_size, facts.st_mtime_ns),
    )  # fmt: skip
