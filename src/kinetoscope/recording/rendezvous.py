"""One folder for all the ranks of a run, where each is a process of its own that makes the recording itself.

The ranks of a machine have the launcher's process for parent: a file named after it names the folder
that rank 0 made. Ranks of several machines, that share a disk, have the address of rank 0's in common.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from kinetoscope.recording import folder as folders
from kinetoscope.recording.manifest import write_whole

PATIENCE_S = 60.0
ABSENT_S = 2.0  # a rank that has not begun by then, once rank 0 has ended, does not record
STALE_S = 60.0  # a rendezvous file that is older was left by a run that never ended


def agree_on_folder(name: str, out: Path | None, rank: int | None, host: str = "") -> tuple[Path, bool]:
    """The recording's folder, and whether this process is the one that begins its manifest. ``rank``: None
    for the one process of a run that no launcher started. ``host``: where such a process is one of several,
    each on a host."""
    if rank is None:
        return folders.create(name, out, host=host), True
    place = _place(name, out)
    place.parent.mkdir(parents=True, exist_ok=True)
    if rank == 0:
        folder = folders.create(name, out)
        write_whole(place, str(folder).encode())
        return folder, True
    deadline = time.monotonic() + PATIENCE_S
    began = time.time()
    while not (place.exists() and place.stat().st_mtime > began - STALE_S):
        if time.monotonic() > deadline:
            return folders.create(f"{name}-{folders.host()}-rank{rank}", None), True
        time.sleep(0.02)
    return Path(place.read_text()), False


def await_ranks(name: str, out: Path | None, folder: Path, world: int) -> None:
    """Wait until all ranks that record have written their last report, and clear the rendezvous file away."""
    ended = time.monotonic()
    while (waited := time.monotonic() - ended) < PATIENCE_S:
        reports = folders.read_ranks(folder)
        begun = len(reports) >= world or waited > ABSENT_S
        if begun and all(report.record.exit != "running" for report in reports):
            break
        time.sleep(0.05)
    _place(name, out).unlink(missing_ok=True)


def _place(name: str, out: Path | None) -> Path:
    run = os.environ.get("TORCHELASTIC_RUN_ID", "run")
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    home = Path(folders.HOME) if out is None else out.parent
    world, here = (os.environ.get(name, "") for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    address = "-".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    shared = address if here and world != here and len(address) > 1 else os.getppid()
    return home / f".{Path(name).name}-{shared}-{run}-{attempt}"
