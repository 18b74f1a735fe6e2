"""What the winners of one graph promise together, and what its replay with and without them says to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from kinetoscope.bench.autotune.configurations import Tuned
from kinetoscope.bench.kernels.replay import ModuleResult
from kinetoscope.bench.measure.results import Comparison, Gain

# Kernels alone and kernels in their graph find other caches: a saving within this of the promise keeps it.
TOLERANCE = 0.2

Outcome = Literal["confirmed", "more than promised", "in part", "refuted", "cannot tell"]


class Promise(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One graph with the winners of its kernels; gains are of one run of it."""

    module: str
    aot_id: str
    promised: Gain
    measured: Gain
    outcome: Outcome


def promise(tuned: Sequence[Tuned], replay: ModuleResult) -> Promise | None:
    """The promises of a graph's kernels against its replay; None if the replay was not one with winners."""
    comparison = replay.wall.comparison("applied")
    if comparison is None:
        return None
    parts = [kernel.gain for kernel in tuned if kernel.module == replay.module]
    promised = Gain(
        sum(part.ns for part in parts),
        sum(part.low_ns for part in parts),
        sum(part.high_ns for part in parts),
    )
    measured = comparison.gain(replay.wall[comparison.base].median_ns)
    return Promise(
        module=replay.module,
        aot_id=replay.aot_id,
        promised=promised,
        measured=measured,
        outcome=outcome(promised, measured, comparison),
    )


def outcome(promised: Gain, measured: Gain, comparison: Comparison) -> Outcome:
    """Whether a replay keeps a promise.

    The promise is its interval, wider by ``TOLERANCE`` at both ends. A faster replay confirms it where the
    intervals meet; above it is more, below it a part. Another refutes it where its interval leaves it out;
    else it cannot tell: the promise is too small for the replay's noise.
    """
    least, most = promised.low_ns * (1 - TOLERANCE), promised.high_ns * (1 + TOLERANCE)
    if comparison.verdict == "faster":
        if measured.low_ns > most:
            return "more than promised"
        return "confirmed" if measured.high_ns >= least else "in part"
    return "refuted" if measured.high_ns < least or comparison.verdict == "slower" else "cannot tell"
