"""``memory/rank0.json`` of a recording: the owners of memory, by the program's own account (`run --memory`).

It belongs to the allocator's snapshot, ``memory/rank0.pickle``, which was taken at the same moment;
``memory/rank0.oom.json`` belongs to that of the first allocation that failed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from kinetoscope.errors import InputError
from kinetoscope.recording import plain_file
from kinetoscope.recording.manifest import UNREADABLE

SCHEMA = "kinetoscope.memory/1"
# variable: what a variable of the program's own code holds, in a function that runs or in its module.
Role = Literal["parameter", "buffer", "gradient", "optimizer state", "variable"]


class HeldTensor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tensor that the program holds."""

    role: Role
    name: str
    device: int
    # address, bytes: of its storage, all of it
    address: int
    bytes: int
    shape: tuple[int, ...] = ()
    dtype: str = ""
    time_ns: int = 0  # when it was there, on the wall clock; 0: when the snapshot was taken


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One device by the driver's and the allocator's account, in bytes; peaks since the program began, or,
    in recordings that did not yet keep them where the program has its peaks counted anew, since then.

    ``requested`` is what tensors requested, ``allocated`` the blocks that they got, ``reserved`` what the
    allocator took from the driver; ``free`` and ``total`` are the driver's, of all processes.
    """

    device: int
    requested_bytes: int = 0
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    peak_requested_bytes: int = 0
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    free_bytes: int = 0
    total_bytes: int = 0
    retries: int = 0  # of allocations, once what was cached had been given back to the driver
    failures: int = 0


class Held(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The memory of a process by its own account."""

    schema: str = SCHEMA
    time_ns: int = 0  # when the snapshot was taken, on the wall clock
    failed_bytes: int | None = None  # what the allocation that failed requested; None where none did
    boundaries_ns: tuple[int, ...] = ()  # where the recorded steps begin and end
    entries: int = 0  # the most that the allocator's history, a ring, can have
    has_optimizer: bool = False  # the program means to train
    tensors: tuple[HeldTensor, ...] = ()
    devices: tuple[DeviceMemory, ...] = ()


def read(path: Path) -> Held:
    """Raises:
    InputError: the file is damaged.
    """
    try:
        return msgspec.json.decode(plain_file.content(path), type=Held)
    except (OSError, *UNREADABLE) as error:
        raise InputError(
            f"the program's account of its memory is damaged: {error}", where=str(path)
        ) from error
