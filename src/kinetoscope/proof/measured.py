"""Savings of findings as measured: by `tune`, by `bench`, or by a second recording."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from kinetoscope import numbers
from kinetoscope.errors import InputError
from kinetoscope.sources.run import LoadedRun
from kinetoscope.statistics import intervals
from kinetoscope.statistics.distribution import mean, variance
from kinetoscope.statistics.intervals import Verdict, student_t

if TYPE_CHECKING:  # a recording without measurements is read without bench
    from kinetoscope.bench.autotune.configurations import Tuned
    from kinetoscope.bench.kept import Kept
    from kinetoscope.bench.kernels.replay import ModuleResult
    from kinetoscope.bench.measure.results import RatioToBase
    from kinetoscope.bench.request import BenchResult
    from kinetoscope.bench.tune.results import SettingRow, Tuning
    from kinetoscope.findings.model import Finding, Proof


class SecondRecording(msgspec.Struct, frozen=True, kw_only=True):
    """The saving proved by a second recording, of the same program with the change that a finding advises."""

    gone: list[tuple[str, str]]  # rule and subject of the findings that the second recording no longer has
    predicted_us: float  # the savings that those promised together, per step
    saving_us: float  # the mean step of the first recording less that of the second, without the profiler
    # 95 %, from the spread of the steps; how runs differ from each other is not in it
    interval_us: tuple[float, float]
    verdict: Verdict
    basis: str

    def proves(self, finding: Finding) -> bool:
        """Whether the difference is this finding's own: it is gone, and no other is."""
        return self.gone == [(finding.rule, finding.subject)]


def after(before: LoadedRun, later: LoadedRun) -> SecondRecording:
    """Compare two recordings of one program. Raises InputError for fewer than two unprofiled steps."""
    from kinetoscope.findings.registry import find  # with it comes what finds; the row needs nothing of it

    first, second = _steps_us(before), _steps_us(later)
    left = {(finding.rule, finding.subject) for finding in find(later)}
    gone = [
        finding
        for finding in find(before)
        if finding.severity != "info"
        and finding.saving.us > 0
        and (finding.rule, finding.subject) not in left
    ]
    saving = mean(first) - mean(second)
    # Welch's interval, with the fewer steps' freedom: a little wide.
    error = math.sqrt(variance(first) / len(first) + variance(second) / len(second))
    margin = student_t(0.975, min(len(first), len(second)) - 1) * error
    interval = saving - margin, saving + margin
    return SecondRecording(
        gone=sorted({(finding.rule, finding.subject) for finding in gone}),
        predicted_us=sum(finding.saving.us for finding in gone),
        saving_us=saving,
        interval_us=interval,
        verdict="faster" if interval[0] > 0 else "slower" if interval[1] < 0 else "cannot tell",
        basis=f"two recordings: a step of {numbers.time(mean(first))} before, {numbers.time(mean(second))} "
        f"after, means of {len(first)} and {len(second)}",
    )


def _steps_us(run: LoadedRun) -> Sequence[float]:
    """Steps without the profiler, of the slowest rank."""
    timed = [rank.steps.unprofiled_s for rank in run.records if len(rank.steps.unprofiled_s) > 1]
    if not timed:
        raise InputError(
            "the time of a step without the profiler is not known here",
            where=str(run.folder) if run.folder else None,
            hint="record both programs with `kinetoscope run`",
        )
    return [seconds * 1e6 for seconds in max(timed, key=mean)]


class MeasuredSaving(msgspec.Struct, frozen=True):
    # per step; negative where the advice costs time, None where it cannot be followed
    saving_us: float | None
    interval_us: tuple[float, float] | None  # 95 %; None where there was one run only
    basis: str  # the measurement in words
    verdict: str  # faster, slower or cannot tell; fails or differs (in its output) where it cannot be used


class Measurements(msgspec.Struct, frozen=True):
    """The measurements of a recording's program: results in its folder, and a second recording."""

    kept: Kept | None = None
    words: tuple[str, ...] | None = None  # the recorded script and its arguments
    devices: Collection[str] = ()  # names of the devices of the recording; empty where it had none
    after: SecondRecording | None = None  # the second recording, of the changed program

    @property
    def unread(self) -> tuple[str, ...]:
        """The files that cannot be read, and why."""
        return self.kept.problems if self.kept else ()

    def of(self, finding: Finding) -> MeasuredSaving | None:
        """The newest measurement of what a finding advises; None where there is none."""
        if self.after is not None and self.after.proves(finding):
            after = self.after
            return MeasuredSaving(after.saving_us, after.interval_us, after.basis, after.verdict)
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


def measurements(run: LoadedRun, later: LoadedRun | None = None) -> Measurements:
    """The results in the recording's ``bench`` folder, and the saving by a recording of the changed program.
    Raises InputError where the two recordings cannot be compared."""
    second = None if later is None else after(run, later)
    if run.folder is None or not (run.folder / "bench").is_dir():
        return Measurements(after=second)
    from kinetoscope.bench.kept import read
    from kinetoscope.findings.commands import program

    names = {device.name for trace in run.traces for device in trace.devices}
    if run.manifest is not None:
        names |= {device.name for device in run.manifest.environment.devices}
    words = program(run.manifest) if run.manifest else None
    return Measurements(read(run.folder), words, names, second)


def by_tune(tuning: Tuning, proof: Proof, words: tuple[str, ...] | None) -> MeasuredSaving | None:
    """The saving of a proof's setting, per step of the program as it is written; None if it was not tried."""
    if words is None:
        return None
    for row in tuning.rows:
        if not _is(row, proof) or not _same_program(tuning.command, row.setting.batch, words):
            continue
        written = _written(tuning.rows, row.setting.batch)
        if row.error is not None:
            return MeasuredSaving(None, None, f"tune: {row.label} fails: {row.error[:200]}", "fails")
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
    of_batch = (row for row in rows if row.as_written and row.setting.batch == batch)
    return next((row for row in of_batch if row.setting.matmul_precision is None), None)


def _difference(written: SettingRow, row: SettingRow, tuning: Tuning) -> MeasuredSaving:
    common = min(len(written.rounds_s), len(row.rounds_s))
    ratio = intervals.compare_rounds(written.rounds_s[:common], row.rounds_s[:common])
    before_us, after_us = (written.step_s or 0.0) * 1e6, (row.step_s or 0.0) * 1e6
    basis = (
        f"tune on {tuning.device}: {numbers.time(before_us)} per step as written ({written.label}), "
        f"{numbers.time(after_us)} under {row.label}, {numbers.count(common, 'round')}"
    )
    differs = row.agrees is False
    return MeasuredSaving(
        before_us - after_us,
        _interval(before_us, ratio) if common > 1 else None,
        f"{basis}; its output differs from eager's" if differs else basis,
        "differs" if differs else intervals.verdict(ratio),
    )


def by_bench(result: BenchResult, proof: Proof) -> MeasuredSaving | None:
    """The saving per step of another configuration of a kernel; None if this kernel was not tuned. The whole
    graph replayed with and without it counts more than the kernel alone."""
    tuned = next((kernel for kernel in result.tuned if kernel.name == proof.kernel), None)
    if tuned is None:
        return None
    tried = sum(trial.median_ns is not None for trial in tuned.trials)
    alone = tuned.comparison
    if alone is None:
        basis = f"bench: the default is the fastest of {tried} configurations"
        return MeasuredSaving(0.0, None, basis, "cannot tell")
    basis = f"bench: the best of {tried} configurations takes {alone.ratio:.3f} of the default's time"
    if alone.verdict != "faster":
        return MeasuredSaving(0.0, None, basis, alone.verdict)
    for module, replay in _replayed_with(result, tuned):
        base_us = module.wall["as recorded"].median_ns / 1e3 * proof.launches / tuned.launches_per_run
        basis += f"; its whole graph replayed with and without it, {replay.ratio:.4f} of the time"
        return MeasuredSaving(base_us * (1 - replay.ratio), _interval(base_us, replay), basis, replay.verdict)
    basis += f"; of {numbers.time(proof.kernel_us)} in a step"
    saving_us = proof.kernel_us * (1 - alone.ratio)
    return MeasuredSaving(saving_us, _interval(proof.kernel_us, alone), basis, alone.verdict)


def _interval(base_us: float, ratio: intervals.Ratio | RatioToBase) -> tuple[float, float]:
    """The interval of the saving, where a change leaves ``ratio`` of a time."""
    return base_us * (1 - ratio.high), base_us * (1 - ratio.low)


def _replayed_with(result: BenchResult, tuned: Tuned) -> Iterator[tuple[ModuleResult, RatioToBase]]:
    """Replays in which this kernel's winner was the only change: with others, the saving is not its own."""
    if [kernel for kernel in result.tuned if kernel.module == tuned.module and kernel.is_faster] == [tuned]:
        for module in result.modules:
            if module.module == tuned.module and (replay := module.wall.comparison("applied")):
                yield module, replay
