"""What `tune` and `bench` measured of the savings that findings predict."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kinetoscope import numbers
from kinetoscope.analysis.run import Run
from kinetoscope.bench.measure import statistics
from kinetoscope.bench.tune.settings import Setting
from kinetoscope.findings.model import Finding, Proof
from kinetoscope.findings.proof.after import After, after
from kinetoscope.findings.proof.commands import program

if TYPE_CHECKING:  # a recording without measurements is read without bench
    from kinetoscope.bench.autotune.configurations import Tuned
    from kinetoscope.bench.kept import Kept
    from kinetoscope.bench.kernels.replay import ModuleResult
    from kinetoscope.bench.request import Result
    from kinetoscope.bench.tune.results import Row, Tuning


@dataclass(frozen=True)
class Measured:
    """A saving as measured.

    Args:
        saving_us: per step; negative where the advice costs time, None where it cannot be followed.
        interval_us: 95 %; None where one run cannot tell it.
        basis: what was measured, in words.
        verdict: faster, slower or cannot tell; fails or differs (in its output) where it cannot be used.
    """

    saving_us: float | None
    interval_us: tuple[float, float] | None
    basis: str
    verdict: str


@dataclass(frozen=True)
class Proofs:
    """The results in a recording that are of its own program, on a device like its own.

    Args:
        words: the recorded script and its arguments.
        devices: names of the devices of the recording; empty where it had none.
        after: what a second recording shows, of the changed program.
    """

    kept: Kept | None = None
    words: tuple[str, ...] | None = None
    devices: Collection[str] = ()
    after: After | None = None

    @property
    def unread(self) -> tuple[str, ...]:
        """The files that cannot be read, and why."""
        return self.kept.problems if self.kept else ()

    def of(self, finding: Finding) -> Measured | None:
        """The newest measurement of what a finding advises; None where there is none."""
        if self.after is not None and self.after.proves(finding):
            told = self.after
            return Measured(told.saving_us, told.interval_us, told.basis, told.verdict)
        proof = finding.proof
        if proof is None or self.kept is None:
            return None
        if proof.setting is not None:
            found = (by_tune(t, proof.setting, self.words) for t in self.kept.tunings if self._here(t.device))
        else:
            found = (by_bench(r, proof) for r in self.kept.autotuned if self._here(r.device))
        return next((measured for measured in found if measured is not None), None)

    def _here(self, device: str) -> bool:
        return device in self.devices or (device == "cpu" and not self.devices)


def proofs(run: Run, later: Run | None = None) -> Proofs:
    """What lies in the recording's ``bench`` folder, and what a recording of the changed program shows."""
    found = None if later is None else after(run, later)
    if run.folder is None or not (run.folder / "bench").is_dir():
        return Proofs(after=found)
    from kinetoscope.bench.kept import read

    names = {device.name for trace in run.traces for device in trace.devices}
    if run.manifest is not None:
        names |= {device.name for device in run.manifest.environment.devices}
    words = program(run.manifest) if run.manifest else None
    return Proofs(read(run.folder), words, names, found)


def by_tune(tuning: Tuning, setting: Setting, words: tuple[str, ...] | None) -> Measured | None:
    """What a setting saves of a step of the program as it is written; None if this was not tried for these words."""
    if words is None:
        return None
    for row in tuning.rows:
        if not _is(row, setting) or not _same_program(tuning.command, row.setting.batch, words):
            continue
        written = _written(tuning.rows, row.setting.batch)
        if row.error is not None:
            return Measured(None, None, f"tune: {row.label} fails: {row.error[:200]}", "fails")
        if written is not None and written.step_s is not None and row.step_s is not None:
            return _difference(written, row, tuning)
    return None


def _is(row: Row, setting: Setting) -> bool:
    mine = row.setting
    if setting.as_written:
        return row.as_written and mine.matmul_precision == setting.matmul_precision
    backend = None if mine.backend == "inductor" else mine.backend
    return (mine.mode, backend, mine.dynamic, mine.matmul_precision) == (
        setting.mode,
        setting.backend,
        setting.dynamic,
        setting.matmul_precision,
    )


def _same_program(command: tuple[str, ...], batch: str | None, words: tuple[str, ...]) -> bool:
    ran = [word.replace("{batch}", batch or "") for word in command]
    return [*map(os.path.normpath, ran[:1]), *ran[1:]] == [*map(os.path.normpath, words[:1]), *words[1:]]


def _written(rows: Collection[Row], batch: str | None) -> Row | None:
    return next(
        (
            row
            for row in rows
            if row.as_written and row.setting.batch == batch and row.setting.matmul_precision is None
        ),
        None,
    )


def _difference(written: Row, row: Row, tuning: Tuning) -> Measured:
    common = min(len(written.rounds_s), len(row.rounds_s))
    told = statistics.compare_rounds(written.rounds_s[:common], row.rounds_s[:common])
    before_us, after_us = (written.step_s or 0.0) * 1e6, (row.step_s or 0.0) * 1e6
    basis = (
        f"tune on {tuning.device}: {numbers.time(before_us)} a step as written ({written.label}), "
        f"{numbers.time(after_us)} under {row.label}, {numbers.count(common, 'round')}"
    )
    differs = row.agrees is False
    return Measured(
        before_us - after_us,
        (before_us * (1 - told.high), before_us * (1 - told.low)) if common > 1 else None,
        f"{basis}; its output differs from eager's" if differs else basis,
        "differs" if differs else statistics.verdict(told),
    )


def by_bench(result: Result, proof: Proof) -> Measured | None:
    """What another configuration of a kernel saves of a step; None if this kernel was not tuned.

    The whole graph replayed with and without it counts more than the kernel alone.
    """
    tuned = next((kernel for kernel in result.tuned if kernel.name == proof.kernel), None)
    if tuned is None:
        return None
    tried = sum(trial.median_ns is not None for trial in tuned.trials)
    told = tuned.comparison
    if told is None:
        return Measured(
            0.0, None, f"bench: the default is the fastest of {tried} configurations", "cannot tell"
        )
    alone = f"bench: the best of {tried} configurations takes {told.ratio:.3f} of the default's time"
    if told.verdict != "faster":
        return Measured(0.0, None, alone, told.verdict)
    for module in _replayed_with(result, tuned):
        replay = next(c for c in module.wall.comparisons if c.name == "applied")
        base_us = module.wall["as recorded"].median_ns / 1e3 * proof.launches / tuned.launches_per_run
        saved = (base_us * (1 - replay.high), base_us * (1 - replay.low))
        return Measured(
            base_us * (1 - replay.ratio),
            saved,
            f"{alone}; its whole graph replayed with and without it, {replay.ratio:.4f} of the time",
            replay.verdict,
        )
    of = f"; of {numbers.time(proof.kernel_us)} in a step"
    saved = (proof.kernel_us * (1 - told.high), proof.kernel_us * (1 - told.low))
    return Measured(proof.kernel_us * (1 - told.ratio), saved, alone + of, told.verdict)


def _replayed_with(result: Result, tuned: Tuned) -> Iterator[ModuleResult]:
    """Replays in which this kernel's winner was the only change: with others, the saving is not its own."""
    changed = [
        kernel.name
        for kernel in result.tuned
        if kernel.module == tuned.module and kernel.comparison and kernel.comparison.verdict == "faster"
    ]
    if changed == [tuned.name]:
        for module in result.modules:
            if module.module == tuned.module and any(c.name == "applied" for c in module.wall.comparisons):
                yield module
