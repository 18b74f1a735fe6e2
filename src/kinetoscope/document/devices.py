"""How each device's time divides, and why it idled."""

from __future__ import annotations

from kinetoscope.analysis.idle.gaps import IdleRow as IdleRow
from kinetoscope.analysis.idle.launches import LaunchRow as LaunchRow
from kinetoscope.analysis.idle.launches import QueuePoint as QueuePoint
from kinetoscope.analysis.time.busy import DeviceRow as DeviceRow
