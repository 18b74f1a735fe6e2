"""Which rank this process is, and at which step all ranks begin to time and record."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from kinetoscope.capture.steps.steady import PATIENCE

RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
WORLD = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


def rank_and_world(variables: Mapping[str, str]) -> tuple[int, int] | None:
    """(rank, number of ranks) as the launcher set them; None for a process that no launcher started."""
    for rank, world in zip(RANK, WORLD, strict=True):
        if variables.get(rank, "").isdigit() and variables.get(world, "").isdigit():
            return int(variables[rank]), int(variables[world])
    return None


class Start(Protocol):
    """Agrees with the other ranks, if there are any, on the step at which everybody starts to time and record."""

    def __call__(self, index: int, settled: bool) -> bool: ...


def at_once(index: int, settled: bool) -> bool:
    """The agreement of a process that is alone."""
    return settled


class Agreement:
    """All ranks start at the step that rank 0 names, a few steps ahead, in a file of the recording.

    Ranks of a data-parallel program reach a step together, give or take the launches the host runs ahead. A rank
    that does not see the file (another machine, another file system) goes by its own clock after a while.
    """

    AHEAD = 4

    def __init__(self, folder: Path, rank: int) -> None:
        self.path = folder / "ranks" / "start"
        self.rank = rank
        self.first: int | None = None

    def __call__(self, index: int, settled: bool) -> bool:
        if self.first is None:
            if self.rank == 0 and settled:
                self.first = index + self.AHEAD
                temporary = self.path.with_suffix(".tmp")
                temporary.write_text(str(self.first))
                os.replace(temporary, self.path)
            elif self.rank != 0 and self.path.exists():
                self.first = int(self.path.read_text())
            elif index >= 3 * PATIENCE:
                return settled
        return self.first is not None and index >= self.first


def agreement(folder: Path, rank: int, world: int) -> Start:
    return Agreement(folder, rank) if world > 1 else at_once
