"""How each device's time divides, and why it idled."""

from __future__ import annotations

from kinetoscope.analysis.idle.rows import *
from kinetoscope.analysis.time.rows import *
