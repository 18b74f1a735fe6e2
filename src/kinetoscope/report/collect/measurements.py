"""What `bench` and `tune` show of their results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar, get_args

import msgspec
import polars as pl

from kinetoscope.analysis.kernels import taxonomy
from kinetoscope.analysis.kernels.categories import classify
from kinetoscope.analysis.kernels.names import short_name
from kinetoscope.analysis.origins import sums
from kinetoscope.analysis.run import load
from kinetoscope.bench.autotune.configurations import Tuned
from kinetoscope.bench.autotune.worth import Skipped
from kinetoscope.bench.kernels.ncu import NcuRow
from kinetoscope.bench.kernels.replay import ModuleResult
from kinetoscope.bench.measure import results
from kinetoscope.bench.request import Result
from kinetoscope.bench.tune.results import Tuning
from kinetoscope.errors import InputError
from kinetoscope.hardware.spec import find
from kinetoscope.recording import manifest
from kinetoscope.report.document.measurements import (
    AutotuneListing,
    AutotuneRow,
    BenchListing,
    BenchRow,
    InModel,
    PromiseRow,
    ReplayedGraph,
    ReplayListing,
    SkippedKernels,
    TuneListing,
    WorkRow,
)

FASTEST = 5  # configurations of a kernel
LONGEST_SKIPPED = 5  # kernels that are not tuned
LONGEST_WORK = 15  # kernels of a graph

Model = Mapping[str, InModel]
Row = TypeVar("Row", bound=msgspec.Struct)


def _excerpt(kind: type[Row], result: msgspec.Struct, **more: object) -> Row:
    """A struct of the document, from a result's fields and properties of the same names and what is added."""
    given = {name: getattr(result, name) for name in kind.__struct_fields__ if hasattr(result, name)}
    return msgspec.convert(given | more, kind, from_attributes=True)


def in_model(path: Path) -> Model:
    """Each kernel in the recorded program, most time first; none of a folder or recording without a trace."""
    if not manifest.is_recording(path) or not any(rank.trace for rank in manifest.read(path).ranks):
        return {}
    table = sums.kernels(load(path)).select("kernel", "median_ns", "share_of_device_time")
    return {str(name): InModel(median_ns, share) for name, median_ns, share in table.iter_rows()}


def benched(result: Result, model: Model) -> BenchListing:
    """Each kernel alone, beside the recorded program, Nsight Compute and what tuning it could win."""
    peak = find(result.device)
    counters = {row.name: row for row in result.ncu}
    worth = {(row.module, row.name): row for row in result.worth}
    rows = [
        _excerpt(
            BenchRow,
            kernel,
            in_model=model.get(kernel.name),
            counters=counters.get(kernel.name),
            worth=worth.get((kernel.module, kernel.name)),
        )
        for kernel in result.kernels
    ]
    notes = [*result.notes, *(note for kernel in result.kernels for note in kernel.notes)]
    bandwidth = peak.bandwidth if peak else None
    return _excerpt(
        BenchListing, result, peak_bandwidth=bandwidth, rows=rows, notes=list(dict.fromkeys(notes))
    )


def measured_alone(folder: Path) -> list[BenchRow]:
    """Each kernel that `bench` measured in a recording, by its newest result; other files are passed."""
    found: dict[str, BenchRow] = {}
    for path in sorted((folder / "bench").glob("kernels-*.json")):
        try:
            result = results.load(path, Result)
        except InputError:
            continue
        found |= {row.name: row for row in benched(result, {}).rows}
    return list(found.values())


def replayed(result: Result) -> ReplayListing:
    """Graphs replayed: their work by category and by kernel, most time first."""
    counters = {row.name: row for row in result.ncu}
    graphs = [_graph(module, counters) for module in result.modules]
    return _excerpt(ReplayListing, result, graphs=graphs, has_counters=bool(counters))


def _graph(module: ModuleResult, counters: Mapping[str, NcuRow]) -> ReplayedGraph:
    categories = _categories([row.name for row in module.work])
    total_ns = sum(row.device_time_ns for row in module.work)
    summed: dict[str, tuple[float, float]] = {}
    for row in module.work:
        launches, time_ns = summed.get(categories[row.name], (0.0, 0.0))
        summed[categories[row.name]] = launches + row.launches, time_ns + row.device_time_ns
    return _excerpt(
        ReplayedGraph,
        module,
        wall=module.wall["as recorded"],
        categories=[
            WorkRow(name, name, launches, time_ns, time_ns / total_ns)
            for name, (launches, time_ns) in sorted(summed.items(), key=lambda item: -item[1][1])
        ],
        kernels=[
            _excerpt(
                WorkRow,
                row,
                name=short_name(row.name),
                category=categories[row.name],
                share=row.device_time_ns / total_ns,
                counters=counters.get(row.name),
            )
            for row in module.work[:LONGEST_WORK]
        ],
    )


def autotuned(result: Result, model: Model) -> AutotuneListing:
    """Which kernels were worth it, the best configurations of each, what they promise and a replay keeps."""
    chosen = [kernel for kernel in result.worth if kernel.skipped is None]
    others = [kernel for kernel in result.worth if kernel.skipped is not None]
    longest = sorted(others, key=lambda kernel: -kernel.cold_ns * kernel.launches_per_run)[:LONGEST_SKIPPED]
    walls = {module.module: module.wall for module in result.modules}
    return _excerpt(
        AutotuneListing,
        result,
        worth=[*chosen, *longest],
        skipped=[
            SkippedKernels(reason, len(left), sum(kernel.could_win_ns for kernel in left))
            for reason in get_args(Skipped)
            if (left := [kernel for kernel in others if kernel.skipped == reason])
        ],
        rows=[_configurations(kernel, model.get(kernel.name)) for kernel in result.tuned],
        promises=[
            _excerpt(
                PromiseRow,
                promise,
                before_ns=walls[promise.module]["as recorded"].median_ns,
                after_ns=walls[promise.module]["applied"].median_ns,
            )
            for promise in result.promises
        ],
    )


def _configurations(kernel: Tuned, recorded: InModel | None) -> AutotuneRow:
    timed = sorted((t for t in kernel.trials if t.median_ns), key=lambda trial: trial.median_ns or math.inf)
    default = [trial for trial in timed[FASTEST:] if trial.configuration == kernel.default]
    saves_ns: float | None = None
    if recorded is not None and kernel.comparison is not None and kernel.is_faster:
        saves_ns = kernel.comparison.gain(recorded.median_ns * kernel.launches_per_run).ns
    return _excerpt(
        AutotuneRow,
        kernel,
        fastest=timed[:FASTEST] + default,
        timed=len(timed),
        unusable=len(kernel.trials) - len(timed),
        saves_in_model_ns=saves_ns,
    )


def tuned(tuning: Tuning) -> TuneListing:
    """The settings side by side."""
    return _excerpt(TuneListing, tuning)


def _categories(names: Sequence[str]) -> dict[str, str]:
    """The category of each piece of device work, by its name alone."""
    kinds = [
        "memcpy" if n.startswith("Memcpy") else "memset" if n.startswith("Memset") else "kernel"
        for n in names
    ]
    series = pl.Series("name", names, pl.String)
    unknown = pl.Series([None] * len(names), dtype=pl.String)
    never = pl.Series([False] * len(names), dtype=pl.Boolean)
    under = {rule.under: never for rule in taxonomy.RULES if rule.under is not None}
    categories = classify(pl.Series(kinds, dtype=pl.String), series, never, unknown, under)
    return dict(zip(names, categories.cast(pl.String), strict=True))
