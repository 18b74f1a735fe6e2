"""The document of a comparison, which all its renderers read."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from kinetoscope import __version__, document
from kinetoscope.comparison.counts import COUNTED
from kinetoscope.comparison.difference import RunDifference, difference, judged, most_changed
from kinetoscope.comparison.gates import Gate, failed
from kinetoscope.comparison.timelines import timelines
from kinetoscope.document import difference as rows
from kinetoscope.document.collect.rows import row
from kinetoscope.document.collect.sources import environment
from kinetoscope.sources.paths import repetitions
from kinetoscope.sources.run import LoadedRun, load_warning


def compared(
    base: LoadedRun | str | Path,
    new: LoadedRun | str | Path,
    gates: Sequence[Gate] = (),
    *,
    page: bool = False,
    read: Callable[[str], LoadedRun] = load_warning,
) -> rows.Difference:
    """Load with ``read`` what is not loaded, and compare. Raises InputError where that cannot be used."""
    sides = [
        [one] if isinstance(one, LoadedRun) else [read(str(path)) for path in repetitions(Path(one))]
        for one in (base, new)
    ]
    inputs = ([_named(base)], [_named(new)])
    return build(difference(*sides), inputs, (len(sides[0]), len(sides[1])), gates, page=page)


def _named(one: LoadedRun | str | Path) -> str:
    if not isinstance(one, LoadedRun):
        return str(one)
    return str(one.folder or ", ".join(trace.source.path for trace in one.traces[:1]))


def build(
    found: RunDifference,
    inputs: tuple[Sequence[str], Sequence[str]],  # the paths of either side as they were typed
    runs: tuple[int, int],  # how many runs of either there are
    gates: Sequence[Gate] = (),
    *,
    page: bool = False,  # with both timelines
) -> rows.Difference:
    judgements = judged(found, gates)
    lanes = timelines(*found.accounts) if page and found.accounts else None
    base, new = (_side(run, paths, count) for run, paths, count in zip(found.runs, inputs, runs, strict=True))
    return rows.Difference(
        kinetoscope=__version__,
        base=base,
        new=new,
        comparability=found.surroundings.comparability,
        why=list(found.surroundings.why),
        step=found.step,
        changes=list(found.changes),
        facts=list(found.facts),
        counts=_counts(found),
        idle=found.idle,
        categories=found.by.get("category", []),
        ops=found.by.get("op", []),
        modules=found.by.get("module", []),
        graphs=found.by.get("graph", []),
        lines=found.by.get("line", []),
        findings_gone=[row(rows.FindingChange, one, saving_us=one.remaining.saving_us) for one in found.gone],
        findings_come=[row(rows.FindingChange, one, saving_us=one.remaining.saving_us) for one in found.come],
        code=found.code,
        gates=list(judgements),
        failed=failed(judgements),
        lost=list(found.lost),
        device_time=found.device_time,
        timelines=lanes,
        memory=found.memory,
    )


def _side(run: LoadedRun, inputs: Sequence[str], count: int) -> rows.ComparedRun:
    known: document.EnvironmentRow = environment(run)
    manifest = run.manifest
    return rows.ComparedRun(
        inputs=list(inputs),
        devices=known.device_names,
        torch=known.torch or (run.compilation.torch if run.compilation else None),
        created=manifest.created if manifest and manifest.created else None,
        command=shlex.join(manifest.command) if manifest and manifest.command else None,
        runs=count,
        commit=manifest.commit if manifest else None,
    )


def _counts(found: RunDifference) -> list[rows.CountChange]:
    return [
        row(
            rows.CountChange,
            counted,
            name=name,
            base=found.counts[0][name],
            new=found.counts[1][name],
            most=most_changed(found, name),
        )
        for name, counted in COUNTED.items()
        if any(side[name] is not None for side in found.counts)
    ]
