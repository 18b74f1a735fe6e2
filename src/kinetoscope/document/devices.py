"""How each device's time divides, and why it idled."""

from __future__ import annotations

import msgspec

from kinetoscope.analysis.idle.gaps import IdleRow as IdleRow
from kinetoscope.analysis.idle.launches import LaunchRow as LaunchRow
from kinetoscope.analysis.idle.launches import QueuePoint as QueuePoint


class DeviceRow(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    device: int
    name: str
    window_us: float
    span_us: float
    busy_us: float
    busy_fraction: float
    busy_fraction_of_span: float
    compute_us: float
    copy_us: float
    communication_us: float
    exposed_communication_us: float
    idle_us: float
    device_time_us: float
    kernel_launches: int
    unattributed_kernels: int
    launches_without_kernel: int
    device_events: int
    window_basis: str
