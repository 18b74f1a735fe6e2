"""Results of `bench` and `tune` as rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import polars as pl

from kinetoscope.analysis.kernels.names import short_name
from kinetoscope.analysis.kernels.work import classify
from kinetoscope.analysis.origins import sums
from kinetoscope.bench.autotune.configurations import Tuned
from kinetoscope.bench.autotune.worth import Skipped
from kinetoscope.bench.kernels.ncu import NcuRow
from kinetoscope.bench.kernels.replay import ModuleResult
from kinetoscope.bench.request import BenchResult
from kinetoscope.document import measurements as document
from kinetoscope.hardware import find
from kinetoscope.recording import manifest
from kinetoscope.sources.run import load

FASTEST = 5  # configurations of a kernel
LONGEST_SKIPPED = 5  # kernels that are not tuned
LONGEST_WORK = 15  # kernels of a graph

Model = Mapping[str, document.InModel]


def in_model(path: Path) -> Model:
    """Each kernel in the recorded program, most time first; none of a folder or recording without a trace."""
    if not manifest.is_recording(path) or not any(rank.trace for rank in manifest.read(path).ranks):
        return {}
    table = sums.kernels(load(path)).select("kernel", "median_ns", "share_of_device_time")
    return {str(name): document.InModel(median_ns, share) for name, median_ns, share in table.iter_rows()}


def benched(result: BenchResult, model: Model) -> document.BenchListing:
    """Each kernel alone, with its time in the program, Nsight Compute's figures and what tuning could win."""
    peak = find(result.device)
    counters = {row.name: row for row in result.ncu}
    worth = {(row.module, row.name): row for row in result.worth}
    rows = [
        document.BenchRow(
            kernel, model.get(kernel.name), counters.get(kernel.name), worth.get((kernel.module, kernel.name))
        )
        for kernel in result.kernels
    ]
    notes = [*result.notes, *(note for kernel in result.kernels for note in kernel.notes)]
    bandwidth = peak.bandwidth if peak else None
    return document.BenchListing(result.device, bandwidth, rows, list(dict.fromkeys(notes)), result.problems)


def replayed(result: BenchResult) -> document.ReplayListing:
    """Graphs replayed: their work by category and by kernel, most time first."""
    counters = {row.name: row for row in result.ncu}
    graphs = [_graph(module, counters) for module in result.modules]
    return document.ReplayListing(graphs, bool(counters), result.problems, result.notes)


def _graph(module: ModuleResult, counters: Mapping[str, NcuRow]) -> document.ReplayedGraph:
    categories = _categories([row.name for row in module.work])
    total_ns = sum(row.device_time_ns for row in module.work)
    summed: dict[str, tuple[float, float]] = {}
    for row in module.work:
        launches, time_ns = summed.get(categories[row.name], (0.0, 0.0))
        summed[categories[row.name]] = launches + row.launches, time_ns + row.device_time_ns
    by_category = sorted(summed.items(), key=lambda item: -item[1][1])
    return document.ReplayedGraph(
        module,
        [
            document.ReplayedWork(name, name, n, time_ns, time_ns / total_ns)
            for name, (n, time_ns) in by_category
        ],
        [
            document.ReplayedWork(
                short_name(row.name),
                categories[row.name],
                row.launches,
                row.device_time_ns,
                row.device_time_ns / total_ns,
                counters.get(row.name),
            )
            for row in module.work[:LONGEST_WORK]
        ],
    )


def autotuned(result: BenchResult, model: Model) -> document.AutotuneListing:
    """Which kernels were worth it, the best configurations of each, what they promise and a replay keeps."""
    chosen = [kernel for kernel in result.worth if kernel.skipped is None]
    others = [kernel for kernel in result.worth if kernel.skipped is not None]
    longest = sorted(others, key=lambda kernel: -kernel.cold_ns * kernel.launches_per_run)[:LONGEST_SKIPPED]
    walls = {module.module: module.wall for module in result.modules}
    return document.AutotuneListing(
        worth=[*chosen, *longest],
        skipped=[
            document.SkippedKernels(reason, len(left), sum(kernel.could_win_ns for kernel in left))
            for reason in get_args(Skipped)
            if (left := [kernel for kernel in others if kernel.skipped == reason])
        ],
        rows=[_configurations(kernel, model.get(kernel.name)) for kernel in result.tuned],
        promises=[
            document.PromiseRow(
                promise,
                before_ns=walls[promise.module]["as recorded"].median_ns,
                after_ns=walls[promise.module]["applied"].median_ns,
            )
            for promise in result.promises
        ],
        applied=result.applied,
        problems=result.problems,
        notes=result.notes,
    )


def _configurations(kernel: Tuned, recorded: document.InModel | None) -> document.AutotuneRow:
    timed = sorted((t for t in kernel.trials if t.median_ns), key=lambda trial: trial.median_ns or math.inf)
    default = [trial for trial in timed[FASTEST:] if trial.configuration == kernel.default]
    saves_ns: float | None = None
    if recorded is not None and kernel.comparison is not None and kernel.is_faster:
        saves_ns = kernel.comparison.gain(recorded.median_ns * kernel.launches_per_run).ns
    return document.AutotuneRow(kernel, timed[:FASTEST] + default, len(timed), saves_ns)


def _categories(names: Sequence[str]) -> dict[str, str]:
    kinds = [
        "memcpy" if n.startswith("Memcpy") else "memset" if n.startswith("Memset") else "kernel"
        for n in names
    ]
    table = pl.DataFrame({"kind": kinds, "name": names}, {"kind": pl.String, "name": pl.String})
    return dict(zip(names, classify(table.with_columns(is_collective=False)), strict=True))
