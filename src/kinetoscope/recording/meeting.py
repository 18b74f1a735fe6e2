"""One folder for all the ranks of a run, where each is a process of its own that makes the recording itself.

The ranks of a machine have the launcher's process for parent: a file named after it tells them the folder
that rank 0 made.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from kinetoscope.recording import folder as folders
from kinetoscope.recording.manifest import write_whole

PATIENCE_S = 60.0


def meet(name: str, out: Path | None, rank: int | None) -> tuple[Path, bool]:
    """The recording's folder, and whether this process is the one that begins its manifest.

    Args:
        rank: None for the one process of a run that no launcher started.
    """
    if rank is None:
        return folders.create(name, out), True
    meeting = _place(name, out)
    meeting.parent.mkdir(parents=True, exist_ok=True)
    if rank == 0:
        folder = folders.create(name, out)
        write_whole(meeting, str(folder).encode())
        return folder, True
    deadline = time.monotonic() + PATIENCE_S
    while not meeting.exists():
        if time.monotonic() > deadline:
            return folders.create(f"{name}-rank{rank}", None), True
        time.sleep(0.02)
    return Path(meeting.read_text()), False


def await_ranks(name: str, out: Path | None, folder: Path, world: int) -> None:
    """Wait until all ranks have written their last report, and clear the meeting place away."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        reports = folders.read_ranks(folder)
        if len(reports) >= world and all(report.record.exit != "running" for report in reports):
            break
        time.sleep(0.05)
    _place(name, out).unlink(missing_ok=True)


def _place(name: str, out: Path | None) -> Path:
    run = os.environ.get("TORCHELASTIC_RUN_ID", "run")
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    home = Path(folders.HOME) if out is None else out.parent
    return home / f".{Path(name).name}-{os.getppid()}-{run}-{attempt}"
