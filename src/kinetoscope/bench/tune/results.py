"""Results of `tune`: a row per setting with its ratio to the base, and which one to use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from kinetoscope.bench.tune.settings import Setting, is_program
from kinetoscope.bench.tune.trial import TrialResult
from kinetoscope.statistics import distribution, intervals

SCHEMA = "kinetoscope.tune/1"
# Outputs that differ by no more than this agree (mixed precision's last bits differ by far less).
TOLERANCE = 0.05
# torch.OutOfMemoryError; of the host's memory torch raises RuntimeError, and Python MemoryError.
OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|MemoryError|out of memory|can't allocate memory")


class SettingRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One setting, after all rounds.

    Ratios are of step times to eager's of the same batch; where every batch is a number, of the time of a
    sample to that of eager with the first batch. Below 1 is faster.
    """

    setting: Setting
    label: str
    as_written: bool = False  # the program runs under this setting by itself
    step_s: float | None = None  # median over rounds of each round's median steady step
    rounds_s: tuple[float, ...] = ()
    steps: int = 0
    samples_per_s: float | None = None  # batch over step; null where the batch is not a number
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: intervals.Verdict | None = None
    startup_s: float | None = None
    """From the start to the first steady step, less the steps between at their steady time; cold caches."""
    compile_s: float | None = None
    """Start-up beyond eager's: tracing, compiling, autotuning, recording graphs."""
    break_even_steps: int | None = None
    """Steps until the time saved has paid for ``compile_s``; null where none is saved."""
    peak_memory_bytes: int | None = None
    graph_breaks: int = 0
    graphs: int = 0
    output_difference: float | None = None
    """‖output − eager's‖ / ‖eager's‖ of the first call; null where it cannot be compared."""
    agrees: bool | None = None
    notes: tuple[str, ...] = ()
    error: str | None = None

    @property
    def ran_out(self) -> bool:
        """Whether it failed for lack of memory: the device's, or the host's."""
        return self.error is not None and ran_out(self.error)


def ran_out(error: str) -> bool:
    """Whether a program's error is want of memory."""
    return OUT_OF_MEMORY.search(error) is not None


class BatchesThatFit(msgspec.Struct, frozen=True, kw_only=True):
    """Batch sizes by whether all of their settings had memory enough; null: there is none."""

    largest: int | None
    too_large: int | None  # the smallest


class Tuning(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    schema: str = SCHEMA
    command: tuple[str, ...] = ()
    device: str = ""
    steps_by: str | None = None
    step_name: str | None = None
    rounds: int = 0
    tokens_per_sample: int | None = None  # as the caller says
    rows: tuple[SettingRow, ...] = ()
    fits: BatchesThatFit | None = None  # where a batch ran out of memory
    recommendation: str = ""
    lines: tuple[str, ...] = ()  # to write into the program
    reports: dict[str, tuple[TrialResult, ...]] = {}


def steady(report: TrialResult) -> list[float]:
    """The steps after warm-up: those after the last one, within the first half, that took over twice the
    usual, and after those that were slowed by being watched, as long as as many are left."""
    durations = report.steps_s
    half = len(durations) // 2
    usual = distribution.median(durations[half:])
    start = max(1, min(report.watched, half))
    for index in range(half):
        if durations[index] > 2 * usual:
            start = max(start, index + 1)
    return list(durations[start:])


def conclude(
    settings: Sequence[Setting],
    reports: Mapping[str, Sequence[TrialResult]],  # each setting's trials, a round each, under its label
    # of each setting's first outputs from those of eager with the same batch
    differences: Mapping[str, float | None],
    compile_module: str | None,  # what was compiled in a program that compiles nothing itself
) -> Tuning:
    """The table of what the trials saw."""
    eager = [setting for setting in settings if setting.is_base]
    of_batch = {setting.batch: setting for setting in eager}
    per_sample = all(setting.samples for setting in settings)
    first = reports[eager[0].label][0]
    timed = {setting.label: _timed(setting, reports[setting.label], first.own) for setting in settings}
    rows: list[SettingRow] = []
    for setting in settings:
        eager_here = of_batch[setting.batch]
        base = eager[0] if per_sample else eager_here
        row = timed[setting.label]
        if setting != base and row.error is None and timed[base.label].error is None:
            row = _compared(row, timed[base.label])
        if setting != eager_here and row.error is None and timed[eager_here.label].error is None:
            row = _started(row, timed[eager_here.label], differences.get(setting.label))
        rows.append(row)
    recommendation, lines = recommend(rows, compile_module)
    return Tuning(
        device=first.device,
        steps_by=first.steps_by,
        step_name=first.step_name,
        rounds=max(len(r) for r in reports.values()),
        rows=tuple(rows),
        fits=fits(rows),
        recommendation=recommendation,
        lines=lines,
        reports={label: tuple(r) for label, r in reports.items()},
    )


def fits(rows: Sequence[SettingRow]) -> BatchesThatFit | None:
    """Which batches fit, where one did not and all are numbers."""
    batches = {row.setting.samples for row in rows}
    too_large = {row.setting.samples for row in rows if row.ran_out}
    if not too_large or None in batches:
        return None
    failed = {row.setting.samples for row in rows if row.error is not None}
    return BatchesThatFit(
        largest=max((batch for batch in batches - failed if batch), default=None),
        too_large=min(batch for batch in too_large if batch),
    )


def _timed(setting: Setting, reports: Sequence[TrialResult], own: Sequence[Setting]) -> SettingRow:
    error = next((report.error for report in reports if report.error), None)
    if error is not None or not reports or any(len(report.steps_s) < 3 for report in reports):
        return SettingRow(setting=setting, label=setting.label, error=error or "no steps were found")
    medians = [distribution.median(steady(report)) for report in reports]
    step_s = distribution.median(medians)
    return SettingRow(
        setting=setting,
        label=setting.label,
        as_written=is_program(setting, own),
        step_s=step_s,
        rounds_s=tuple(medians),
        steps=sum(len(steady(report)) for report in reports),
        samples_per_s=None if setting.samples is None else setting.samples / step_s,
        startup_s=_startup(reports[0]),
        peak_memory_bytes=reports[0].peak_memory_bytes,
        graph_breaks=reports[0].graph_breaks,
        graphs=reports[0].graphs,
        notes=reports[0].notes,
    )


def _compared(row: SettingRow, base: SettingRow) -> SettingRow:
    """The row with its ratio to the base: of a sample's time where both batches are numbers, or a step's."""
    larger = (
        (row.setting.samples or 1) / (base.setting.samples or 1)
        if row.setting.batch != base.setting.batch
        else 1
    )
    common = min(len(row.rounds_s), len(base.rounds_s))
    interval = intervals.compare_rounds(
        [larger * seconds for seconds in base.rounds_s[:common]], row.rounds_s[:common]
    )
    return msgspec.structs.replace(
        row,
        ratio=interval.ratio,
        low=interval.low,
        high=interval.high if common > 1 else None,
        verdict=intervals.verdict(interval),
    )


def _started(row: SettingRow, eager: SettingRow, output_difference: float | None) -> SettingRow:
    """The row with what its start costs beyond eager's with the same batch, and how far its output is off."""
    compile_s = None if row.setting.is_eager else max(0.0, (row.startup_s or 0.0) - (eager.startup_s or 0.0))
    interval = intervals.compare_rounds(
        eager.rounds_s[: len(row.rounds_s)], row.rounds_s[: len(eager.rounds_s)]
    )
    saved = (eager.step_s or 0.0) - (row.step_s or 0.0)
    pays = intervals.verdict(interval) == "faster" and saved > 0 and compile_s is not None
    return msgspec.structs.replace(
        row,
        compile_s=compile_s,
        break_even_steps=round((compile_s or 0.0) / saved) if pays else None,
        output_difference=output_difference,
        agrees=None if output_difference is None else output_difference <= TOLERANCE,
    )


def _startup(report: TrialResult) -> float:
    durations = steady(report)
    warm = report.steps_s[: len(report.steps_s) - len(durations)]
    return report.before_first_step_s + sum(warm) - len(warm) * distribution.median(durations)


def recommend(rows: Sequence[SettingRow], compile_module: str | None) -> tuple[str, tuple[str, ...]]:
    """Which setting to use and why, and the lines to write; eager where nothing is faster."""
    timed = [row for row in rows if row.step_s is not None]
    faster = [row for row in timed if row.verdict == "faster" and row.agrees is not False]
    wrong = [row.label for row in timed if row.verdict == "faster" and row.agrees is False]
    written = [row for row in timed if row.as_written and not row.setting.is_eager]
    caution = f" Left out because its output differs from eager's: {', '.join(wrong)}." if wrong else ""
    if not faster:
        if any(row.verdict == "slower" for row in written):
            has = f"what the program has ({written[0].label})"
            return f"Take torch.compile out: {has} is slower than eager.{caution}", ()
        return f"Stay with eager: no setting was found to be faster.{caution}", ()
    best = min(faster, key=lambda row: row.ratio or 1.0)
    # Among those that cannot be distinguished from the best, the one that compiles soonest.
    rivals = [
        row
        for row in faster
        if (row.low or 0) <= (best.high or 1) and row.setting.batch == best.setting.batch
    ]
    chosen = min(rivals, key=lambda row: row.compile_s or 0.0)
    base = next((row for row in timed if row.setting.is_base), chosen)
    much = "as fast as" if base.setting.batch == chosen.setting.batch else "as many samples a second as"
    other = base.label if base is not chosen else "eager"
    why = f"{chosen.label}: {1 / (chosen.ratio or 1):.2f}× {much} {other}"
    if chosen.low and chosen.high:
        why += f" (95 % interval {1 / chosen.high:.2f} to {1 / chosen.low:.2f})"
    if chosen is not best:
        more_s = (best.compile_s or 0) - (chosen.compile_s or 0)
        why += f"; {best.label} cannot be distinguished from it and costs {more_s:.0f} s more to start"
    if chosen.break_even_steps is not None:
        why += f"; pays for its compile time after {chosen.break_even_steps:,} steps"
    if chosen.as_written:
        return f"Keep what the program has, {why}.{caution}", ()
    for row in written:
        if row.setting.matmul_precision is None and row.setting.batch == chosen.setting.batch:
            against = _compared(chosen, row)
            times = f"{1 / (against.ratio or 1):.2f}×"
            why += f"; against what the program has ({row.label}) {times}, {against.verdict}"
            break
    return f"{why}.{caution}", chosen.setting.lines(compile_module)
