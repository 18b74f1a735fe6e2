"""Making a recording's folder, which several processes fill at once, and merging what they left in it.

Nothing here overwrites: a folder is made, and a rank claimed, exclusively; files are replaced whole.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from itertools import count
from pathlib import Path

import msgspec

from kinetoscope import __version__
from kinetoscope.errors import InputError, UsageError
from kinetoscope.recording import manifest as manifests
from kinetoscope.recording import plain_file, trust
from kinetoscope.recording.manifest import Environment, Manifest, RankRecord
from kinetoscope.recording.repository import commit

_CLAIMED = re.compile(r"rank(\d{1,6})\.(?:claim|json)")
HOME = "recordings"
HOSTS = ".hosts"  # stands in a folder of recordings, one a host
AGREED = ".agreed"
RANKS = "ranks"
# All that the recording of a program has that failed before it called an op.
EMPTY = {manifests.FILE, trust.FILE, RANKS, "program", "trace", "whole_run"}
# Room on the disk for what says how the program ended; given back where there is no other, or at the end.
RESERVE = ".reserve"
RESERVED_BYTES = 1 << 16
# Phases in which the recorder neither begins, runs nor ends anything.
IDLE_PHASES = ("", "watching", "timing on", "standing by", "done")
LONGEST_PHASE = 100
FAULTS = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL")  # signals of a fault in the process itself
# A trace without work is its head and the names of processes: some 1.5 kB.
LARGEST_EMPTY = 32_000  # bytes
WORK = (b'"cpu_op"', b'"kernel"', b'"user_annotation"', b'"gpu_memcpy"')
# Traces by what follows the rank, best first: the recording's, the program's own, and one half written.
TRACES = (".json", ".program.json", ".part.json", ".part.json.tmp")


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one process of the run about itself."""

    record: RankRecord
    environment: Environment


def host() -> str:
    """This host's name, as it may stand in a file's."""
    return _plain(platform.node()) or "host"


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.")


def has_work(recording: Path, rank: RankRecord) -> bool:
    """Whether a rank recorded an op or device work, or anything else than a trace of its own."""
    if rank.trace is None or rank.compile_log or rank.memory or rank.oom:
        return True
    trace = recording / rank.trace
    try:
        return trace.stat().st_size > LARGEST_EMPTY or any(word in trace.read_bytes() for word in WORK)
    except OSError:
        return True


def _cleared(out: Path) -> bool:
    """Remove a recording that ended and holds nothing; whether there was one and nothing else."""
    try:
        ended = manifests.read(out)
        own = {path.name for path in out.iterdir()} <= EMPTY
        if not own or ended.exit == "running" or any(has_work(out, rank) for rank in ended.ranks):
            return False
        import shutil  # not in every recorded process, for this

        for path in out.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    except (InputError, OSError):
        return False
    return True


def create(program: str, out: Path | None, *, now: datetime | None = None, host: str = "") -> Path:
    """A new, empty folder for a recording of ``program``: ``out``, or ``recordings/<program>-<time>`` here.

    A recording in ``out`` that ended and holds nothing, of a program that failed early, makes room.

    Args:
        host: of several that may share a disk this one: its folder is ``out``/HOST, or …-<time>-HOST.

    Raises:
        UsageError: ``out`` is a folder with something in it, or cannot be made.
        OSError: no temporary folder can be made either, where the working directory takes none.
    """
    if out is not None and host:
        _begin_hosts(out)
        out /= host
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make the folder: {error.strerror or error}", where=str(out)) from error
        if any(out.iterdir()) and (host or not _cleared(out)):
            raise UsageError(
                "the folder is not empty, and a recording never overwrites anything",
                where=str(out),
                hint="name another folder with --out, or leave --out away",
            )
        return out.resolve()
    stamp = (now or datetime.now()).strftime("%Y%m%d-%H%M%S")
    stem = _plain(program) or "program"
    stamp += f"-{host}" if host else ""
    home = Path(HOME)
    for attempt in range(1000):
        folder = home / (f"{stem}-{stamp}" + (f"-{attempt + 1}" if attempt else ""))
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError:  # the working directory is gone or read-only: the program runs in it nevertheless
            import tempfile  # not in every recorded process, for this

            return Path(tempfile.mkdtemp(prefix=f"{folder.name}-"))
        return folder.resolve()
    raise UsageError("a thousand recordings of this second exist already", where=str(home))


def of_job(program: str, job: str, host: str) -> Path:
    """``recordings/<program>-<job>``, the same on all hosts; where this one has recorded in it, the next."""
    home = Path(HOME)
    stem = f"{_plain(program) or 'program'}-{_plain(job)}"
    names = (stem if number == 1 else f"{stem}-{number}" for number in count(1))
    return next(home / name for name in names if not (home / name / host).exists())


def _begin_hosts(out: Path) -> None:
    """Make a folder of hosts' recordings, or join one; no other folder is taken for one."""
    with suppress(OSError):
        out.mkdir(parents=True, exist_ok=True)
        if not any(out.iterdir()):
            (out / HOSTS).touch()
    if out.is_dir() and not (out / HOSTS).exists():
        raise UsageError(
            "the folder is not empty, and a recording never overwrites anything",
            where=str(out),
            hint="name another folder with --out, the same on all hosts",
        )


def of_all_hosts(folder: Path) -> Path | None:
    """The folder of all hosts' recordings, of which this is one; None where it is no host's."""
    return folder.parent if (folder.parent / HOSTS).exists() else None


def agreements(folder: Path) -> Path:
    """The folder where the ranks of a run agree: in the recording, or next to those of the other hosts."""
    shared = of_all_hosts(folder)
    return shared / AGREED if shared else folder / RANKS


def claim(folder: Path, rank: int) -> bool:
    """True for the one process that gets to record ``rank``."""
    (folder / RANKS).mkdir(exist_ok=True)
    try:
        os.close(os.open(folder / RANKS / f"rank{rank}.claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def unclaim(folder: Path, rank: int) -> None:
    """A rank was claimed and is not recorded."""
    (folder / RANKS / f"rank{rank}.claim").unlink(missing_ok=True)


def write_rank(folder: Path, report: RankReport) -> None:
    path = folder / RANKS / f"rank{report.record.rank}.json"
    _write(folder, path, manifests.encoded(report))


def _write(folder: Path, path: Path, content: bytes) -> None:
    try:
        manifests.write_whole(path, content)
    except OSError:
        if not (folder / RESERVE).is_file():
            raise
        (folder / RESERVE).unlink()
        manifests.write_whole(path, content)


def mark_phase(folder: Path, rank: int, phase: str) -> None:
    """Write down what the recorder of a rank does from now on, for ``finish`` to find if the process dies."""
    with suppress(OSError):
        manifests.write_whole(_phase(folder, rank), phase.encode())


def last_phase(folder: Path, rank: int) -> str | None:
    """The last phase of a rank's recorder; None where it was not at work."""
    with suppress(OSError, UnicodeDecodeError):
        phase = _phase(folder, rank).read_text("utf-8")[:LONGEST_PHASE].strip()
        return None if phase in IDLE_PHASES else phase
    return None


def _phase(folder: Path, rank: int) -> Path:
    return folder / RANKS / f"rank{rank}.phase"


def read_ranks(folder: Path) -> list[RankReport]:
    """The reports of all processes of the run so far, by rank; of one that left none, that it was there.

    What a process wrote without living to report it is in its record: a trace or compile log that lies there.
    """
    reports: dict[int, RankReport] = {}
    for path in sorted((folder / RANKS).glob("rank*")):
        number = _CLAIMED.fullmatch(path.name)
        if number is None or not path.is_file():
            continue
        report = RankReport(record=RankRecord(rank=int(number[1]), exit="running"), environment=Environment())
        if path.suffix == ".json":
            with suppress(OSError, *manifests.UNREADABLE):
                report = msgspec.json.decode(plain_file.content(path), type=RankReport)
        if path.suffix == ".json" or report.record.rank not in reports:
            reports[report.record.rank] = report
    manifests.check(folder, tuple(report.record for report in reports.values()))
    ordered = [reports[rank] for rank in sorted(reports)]
    return [msgspec.structs.replace(one, record=_left(folder, one.record)) for one in ordered]


def _left(folder: Path, record: RankRecord) -> RankRecord:
    """A rank's record with the files in the folder that its process did not live to list."""
    rank = f"rank{record.rank}"
    left = {"trace": [f"trace/{rank}{name}" for name in TRACES], "compile_log": [f"compile/{rank}.log"]}
    found = {
        field: next((path for path in paths if _holds_something(folder / path)), None)
        for field, paths in left.items()
        if getattr(record, field) is None
    }
    return msgspec.structs.replace(record, **found)


def _holds_something(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def opened(folder: Path) -> Manifest:
    """A recording's manifest, merged from what its processes left if need be. Raises InputError."""
    manifest = manifests.read(folder)
    reports = read_ranks(folder) if manifest.exit == "running" else []
    if not reports:
        listed = any(record.trace for record in manifest.ranks)
        ranks = manifest.ranks if listed else tuple(_left(folder, record) for record in manifest.ranks)
        return msgspec.structs.replace(manifest, ranks=ranks)
    note = "the recording was never finished: `kinetoscope run` was killed, or is still at work"
    return msgspec.structs.replace(_merged(manifest, reports), notes=(*manifest.notes, note))


def _merged(manifest: Manifest, reports: Sequence[RankReport]) -> Manifest:
    return msgspec.structs.replace(
        manifest,
        ranks=tuple(report.record for report in reports),
        environment=reports[0].environment if reports else manifest.environment,
    )


def begin(folder: Path, command: tuple[str, ...], options: object) -> None:
    """Write the manifest of a run that has begun. Raises UsageError where nothing can be written."""
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    given = msgspec.to_builtins(options)
    try:
        manifests.write(
            folder,
            Manifest(
                kinetoscope=__version__,
                created=created,
                commit=commit(),
                command=command,
                options=given,
            ),
        )
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        raise UsageError(
            f"cannot begin the recording: {error.strerror or error}",
            where=str(folder),
            hint="make room, or name a folder on another disk with --out",
        ) from error
    try:
        (folder / RESERVE).write_bytes(os.urandom(RESERVED_BYTES))  # random: no file system packs it
    except OSError:
        (folder / RESERVE).unlink(missing_ok=True)


def finish(folder: Path, *, exit: str, status: int | None, alone: bool) -> Manifest:
    """Merge the ranks' reports into the manifest, sign the code that the run left, and return the manifest.

    This fails no program, whatever is left.

    Args:
        exit: how the command ended, as in RankRecord.
        status: its exit status.
        alone: the command was the only process of the run, so that its end is the rank's.

    Where the disk is full the manifest on it stays as it was, which ``opened`` can read, and a note says so;
    so too where the folder, or its disk, is gone.
    """
    try:
        manifest = _merged(manifests.read(folder), read_ranks(folder))
    except InputError as error:
        return Manifest(
            exit=exit, status=status, notes=(f"the recording is lost: {str(error).splitlines()[0]}",)
        )
    ranks = tuple(
        msgspec.structs.replace(
            record,
            exit=_ending(record.exit, exit, status, alone),
            phase=_died_in(folder, record, exit, alone) or record.phase,
        )
        for record in manifest.ranks
    )
    if alone and len(ranks) == 1:
        exit = ranks[0].exit
    manifest = msgspec.structs.replace(manifest, ranks=ranks, exit=exit, status=status)
    try:
        _write(folder, folder / manifests.FILE, manifests.indented(manifest))
        (folder / RESERVE).unlink(missing_ok=True)
    except OSError as error:
        note = f"the recording could not be finished: {error.strerror or error}; it opens with what it holds"
        return msgspec.structs.replace(manifest, notes=(*manifest.notes, note))
    trust.sign(folder)
    return manifest


def _ending(own: str, command: str, status: int | None, alone: bool) -> str:
    """How a process ended: by its own account, unless it could not give one or could not know."""
    if own == "running":
        return f"os._exit: {status}" if alone and command.startswith("sys.exit") else command
    return command if own == "ok" and alone else own


def _died_in(folder: Path, record: RankRecord, command: str, alone: bool) -> str | None:
    """The recorder's phase when a fault ended a process that could not say so itself.

    A launcher's own end does not show which signal ended its process; it only shows that it failed.
    """
    if record.exit != "running":
        return None
    faulted = command.removeprefix("signal: ") in FAULTS if alone else command != "ok"
    return last_phase(folder, record.rank) if faulted else None
