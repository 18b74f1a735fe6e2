"""Making a recording's folder, which several processes fill at once, and merging what they left in it.

Nothing here overwrites: a folder is made, and a rank claimed, exclusively; files are replaced whole.
"""

from __future__ import annotations

import os
import re
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from kinetoscope import __version__
from kinetoscope.errors import UsageError
from kinetoscope.recording import manifest as manifests
from kinetoscope.recording.manifest import Environment, Manifest, RankRecord

HOME = "recordings"
RANKS = "ranks"


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one process of the run writes about itself."""

    record: RankRecord
    environment: Environment


def create(program: str, out: Path | None, *, now: datetime | None = None) -> Path:
    """A new, empty folder for a recording of ``program``: ``out``, or ``recordings/<program>-<time>`` here.

    Raises:
        UsageError: ``out`` exists and is not an empty folder, or cannot be made.
    """
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make the folder: {error.strerror or error}", where=str(out)) from error
        if any(out.iterdir()):
            raise UsageError(
                "the folder is not empty, and a recording never overwrites anything",
                where=str(out),
                mend="name another folder with --out, or leave --out away",
            )
        return out.resolve()
    stamp = (now or datetime.now()).strftime("%Y%m%d-%H%M%S")
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", program).strip("-.") or "program"
    home = Path(HOME)
    for attempt in range(1000):
        folder = home / (f"{stem}-{stamp}" + (f"-{attempt + 1}" if attempt else ""))
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(
                f"cannot make the folder: {error.strerror or error}",
                where=str(folder),
                mend="run where you may write, or name a folder with --out",
            ) from error
        return folder.resolve()
    raise UsageError("a thousand recordings of this second exist already", where=str(home))


def claim(folder: Path, rank: int) -> bool:
    """True for the one process that gets to record ``rank``."""
    (folder / RANKS).mkdir(exist_ok=True)
    try:
        os.close(os.open(folder / RANKS / f"rank{rank}.claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def write_rank(folder: Path, report: RankReport) -> None:
    path = folder / RANKS / f"rank{report.record.rank}.json"
    manifests.write_whole(path, msgspec.json.encode(report))


def read_ranks(folder: Path) -> list[RankReport]:
    """The reports of all processes of the run so far, by rank."""
    reports = [
        msgspec.json.decode(path.read_bytes(), type=RankReport)
        for path in (folder / RANKS).glob("rank*.json")
    ]
    return sorted(reports, key=lambda report: report.record.rank)


def begin(folder: Path, command: tuple[str, ...], options: object) -> None:
    """Write the manifest that says that a run has begun, with these options of capture."""
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    given = msgspec.to_builtins(options)
    manifests.write(
        folder, Manifest(kinetoscope=__version__, created=created, command=command, options=given)
    )


def finish(folder: Path, *, exit: str, status: int | None, alone: bool) -> Manifest:
    """Merge the ranks' reports into the manifest, and return it.

    Args:
        exit: how the command ended, as in RankRecord.
        status: its exit status.
        alone: the command was the only process of the run, so that its end is the rank's.
    """
    manifest = manifests.read(folder)
    reports = read_ranks(folder)
    ranks = tuple(
        msgspec.structs.replace(r.record, exit=_ending(r.record.exit, exit, status, alone)) for r in reports
    )
    if alone and len(ranks) == 1:
        exit = ranks[0].exit
    manifest = msgspec.structs.replace(
        manifest,
        ranks=ranks,
        environment=reports[0].environment if reports else manifest.environment,
        exit=exit,
        status=status,
    )
    manifests.write(folder, manifest)
    return manifest


def _ending(own: str, command: str, status: int | None, alone: bool) -> str:
    """How a process ended: by its own account, unless it could not give one or could not know."""
    if own == "running":
        return f"os._exit: {status}" if alone and command.startswith("sys.exit") else command
    return command if own == "ok" and alone else own
