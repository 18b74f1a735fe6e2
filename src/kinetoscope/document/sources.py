"""The files that were read, the machine that recorded them, and how far they can be trusted."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from kinetoscope.analysis.health.rows import *
from kinetoscope.recording.manifest import DeviceInfo


class SourceRow(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    bytes: int
    events: int
    rank: int
    complete: bool
    notes: list[str]


class EnvironmentRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where it was recorded. Only what is known has a key: a recording knows most, a bare trace the
    versions of CUDA, as it spells them (its ``torch`` is null)."""

    device_names: list[str]
    python: str = ""
    torch: str | UnsetType | None = UNSET
    triton: str | None = None
    cuda: str | None = None
    cuda_runtime: int | float | str | UnsetType = UNSET
    cuda_driver: int | float | str | UnsetType = UNSET
    rocm: str | None = None
    host: str = ""
    cpu: str = ""
    cpu_count: int = 0
    devices: tuple[DeviceInfo, ...] = ()
    variables: dict[str, str] = {}
    load_average: float | None = None
