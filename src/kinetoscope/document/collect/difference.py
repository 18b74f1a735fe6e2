"""A comparison to the document that all its renderers read."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from kinetoscope import __version__, document
from kinetoscope.analysis.kernels.names import short_name
from kinetoscope.comparison.changes import Change, Work
from kinetoscope.comparison.counts import COUNTED
from kinetoscope.comparison.culprits import judged
from kinetoscope.comparison.difference import Difference, Sums, difference
from kinetoscope.comparison.gates import Gate, failed
from kinetoscope.comparison.step_time import StepTime
from kinetoscope.comparison.timelines import timelines
from kinetoscope.document import difference as rows
from kinetoscope.document.collect.rows import row
from kinetoscope.document.collect.sources import environment
from kinetoscope.findings.model import Finding
from kinetoscope.sources.paths import repetitions
from kinetoscope.sources.run import Run, load_warning


def compared(
    base: Run | str | Path,
    new: Run | str | Path,
    gates: Sequence[Gate] = (),
    *,
    page: bool = False,
    read: Callable[[str], Run] = load_warning,
) -> rows.Difference:
    """Load with ``read`` what is not loaded, and compare.

    Raises:
        InputError: one of them cannot be used.
    """
    sides = [
        [one] if isinstance(one, Run) else [read(str(path)) for path in repetitions(Path(one))]
        for one in (base, new)
    ]
    inputs = ([_named(base)], [_named(new)])
    return build(difference(*sides), inputs, (len(sides[0]), len(sides[1])), gates, page=page)


def _named(one: Run | str | Path) -> str:
    if not isinstance(one, Run):
        return str(one)
    return str(one.folder or ", ".join(trace.source.path for trace in one.traces[:1]))


def build(
    found: Difference,
    inputs: tuple[Sequence[str], Sequence[str]],
    runs: tuple[int, int],
    gates: Sequence[Gate] = (),
    *,
    page: bool = False,
) -> rows.Difference:
    """Fill the document.

    Args:
        inputs: the paths of either side as they were typed.
        runs: how many runs of either there are.
        page: with both timelines.
    """
    judgements = judged(found, gates)
    lanes = timelines(*found.accounts) if page and found.accounts else None
    base, new = (_side(run, paths, count) for run, paths, count in zip(found.runs, inputs, runs, strict=True))
    return rows.Difference(
        kinetoscope=__version__,
        base=base,
        new=new,
        comparability=found.surroundings.comparability,
        why=list(found.surroundings.why),
        step=None if found.step is None else _step(found.step, found.unit),
        changes=[_change(change) for change in found.changes],
        facts=list(found.facts),
        counts=_counts(found),
        idle=_sums(found.idle),
        categories=_sums(found.by.get("category", [])),
        ops=_sums(found.by.get("op", [])),
        modules=_sums(found.by.get("module", [])),
        graphs=_sums(found.by.get("graph", [])),
        lines=_sums(found.by.get("line", [])),
        findings_gone=[_finding(one) for one in found.gone],
        findings_come=[_finding(one) for one in found.come],
        code=found.code,
        gates=list(judgements),
        failed=failed(judgements),
        lost=list(found.lost),
        timelines=lanes,
    )


def _side(run: Run, inputs: Sequence[str], count: int) -> rows.ComparedRun:
    known: document.EnvironmentRow = environment(run)
    manifest = run.manifest
    return rows.ComparedRun(
        inputs=list(inputs),
        devices=known.device_names,
        torch=known.torch or (run.compilation.torch if run.compilation else None),
        created=manifest.created if manifest and manifest.created else None,
        command=shlex.join(manifest.command) if manifest and manifest.command else None,
        runs=count,
    )


def _step(step: StepTime, unit: str) -> rows.StepChange:
    return rows.StepChange(
        base_us=step.base_us,
        new_us=step.new_us,
        delta_us=step.delta_us,
        low=_bound(step.low),
        high=_bound(step.high),
        fraction=step.delta_us / step.base_us if step.base_us else 0.0,
        low_fraction=_bound(step.low / step.base_us) if step.base_us else None,
        high_fraction=_bound(step.high / step.base_us) if step.base_us else None,
        verdict=step.verdict,
        basis=step.basis,
        unit=unit,
    )


def _bound(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _change(change: Change) -> rows.ChangePart:
    return row(
        rows.ChangePart,
        change,
        base=[_work(one) for one in change.base],
        new=[_work(one) for one in change.new],
        ops=list(change.ops),
        graphs=list(change.graphs),
        parts=[_change(part) for part in change.parts],
    )


def _work(work: Work) -> rows.WorkRow:
    return row(rows.WorkRow, work, short_name=short_name(work.name))


def _counts(found: Difference) -> list[rows.CountChange]:
    return [
        row(rows.CountChange, counted, name=name, base=found.counts[0][name], new=found.counts[1][name])
        for name, counted in COUNTED.items()
        if any(side[name] is not None for side in found.counts)
    ]


def _sums(sums: Sums) -> list[rows.SumChange]:
    return [
        rows.SumChange(name=name, base_us=base_us, new_us=new_us, delta_us=new_us - base_us)
        for name, base_us, new_us in sums
    ]


def _finding(finding: Finding) -> rows.FindingChange:
    return row(rows.FindingChange, finding, saving_us=finding.remaining.us)
