"""`kinetoscope tune`: the user's program under each setting, in processes of their own, interleaved over rounds."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kinetoscope.bench import statistics
from kinetoscope.bench.inject import difference
from kinetoscope.bench.settings import Setting
from kinetoscope.bench.trial import Order, Report
from kinetoscope.bench.worker import environment
from kinetoscope.errors import ProgramError

SCHEMA = "kinetoscope.tune/1"
# Outputs of two settings that differ by no more than this agree (mixed precision's last bits differ by far less).
AGREEMENT = 0.05

Launch = Callable[[Order, Sequence[str], Mapping[str, str]], Report]


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One setting, after all rounds. Ratios are of step times to eager's of the same batch: below 1 is faster."""

    setting: Setting
    label: str
    step_s: float | None = None
    """Median over rounds of each round's median steady step."""
    rounds_s: tuple[float, ...] = ()
    steps: int = 0
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: statistics.Verdict | None = None
    startup_s: float | None = None
    """From the start to the first steady step, less the steps in between at their steady time; cold caches."""
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


class Tuning(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `tune` found."""

    schema: str = SCHEMA
    command: tuple[str, ...] = ()
    device: str = ""
    steps_by: str | None = None
    step_name: str | None = None
    rounds: int = 0
    rows: tuple[Row, ...] = ()
    recommendation: str = ""
    lines: tuple[str, ...] = ()
    """To write into the program."""
    reports: dict[str, tuple[Report, ...]] = {}


def run_trial(order: Order, words: Sequence[str], extra: Mapping[str, str]) -> Report:
    """One trial in a process of its own; what the program prints goes to stderr."""
    home = Path(order.result).parent
    path = home / "order.json"
    path.write_bytes(msgspec.json.encode(order))
    Path(order.result).unlink(missing_ok=True)
    status = subprocess.call(
        [sys.executable, "-m", "kinetoscope.bench.trial", str(path), *words],
        env={**environment(), **extra},
        stdout=sys.stderr,
    )
    if not Path(order.result).exists():
        return Report(error=f"the process ended with status {status}")
    return msgspec.json.decode(Path(order.result).read_bytes(), type=Report)


def tune_program(
    settings: Sequence[Setting],
    words: Sequence[str],
    *,
    module: bool = False,
    rounds: int = 3,
    steps: int = 40,
    seconds: float = 60.0,
    seed: int = 0,
    launch: Launch = run_trial,
    progress: Callable[[str], None] = lambda _: None,
) -> Tuning:
    """Run a program under each setting, ``rounds`` times each, in random order within a round.

    The first round starts with empty compiler caches, one for each setting; later rounds find them filled.

    Args:
        words: the script (or module) and its arguments; ``{batch}`` is replaced by the setting's batch.
        steps: steps after which a run is ended; the first of them warm up.
        seconds: time after the first step after which a run is ended.
        launch: runs one trial (tests give their own).

    Raises:
        ProgramError: the program fails in eager mode, or has no steps.
    """
    base = next(setting for setting in settings if setting.is_base)
    order = random.Random(seed)
    reports: dict[str, list[Report]] = {setting.label: [] for setting in settings}
    outputs: dict[str, Path] = {}
    compile_module: str | None = None
    with tempfile.TemporaryDirectory(prefix="kinetoscope-tune-") as folder:
        for number in range(rounds):
            # Eager first in the first round: it says whether the program compiles anything by itself.
            others = [setting for setting in settings if setting is not base]
            order.shuffle(others)
            queue = [base, *others]
            if number:
                order.shuffle(queue)
            for setting in queue:
                if any(report.error for report in reports[setting.label]):
                    continue
                progress(f"round {number + 1}/{rounds}: {setting.label}")
                home = Path(folder, str(settings.index(setting)))
                home.mkdir(exist_ok=True)
                outputs[setting.label] = home / "outputs.pt"
                report = launch(
                    Order(
                        setting=setting,
                        result=str(home / "result.json"),
                        outputs=str(outputs[setting.label]),
                        steps=steps,
                        seconds=seconds,
                        module=module,
                        compile_module=compile_module,
                    ),
                    [word.replace("{batch}", setting.batch or "") for word in words],
                    {
                        "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"),
                        "TRITON_CACHE_DIR": str(home / "triton"),
                    },
                )
                reports[setting.label].append(report)
                if setting is base and number == 0:
                    _usable(report, words)
                    compile_module = None if report.compile_calls else report.module
        differences = {label: _difference(outputs, label, base.label) for label in outputs}
    return _conclude(settings, reports, differences, words, compile_module)


def _usable(report: Report, words: Sequence[str]) -> None:
    if report.error is not None:
        raise ProgramError(
            f"the program fails without any compiler: {report.error}",
            where=words[0],
            mend="its traceback is above; make it run by itself first",
        )
    if len(report.steps_s) < 3:
        raise ProgramError(
            "no steps were found, so there is nothing to compare",
            where=words[0],
            mend="a step is an optimizer's step(), a call of a module, or of what torch.compile returned; "
            "at least four must run",
        )
    if report.compile_calls == 0 and report.module is None:
        raise ProgramError(
            "the program compiles nothing and calls no module that could be compiled",
            where=words[0],
            mend="put torch.compile around the function that does the work",
        )


def _difference(outputs: Mapping[str, Path], label: str, base: str) -> float | None:
    if label == base or not outputs[label].exists() or not outputs[base].exists():
        return None
    import torch

    found: dict[str, list[Any]] = torch.load(outputs[label])
    expected: dict[str, list[Any]] = torch.load(outputs[base])
    both = [name for name in expected if name in found]
    # What the program compiled is compared; where it compiles nothing, the modules it calls.
    chosen = [name for name in both if name.startswith("compiled")] or both
    return difference(
        [t for name in chosen for t in found[name]], [t for name in chosen for t in expected[name]]
    )


def steady(durations: Sequence[float]) -> list[float]:
    """The steps after warm-up: those after the last one, within the first half, that took over twice the usual."""
    half = len(durations) // 2
    usual = statistics.median(durations[half:])
    start = 1
    for index in range(half):
        if durations[index] > 2 * usual:
            start = index + 1
    return list(durations[start:])


def _conclude(
    settings: Sequence[Setting],
    reports: Mapping[str, Sequence[Report]],
    differences: Mapping[str, float | None],
    words: Sequence[str],
    compile_module: str | None,
) -> Tuning:
    bases = {setting.batch: setting for setting in settings if setting.is_base}
    rows = [
        _row(
            setting,
            reports[setting.label],
            reports[bases[setting.batch].label],
            differences.get(setting.label),
        )
        for setting in settings
    ]
    first = reports[bases[settings[0].batch].label][0]
    recommendation, lines = recommend(rows, compile_module)
    return Tuning(
        command=tuple(words),
        device=first.device,
        steps_by=first.steps_by,
        step_name=first.step_name,
        rounds=max(len(r) for r in reports.values()),
        rows=tuple(rows),
        recommendation=recommendation,
        lines=lines,
        reports={label: tuple(r) for label, r in reports.items()},
    )


def _row(
    setting: Setting, mine: Sequence[Report], base: Sequence[Report], output_difference: float | None
) -> Row:
    error = next((report.error for report in mine if report.error), None)
    if error is not None or not mine or any(len(report.steps_s) < 3 for report in mine):
        return Row(setting=setting, label=setting.label, error=error or "no steps were found")
    medians = [statistics.median(steady(report.steps_s)) for report in mine]
    base_medians = [statistics.median(steady(report.steps_s)) for report in base]
    row = Row(
        setting=setting,
        label=setting.label,
        step_s=statistics.median(medians),
        rounds_s=tuple(medians),
        steps=sum(len(steady(report.steps_s)) for report in mine),
        startup_s=_startup(mine[0]),
        peak_memory_bytes=mine[0].peak_memory_bytes,
        graph_breaks=mine[0].graph_breaks,
        graphs=mine[0].graphs,
        notes=mine[0].notes,
    )
    if setting.is_base:
        return row
    common = min(len(medians), len(base_medians))
    interval = statistics.compare_rounds(base_medians[:common], medians[:common])
    compile_s = max(0.0, _startup(mine[0]) - _startup(base[0]))
    saved = statistics.median(base_medians) - statistics.median(medians)
    told = statistics.verdict(interval)
    return msgspec.structs.replace(
        row,
        ratio=interval.ratio,
        low=interval.low,
        high=interval.high if common > 1 else None,
        verdict=told,
        compile_s=compile_s,
        break_even_steps=round(compile_s / saved) if told == "faster" else None,
        output_difference=output_difference,
        agrees=None if output_difference is None else output_difference <= AGREEMENT,
    )


def _startup(report: Report) -> float:
    durations = steady(report.steps_s)
    warm = report.steps_s[: len(report.steps_s) - len(durations)]
    return report.before_first_step_s + sum(warm) - len(warm) * statistics.median(durations)


def recommend(rows: Sequence[Row], compile_module: str | None) -> tuple[str, tuple[str, ...]]:
    """Which setting to use and why, and the lines to write; eager where nothing is told to be faster."""
    timed = [row for row in rows if row.step_s is not None]
    faster = [row for row in timed if row.verdict == "faster" and row.agrees is not False]
    wrong = [row.label for row in timed if row.verdict == "faster" and row.agrees is False]
    caution = f" Left out because its output differs from eager's: {', '.join(wrong)}." if wrong else ""
    if not faster:
        return "Stay with eager: no setting was told to be faster." + caution, ()
    best = min(faster, key=lambda row: row.ratio or 1.0)
    # Among those that cannot be told from the best, the one that compiles soonest.
    rivals = [
        row
        for row in faster
        if (row.low or 0) <= (best.high or 1) and row.setting.batch == best.setting.batch
    ]
    chosen = min(rivals, key=lambda row: row.compile_s or 0.0)
    why = f"{chosen.label}: {1 / (chosen.ratio or 1):.2f}× as fast as eager"
    if chosen.low and chosen.high:
        why += f" (95 % interval {1 / chosen.high:.2f} to {1 / chosen.low:.2f})"
    if chosen is not best:
        why += f"; {best.label} cannot be told from it and costs {(best.compile_s or 0) - (chosen.compile_s or 0):.0f} s more to start"
    if chosen.break_even_steps is not None:
        why += f"; pays for its compile time after {chosen.break_even_steps:,} steps"
    return why + "." + caution, chosen.setting.lines(compile_module)
