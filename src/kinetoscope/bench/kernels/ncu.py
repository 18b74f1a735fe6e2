"""Nsight Compute on chosen kernels: the command that runs it, and its numbers read back.

Clocks are left alone (``--clock-control none``). Nsight Compute invalidates the caches before each kernel, so
its duration is a cold one. It is taken in a run of its own: together with counters a kernel reads up to 3 %
longer. What it holds beyond the work of the SMs shows in the duration of an empty kernel.
"""

from __future__ import annotations

import csv
import io
import re
import shutil
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from kinetoscope.errors import KinetoscopeError

DURATION = "gpu__time_duration.sum"
EMPTY = "spin_kernel"  # torch.cuda._sleep(0)
METRICS = {
    DURATION: "duration_ns",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "compute_percent",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "memory_percent",
    "dram__bytes.sum": "dram_bytes",
    "gpc__cycles_elapsed.avg.per_second": "sm_clock_hz",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy_percent",
}
# Unit → its size in the base unit: nanoseconds, bytes, hertz.
_UNITS = {
    **dict.fromkeys(("", "%", "ns", "nsecond", "byte", "hz", "cycle/second"), 1.0),
    **dict.fromkeys(("us", "usecond", "Kbyte", "Khz"), 1e3),
    **dict.fromkeys(("ms", "msecond", "Mbyte", "Mhz", "cycle/usecond"), 1e6),
    **dict.fromkeys(("Gbyte", "Ghz", "cycle/nsecond"), 1e9),
}


class NcuRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Medians over one kernel's launches under Nsight Compute; percentages are of peak (speed of light)."""

    name: str
    launches: int
    duration_ns: float
    compute_percent: float | None = None
    memory_percent: float | None = None
    dram_bytes: float | None = None
    sm_clock_hz: float | None = None
    occupancy_percent: float | None = None


def find() -> str:
    """The path of ``ncu``. Raises KinetoscopeError where it is not installed."""
    path = shutil.which("ncu")
    if path is None:
        raise KinetoscopeError(
            "Nsight Compute (ncu) is not on the PATH", hint="install it, or leave --ncu away"
        )
    return path


def command(
    ncu: str, names: Sequence[str], program: Sequence[str], metrics: Sequence[str] = tuple(METRICS)
) -> list[str]:
    """The command line: only kernels of these exact names, raw metrics as CSV on stdout."""
    pattern = "regex:^(" + "|".join(re.escape(name) for name in names) + ")$"
    fixed = "--clock-control none --print-kernel-base function --csv --page raw"
    return [ncu, *fixed.split(), "--kernel-name", pattern, "--metrics", ",".join(metrics), *program]


def run(names: Sequence[str], program: Sequence[str]) -> list[NcuRow]:
    """Run a program under Nsight Compute: once for durations alone, once for the counters. Raises
    KinetoscopeError where ncu is not installed, or profiled nothing (its own last words are shown)."""
    ncu = find()
    durations = {row.name: row.duration_ns for row in _profile(ncu, names, program, (DURATION,))}
    counted = _profile(ncu, names, program, tuple(METRICS))
    return [
        msgspec.structs.replace(row, duration_ns=durations.get(row.name, row.duration_ns)) for row in counted
    ]


def _profile(ncu: str, names: Sequence[str], program: Sequence[str], metrics: Sequence[str]) -> list[NcuRow]:
    line = command(ncu, names, program, metrics)
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    rows = parse(done.stdout)
    if not rows:
        words = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}")[-600:]
        raise KinetoscopeError(
            f"Nsight Compute profiled no kernel: {words}",
            hint="reading the counters may need permission: https://developer.nvidia.com/ERR_NVGPUCTRPERM",
        )
    return rows


def parse(text: str) -> list[NcuRow]:
    """The rows of ``--csv --page raw``: a header, a line of units, a line for each launch; no others."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    header, units, *launches = csv.reader(io.StringIO("\n".join(lines[start:])))
    name_column = header.index("Kernel Name")
    values: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for launch in launches:
        if len(launch) != len(header):
            continue
        for metric, field in METRICS.items():
            if metric in header:
                column = header.index(metric)
                number = launch[column].replace(",", "")
                if re.fullmatch(r"[0-9.eE+-]+", number) and units[column] in _UNITS:
                    values[launch[name_column]][field].append(float(number) * _UNITS[units[column]])
    return [
        NcuRow(
            name=name,
            launches=len(fields["duration_ns"]),
            **{field: statistics.median(numbers) for field, numbers in fields.items()},
        )
        for name, fields in values.items()
        if fields["duration_ns"]
    ]
