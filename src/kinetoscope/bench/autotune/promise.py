"""What the winners of one graph promise together, and what its replay with and without them says to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from kinetoscope.bench.autotune.configurations import Tuned
from kinetoscope.bench.kernels.modules import ModuleResult
from kinetoscope.bench.measure.results import Comparison

# Kernels alone and kernels in their graph find other caches: a saving within this of the promise keeps it.
TOLERANCE = 0.2

Outcome = Literal["confirmed", "more than promised", "in part", "refuted", "cannot tell"]


class Saving(msgspec.Struct, frozen=True):
    """Nanoseconds of one run of the graph, with the 95 % interval."""

    ns: float
    low_ns: float
    high_ns: float


class Promise(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One graph, with the winners of its kernels."""

    module: str
    aot_id: str
    promised: Saving
    measured: Saving
    outcome: Outcome


def of_kernel(tuned: Tuned) -> Saving:
    """What a winner saves in a run of its graph: its gain on the default's cold median, times its launches."""
    told = tuned.comparison
    if tuned.final is None or told is None or told.verdict != "faster":
        return Saving(0.0, 0.0, 0.0)
    whole = tuned.final["default"].median_ns * tuned.launches_per_run
    return Saving(whole * (1 - told.ratio), whole * (1 - told.high), whole * (1 - told.low))


def promise(tuned: Sequence[Tuned], replay: ModuleResult) -> Promise | None:
    """The promises of a graph's kernels against its replay; None if the replay was not one with winners."""
    told = next((c for c in replay.wall.comparisons if c.name == "applied"), None)
    if told is None:
        return None
    parts = [of_kernel(kernel) for kernel in tuned if kernel.module == replay.module]
    promised = Saving(
        sum(part.ns for part in parts),
        sum(part.low_ns for part in parts),
        sum(part.high_ns for part in parts),
    )
    whole = replay.wall[told.base].median_ns
    measured = Saving(whole * (1 - told.ratio), whole * (1 - told.high), whole * (1 - told.low))
    return Promise(
        module=replay.module,
        aot_id=replay.aot_id,
        promised=promised,
        measured=measured,
        outcome=outcome(promised, measured, told),
    )


def outcome(promised: Saving, measured: Saving, told: Comparison) -> Outcome:
    """Whether a replay keeps a promise.

    The promise is its interval, wider by ``TOLERANCE`` at both ends. Told faster, the replay confirms it where the
    two intervals meet; above it is more, below it a part. Not told faster, it refutes the promise if the interval
    leaves it out, and else cannot tell: the promise is too small for the replay's noise.
    """
    least, most = promised.low_ns * (1 - TOLERANCE), promised.high_ns * (1 + TOLERANCE)
    if told.verdict == "faster":
        if measured.low_ns > most:
            return "more than promised"
        return "confirmed" if measured.high_ns >= least else "in part"
    return "refuted" if measured.high_ns < least or told.verdict == "slower" else "cannot tell"
