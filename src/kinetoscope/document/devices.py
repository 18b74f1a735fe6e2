"""How each device's time divides, and why it idled."""

from __future__ import annotations

from kinetoscope.analysis.idle.rows import IdleRow as IdleRow
from kinetoscope.analysis.idle.rows import LaunchRow as LaunchRow
from kinetoscope.analysis.idle.rows import QueuePoint as QueuePoint
from kinetoscope.analysis.time.rows import DeviceRow as DeviceRow
