"""What `tune` and `bench` measured of the savings that findings predict."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kinetoscope import numbers
from kinetoscope.findings.commands import program
from kinetoscope.findings.model import Finding, Proof
from kinetoscope.proof.after import After, after
from kinetoscope.sources.run import Run
from kinetoscope.statistics import intervals

if TYPE_CHECKING:  # a recording without measurements is read without bench
    from kinetoscope.bench.autotune.configurations import Tuned
    from kinetoscope.bench.kept import Kept
    from kinetoscope.bench.kernels.replay import ModuleResult
    from kinetoscope.bench.measure.results import RatioToBase
    from kinetoscope.bench.request import BenchResult
    from kinetoscope.bench.tune.results import SettingRow, Tuning


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
class Measurements:
    """What was measured of a recording's program: by results that lie in it, and by a second recording.

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
            after = self.after
            return Measured(after.saving_us, after.interval_us, after.basis, after.verdict)
        proof = finding.proof
        if proof is None or self.kept is None:
            return None
        if proof.kernel is None:
            tunings = filter(self._here, self.kept.tunings)
            measured = (by_tune(tuning, proof, self.words) for tuning in tunings)
        else:
            measured = (by_bench(result, proof) for result in filter(self._here, self.kept.autotuned))
        return next((newest for newest in measured if newest is not None), None)

    def _here(self, result: Tuning | BenchResult) -> bool:
        """Measured on a device like the recording's."""
        return result.device in self.devices or (result.device == "cpu" and not self.devices)


def measurements(run: Run, later: Run | None = None) -> Measurements:
    """What lies in the recording's ``bench`` folder, and what a recording of the changed program shows.

    Raises:
        InputError: the two recordings cannot be compared.
    """
    second = None if later is None else after(run, later)
    if run.folder is None or not (run.folder / "bench").is_dir():
        return Measurements(after=second)
    from kinetoscope.bench.kept import read

    names = {device.name for trace in run.traces for device in trace.devices}
    if run.manifest is not None:
        names |= {device.name for device in run.manifest.environment.devices}
    words = program(run.manifest) if run.manifest else None
    return Measurements(read(run.folder), words, names, second)


def by_tune(tuning: Tuning, proof: Proof, words: tuple[str, ...] | None) -> Measured | None:
    """The saving of a proof's setting, per step of the program as it is written; None if it was not tried."""
    if words is None:
        return None
    for row in tuning.rows:
        if not _is(row, proof) or not _same_program(tuning.command, row.setting.batch, words):
            continue
        written = _written(tuning.rows, row.setting.batch)
        if row.error is not None:
            return Measured(None, None, f"tune: {row.label} fails: {row.error[:200]}", "fails")
        if written is not None and written.step_s is not None and row.step_s is not None:
            return _difference(written, row, tuning)
    return None


def _is(row: SettingRow, proof: Proof) -> bool:
    tried = row.setting
    if tried.matmul_precision != proof.matmul_precision:
        return False
    if proof.mode is None:
        return row.as_written
    return tried.mode == proof.mode and tried.backend in (None, "inductor") and tried.dynamic is None


def _same_program(command: tuple[str, ...], batch: str | None, words: tuple[str, ...]) -> bool:
    ran = [word.replace("{batch}", batch or "") for word in command]
    return [*map(os.path.normpath, ran[:1]), *ran[1:]] == [*map(os.path.normpath, words[:1]), *words[1:]]


def _written(rows: Collection[SettingRow], batch: str | None) -> SettingRow | None:
    return next(
        (
            row
            for row in rows
            if row.as_written and row.setting.batch == batch and row.setting.matmul_precision is None
        ),
        None,
    )


def _difference(written: SettingRow, row: SettingRow, tuning: Tuning) -> Measured:
    common = min(len(written.rounds_s), len(row.rounds_s))
    ratio = intervals.compare_rounds(written.rounds_s[:common], row.rounds_s[:common])
    before_us, after_us = (written.step_s or 0.0) * 1e6, (row.step_s or 0.0) * 1e6
    basis = (
        f"tune on {tuning.device}: {numbers.time(before_us)} per step as written ({written.label}), "
        f"{numbers.time(after_us)} under {row.label}, {numbers.count(common, 'round')}"
    )
    differs = row.agrees is False
    return Measured(
        before_us - after_us,
        _interval(before_us, ratio) if common > 1 else None,
        f"{basis}; its output differs from eager's" if differs else basis,
        "differs" if differs else intervals.verdict(ratio),
    )


def by_bench(result: BenchResult, proof: Proof) -> Measured | None:
    """What another configuration of a kernel saves of a step; None if this kernel was not tuned.

    The whole graph replayed with and without it counts more than the kernel alone.
    """
    tuned = next((kernel for kernel in result.tuned if kernel.name == proof.kernel), None)
    if tuned is None:
        return None
    tried = sum(trial.median_ns is not None for trial in tuned.trials)
    alone = tuned.comparison
    if alone is None:
        basis = f"bench: the default is the fastest of {tried} configurations"
        return Measured(0.0, None, basis, "cannot tell")
    basis = f"bench: the best of {tried} configurations takes {alone.ratio:.3f} of the default's time"
    if alone.verdict != "faster":
        return Measured(0.0, None, basis, alone.verdict)
    for module in _replayed_with(result, tuned):
        replay = next(c for c in module.wall.comparisons if c.name == "applied")
        base_us = module.wall["as recorded"].median_ns / 1e3 * proof.launches / tuned.launches_per_run
        basis += f"; its whole graph replayed with and without it, {replay.ratio:.4f} of the time"
        return Measured(base_us * (1 - replay.ratio), _interval(base_us, replay), basis, replay.verdict)
    basis += f"; of {numbers.time(proof.kernel_us)} in a step"
    saving_us = proof.kernel_us * (1 - alone.ratio)
    return Measured(saving_us, _interval(proof.kernel_us, alone), basis, alone.verdict)


def _interval(base_us: float, ratio: intervals.Ratio | RatioToBase) -> tuple[float, float]:
    """Between what is saved where a change leaves so much of a time."""
    return base_us * (1 - ratio.high), base_us * (1 - ratio.low)


def _replayed_with(result: BenchResult, tuned: Tuned) -> Iterator[ModuleResult]:
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
