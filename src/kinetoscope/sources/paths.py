"""The recordings, traces, parts, dumps and logs in folders, patterns and buckets."""

from __future__ import annotations

import glob
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct, field

from kinetoscope.errors import InputError, MissingDependencyError, UsageError
from kinetoscope.recording import folder as folders
from kinetoscope.recording import manifest as manifests
from kinetoscope.sources.numbering import last_written, natural, of_other_times, rank_in, without_stages

TRACE_FILE = re.compile(r"\.json(?:\.gz|\.zst)?$")
EXPORT_FILE = re.compile(r"\.(?:sqlite3?|db)(?:\.gz|\.zst)?$")  # of Nsight Systems
PART = ".part"
DUMP = re.compile(r"(nccl_trace|flight_recorder|fr_trace)[^/]*$|\.pickle$|\.pkl$")
LOG = re.compile(r"-pid\d+\.log$")  # of NCCL's Inspector
REMOTE = re.compile(r"^[a-z][a-z0-9+.-]+://")
FEW = 16  # ranks of which a report holds everything
SMALL = 24 << 20  # bytes of JSON, some 60,000 events: an analysis takes Polars microseconds
PACKED = 12  # times the bytes of a packed trace its JSON has at least, usually
# The folders in which serving engines leave how their graphs were captured, the second since SGLang 0.5.15.
CAPTURES = ("capture_traces", "graph_capture_profile")
# Names of what vLLM's front end and SGLang's merging of traces write next to the traces of ranks.
NO_RANKS = {
    r"\.async_llm\.": "it is the front end's, which does no work on a device; name it alone to see its host",
    r"^merged-[^/]*\.trace\.json": "it holds the traces of all ranks once more",
}


class TraceFile(NamedTuple):
    """A trace's place, rank, a mark that changes with the file, and its host where a recording names it."""

    url: str
    rank: int | None
    mark: str
    host: str = ""


class Found(Struct, frozen=True):
    """The files of the inputs, by their kind, and a sentence on those that were left out."""

    traces: list[TraceFile] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    dumps: list[str] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def are_many(self) -> bool:
        """Whether these are more ranks than a report holds everything of; the stages of a server are one."""
        return len(without_stages(trace.url for trace in self.traces)) > FEW


def may_be_many(text: str) -> bool:
    """Whether more than a trace, a recording or a folder of traces may be there, without a look inside."""
    path = Path(text)
    named = PART in text or DUMP.search(text) is not None or LOG.search(text) is not None
    return is_remote(text) or path.is_dir() or glob.has_magic(text) or named


def is_remote(url: str) -> bool:
    return REMOTE.match(url) is not None


def find(inputs: Iterable[str | Path]) -> Found:
    """The files of inputs: files, folders (however deep), patterns (``runs/*/rank*.json.gz``) and buckets.
    Raises InputError where one is not there, MissingDependencyError where a bucket needs a library."""
    found, inputs = Found(), list(map(str, inputs))
    for text in inputs:
        if is_remote(text):
            _sort(found, _remote(text))
        elif Path(text).exists():
            _sort(found, _local(Path(text)))
        else:
            matched = [Path(name) for name in glob.glob(text, recursive=True)]
            if not matched:
                raise InputError("it does not exist, and nothing fits it", where=text, hint="check the path")
            for path in matched:
                _sort(found, _local(path))
    found.left_out.extend(_of_ranks_alone(found.traces))
    last = set(last_written([one.url for one in found.traces]))
    found.left_out.extend(of_other_times(len(found.traces) - len(last), " ".join(inputs)))
    found.traces[:] = [one for one in found.traces if one.url in last]
    found.traces.sort(key=lambda one: (one.rank is None, one.rank or 0, natural(one.url)))
    return found


def _sort(found: Found, files: Iterable[TraceFile]) -> None:
    for file in files:
        if file.url.endswith(PART):
            found.parts.append(file.url)
        elif TRACE_FILE.search(file.url):
            found.traces.append(file)
        elif DUMP.search(file.url):
            if not _is_snapshot(file.url):
                found.dumps.append(file.url)
        elif LOG.search(file.url):
            found.logs.append(file.url)


def _of_ranks_alone(traces: list[TraceFile]) -> Iterator[str]:
    """Leaves out what serving engines write next to the traces of their ranks; all but captures it names."""
    ranks = [one for one in traces if Path(one.url).parent.name not in CAPTURES] or traces
    workers = [one for one in ranks if no_rank(one.url) is None] or ranks
    yield from (said for one in ranks if one not in workers and (said := no_rank(one.url)) is not None)
    traces[:] = workers


def no_rank(path: str) -> str | None:
    """Why a trace is left out where there are others; None of a rank's."""
    name = Path(path).name
    why = next((why for pattern, why in NO_RANKS.items() if re.search(pattern, name)), None)
    return None if why is None else f"{path} was left out: {why}"


def captures_next_to(trace: Path) -> list[Path]:
    """The folders with the captures that a serving engine leaves next to a trace."""
    return [folder for name in CAPTURES if (folder := trace.parent / name).is_dir()]


def _is_snapshot(url: str) -> bool:
    """Whether a file here is a snapshot of the allocator, a pickle too, whose first word is ``segments``."""
    try:
        with Path(url).open("rb") as file:
            return b"segments" in file.read(64)
    except OSError:  # in a bucket
        return False


def are_small(traces: Sequence[TraceFile], most: int = SMALL) -> bool:
    """Whether there are traces here, with so few events in all that a call of Polars takes microseconds."""
    try:
        sizes = [os.path.getsize(one.url) * (1 if one.url.endswith(".json") else PACKED) for one in traces]
    except OSError:  # in a bucket, or gone
        return False
    return 0 < sum(sizes) <= most


def recordings_in(item: Path) -> list[Path]:
    """The recordings in a folder; else the item itself."""
    if not item.is_dir() or manifests.is_recording(item):
        return [item]
    return [inside for inside in sorted(item.iterdir()) if manifests.is_recording(inside)] or [item]


def repetitions(item: Path) -> list[Path]:
    """The recordings that a folder holds, if each is a whole run: ranks of one run are not repetitions."""
    inside = recordings_in(item)
    if inside == [item]:
        return inside
    ranks = [{record.rank for record in manifests.read(recording).ranks} for recording in inside]
    overlapping = sum(map(len, ranks)) > len(set[int]().union(*ranks))
    return inside if overlapping else [item]


def runs_in(folder: Path) -> list[Path]:
    """The recordings and traces in a folder, each of them a run."""
    return [
        item
        for item in sorted(folder.iterdir())
        if manifests.is_recording(item) or (item.is_file() and TRACE_FILE.search(item.name))
    ]


def _local(path: Path) -> Iterator[TraceFile]:
    if path.is_file():
        yield _file(path)
    elif manifests.is_recording(path):
        for record in folders.opened(path).ranks:
            if record.trace is not None and (path / record.trace).is_file():
                yield _file(path / record.trace, record.rank)._replace(host=record.host)
    elif path.is_dir():  # a pipe would be waited for, a link to a folder around it followed without end
        for inside in sorted(path.iterdir(), key=lambda one: natural(one.name)):
            if not inside.name.startswith(".") and not (inside.is_symlink() and inside.is_dir()):
                yield from _local(inside)


def _file(path: Path, rank: int | None = None) -> TraceFile:
    status = path.stat()
    return TraceFile(
        str(path), rank_in(path.name) if rank is None else rank, f"{status.st_size}-{status.st_mtime_ns}"
    )


def _remote(url: str) -> Iterator[TraceFile]:
    with file_system(url) as (system, root):
        names = system.glob(root) if glob.has_magic(root) else system.find(root)
        if not names:
            raise InputError("nothing is there", where=url, hint="check the bucket's name and the path in it")
        for name in sorted(names, key=natural):
            about = system.info(name)
            mark = "-".join(
                str(about.get(key, "")) for key in ("size", "ETag", "mtime", "created", "LastModified")
            )
            yield TraceFile(system.unstrip_protocol(name), rank_in(name.rpartition("/")[2]), mark)


DRIVERS = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}


@contextmanager
def file_system(url: str) -> Generator[tuple[Any, str], None, None]:
    """fsspec's file system of a URL, and the path in it. It has no types, and is not installed everywhere.
    Raises MissingDependencyError where fsspec, or its driver of this protocol, is not installed, and
    InputError where the place cannot be reached, whatever the driver raised in the ``with`` block."""
    protocol = url.partition("://")[0]
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        is_in_extra = "fsspec" not in sys.modules or protocol in ("http", "https")
        missing = [*(["'kinetoscope[remote]'"] if is_in_extra else []), *DRIVERS.get(protocol, "").split()]
        raise MissingDependencyError(
            f"{protocol}:// needs a library that is not installed: {error}",
            where=url,
            hint=f"pip install {' '.join(missing)}" if missing else None,
        ) from error
    except ValueError as error:
        raise InputError(f"no such kind of place: {error}", where=url) from error
    try:
        yield system, str(path)
    except InputError:
        raise
    except Exception as error:  # each driver has its own
        is_absent = isinstance(error, FileNotFoundError)
        raise InputError(
            "the bucket or the file in it does not exist"
            if is_absent
            else f"it cannot be reached: {type(error).__name__}: {error}",
            where=url,
            hint="check the name" if is_absent else "check the network, and the credentials of its driver",
        ) from error


NAME = "standard-input"


@contextmanager
def standard_input() -> Generator[Path, None, None]:
    """A file that holds all of standard input, for the length of a ``with`` block. Raises UsageError where it
    is a terminal, or closed."""
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(
            "there is nothing on standard input", where="-", hint="zcat trace.json.gz | kinetoscope report -"
        )
    with tempfile.TemporaryDirectory(prefix="kinetoscope-") as folder:
        path = Path(folder) / NAME
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
        yield path
