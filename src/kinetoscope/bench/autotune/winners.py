"""The winners of tuning: written for Inductor to use, and their promise compared with their graph's replay.

Inductor looks every kernel up in ``torch._inductor.config.autotune_lookup_table`` (kernel text →
configuration) before it chooses by itself. `write` puts such a table into a file, and says what loads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from kinetoscope.bench import torch_names
from kinetoscope.bench.autotune.configurations import Tuned
from kinetoscope.bench.kernels import replica
from kinetoscope.bench.kernels.generated import ModuleSource
from kinetoscope.bench.kernels.replay import ModuleResult
from kinetoscope.bench.measure import results
from kinetoscope.bench.measure.results import Gain, RatioToBase


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The table that was written, and what Inductor did with it."""

    table: str
    lines: tuple[str, ...]  # to put into the program before its first compiled call
    kernels: tuple[str, ...]
    picked_up: tuple[str, ...]  # kernels that Inductor, given the table, builds in the winning configuration


def winners(tuned: Sequence[Tuned]) -> dict[str, dict[str, int]]:
    """Kernel name → configuration, for each kernel whose winner is faster than its default."""
    return {kernel.name: kernel.winner for kernel in tuned if kernel.is_faster}


def write(folder: Path, tuned: Sequence[Tuned], modules: Mapping[str, ModuleSource]) -> Applied:
    """Write the winners as ``folder/bench/autotune_lookup_table.json`` and have Inductor read them back."""
    chosen = winners(tuned)
    table = {k.lookup_key: k.winner for k in tuned if k.name in chosen and k.lookup_key is not None}
    path = results.save(folder, "autotune_lookup_table", table)
    picked_up: list[str] = []
    with torch_names.lookup_table(table):
        for kernel in tuned:
            if kernel.name in chosen:
                source = modules[kernel.module].kernels[kernel.name].source
                configs = getattr(replica.load_source(source), kernel.name).configs
                if [torch_names.configuration(c) for c in configs] == [kernel.winner]:
                    picked_up.append(kernel.name)
    return Applied(
        table=str(path),
        lines=(
            "import json, torch._inductor.config",
            f"torch._inductor.config.autotune_lookup_table.update(json.load(open({str(path)!r})))",
        ),
        kernels=tuple(chosen),
        picked_up=tuple(picked_up),
    )


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


def outcome(promised: Gain, measured: Gain, comparison: RatioToBase) -> Outcome:
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
