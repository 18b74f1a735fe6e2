"""What `bench` and `tune` measured, on the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.text import Text

from kinetoscope.analysis.names import short_name
from kinetoscope.bench.autotune import Tuned
from kinetoscope.bench.kernels import KernelResult
from kinetoscope.bench.modules import ModuleResult
from kinetoscope.bench.ncu import NcuRow
from kinetoscope.bench.results import Comparison
from kinetoscope.bench.tuning_rows import Row, Tuning
from kinetoscope.bench.worker import Result
from kinetoscope.hardware.spec import DeviceSpec
from kinetoscope.report import names, numbers, palette
from kinetoscope.report.table import Name, columns, heads


def print_tuning(found: Tuning, console: Console) -> None:
    """The settings side by side, and what to do."""
    head = f"Step time of {' '.join(found.command) or found.step_name} on {found.device}"
    basis = f"  steps by {found.steps_by} ({found.step_name}); {found.rounds} rounds; speed-up over eager, 95 % interval"
    console.print(Text.assemble((names.plain(head), "bold"), (names.plain(basis), "dim")))
    table = columns("left*", *["right"] * 8, "left")
    heads(
        table,
        "setting",
        "step",
        "speed-up",
        "interval",
        "compile",
        "breaks even after",
        "memory",
        "breaks",
        "output",
        "",
    )
    for row in found.rows:
        if row.error is not None:
            table.add_row(Text(row.label), *[""] * 8, Text(names.plain(row.error)[:80], style="red"))
            continue
        table.add_row(
            Text(row.label),
            Text(numbers.time((row.step_s or 0) * 1e6)),
            Text(f"{1 / row.ratio:.3f}×" if row.ratio else ""),
            Text(_interval(row)),
            Text(numbers.time(row.compile_s * 1e6) if row.compile_s is not None else ""),
            Text(f"{row.break_even_steps:,} steps" if row.break_even_steps is not None else ""),
            Text(numbers.size(row.peak_memory_bytes) if row.peak_memory_bytes else ""),
            Text(str(row.graph_breaks)),
            Text(_agreement(row)),
            Text(row.verdict or "", style=palette.verdict(row.verdict)),
        )
    console.print(table)
    console.print()
    console.print(Text(names.plain(found.recommendation), style="bold"))
    for line in found.lines:
        console.print(Text("    " + names.plain(line)))


def _interval(row: Row) -> str:
    if row.low is None or row.high is None or row.low <= 0:
        return "one round" if row.ratio else ""
    low, high = 1 / row.high, 1 / row.low
    return f"{low:.3f}–{high:.3f}" if high < 100 else "too few rounds"


def _agreement(row: Row) -> str:
    if row.agrees is None:
        return "–"
    return "agrees" if row.agrees else "DIFFERS"


def print_kernels(
    result: Result, in_model: Mapping[str, tuple[float, float]], peak: DeviceSpec | None, console: Console
) -> None:
    """Each kernel's time alone, cold and hot, beside its time in the model, its bandwidth and its resources."""
    bandwidth = f"of {numbers.size(peak.bandwidth)}/s peak" if peak else "peak unknown"
    console.print(
        Text.assemble(
            (f"Kernels alone on {names.plain(result.device)}", "bold"),
            (f"  median; cold: caches flushed, hot: not; in the model: from the trace; {bandwidth}", "dim"),
        )
    )
    seen = {row.name: row for row in result.ncu}
    for kernel in result.kernels:
        share = in_model[kernel.name][1] if kernel.name in in_model else None
        said = f"  {kernel.category}" + (
            f", {numbers.percent(share)} of GPU time" if share is not None else ""
        )
        console.print()
        console.print(
            Text.assemble((names.plain(kernel.name), "bold"), (said, palette.category(kernel.category))),
            soft_wrap=True,
        )
        if kernel.error is not None:
            console.print(Text("  " + names.plain(kernel.error)[:300], style="red"))
            continue
        for line in _figures(kernel, in_model, peak, seen.get(kernel.name)):
            console.print(Text("  " + line))
    console.print()
    notes = [*result.notes, *(note for kernel in result.kernels for note in kernel.notes)]
    for line in dict.fromkeys(notes):
        console.print(Text(f"note: {names.plain(line)}", style="dim"))
    _problems(result, console)


def _figures(
    kernel: KernelResult,
    in_model: Mapping[str, tuple[float, float]],
    peak: DeviceSpec | None,
    ncu: NcuRow | None,
) -> Iterator[str]:
    """The figures of one kernel: times, then traffic, then resources."""
    cold, hot = kernel.timing("cold"), kernel.timing("hot")
    times: list[str] = []
    if cold is not None:
        spread = numbers.span(cold.p10_ns / 1e3, cold.p90_ns / 1e3)
        times.append(f"cold {numbers.time(cold.median_ns / 1e3)} (p10–p90 {spread}, n={cold.n})")
    if hot is not None:
        times.append(f"hot {numbers.time(hot.median_ns / 1e3)}")
    if kernel.name in in_model:
        times.append(f"in the model {numbers.time(in_model[kernel.name][0] / 1e3)}")
    if ncu is not None:
        times.append(f"ncu {numbers.time(ncu.duration_ns / 1e3)}")
    yield " · ".join(times)
    best = cold or hot
    if best is not None:
        rate = kernel.bytes / best.median_ns  # bytes/ns is GB/s
        traffic = [f"{numbers.size(kernel.bytes)} at {rate:,.0f} GB/s{_of_peak(rate, peak)}"]
        if kernel.flops:
            traffic.append(f"{kernel.flops / best.median_ns / 1e3:.2f} TFLOP/s")
        if ncu is not None and ncu.memory_percent is not None and ncu.compute_percent is not None:
            traffic.append(
                f"speed of light (ncu): memory {ncu.memory_percent:.0f} %, compute {ncu.compute_percent:.0f} %"
            )
        traffic.append(f"{numbers.count(kernel.launches_per_run, 'launch')} in a run of its graph")
        yield " · ".join(traffic)
    if kernel.registers is not None:
        yield (
            f"{kernel.registers} registers, {kernel.spills} spills, {numbers.size(kernel.shared_memory_bytes or 0)} "
            f"shared memory · {_configuration(kernel.configuration)}"
        )


def _of_peak(rate: float, peak: DeviceSpec | None) -> str:
    if peak is None:
        return ""
    fraction = rate * 1e9 / peak.bandwidth
    # More than the device can do means that the count of bytes is wrong: no number is better than that one.
    return f", {numbers.percent(fraction)} of peak" if fraction <= 1 else " — refused: over the device's peak"


def _configuration(configuration: Mapping[str, int] | None) -> str:
    return " ".join(f"{name}={value}" for name, value in (configuration or {}).items())


def print_tuned(result: Result, in_model: Mapping[str, tuple[float, float]], console: Console) -> None:
    """For each kernel the best configurations, the winner against the default, and what that would save."""
    for kernel in result.tuned:
        usable = sorted((t for t in kernel.trials if t.median_ns), key=lambda t: t.median_ns or math.inf)
        unusable = len(kernel.trials) - len(usable)
        console.print(
            Text.assemble(
                (names.plain(kernel.name), "bold"),
                (f"  {len(usable)} configurations timed cold, side by side; {unusable} unusable", "dim"),
            )
        )
        table = columns("left*", *["right"] * 3, "left")
        heads(table, "configuration", "median", "registers", "spills", "from")
        for trial in usable[:5] + [t for t in usable[5:] if t.configuration == kernel.default]:
            table.add_row(
                Text(_configuration(trial.configuration)),
                Text(numbers.time((trial.median_ns or 0) / 1e3)),
                Text(str(trial.registers)),
                Text(str(trial.spills)),
                Text(trial.origin, style="dim"),
            )
        console.print(table)
        console.print(Text(_saving(kernel, in_model)))
        console.print()
    for module in result.modules:
        print_module(module, None, console)
    if result.applied is not None:
        applied = result.applied
        console.print(
            Text(
                f"Written: {applied.table}; Inductor picks up {len(applied.picked_up)} of {len(applied.kernels)}"
            )
        )
        for line in applied.lines:
            console.print(Text("    " + names.plain(line)))
    _problems(result, console)


def _saving(kernel: Tuned, in_model: Mapping[str, tuple[float, float]]) -> str:
    told = kernel.comparison
    if told is None:
        return "The default is the fastest."
    text = f"winner {_compared(told)}"
    median, _ = in_model.get(kernel.name, (0.0, 0.0))
    if told.verdict == "faster" and median:
        saved = median * (1 - told.ratio) * kernel.launches_per_run / 1e3
        text += (
            f"; would save {numbers.time(saved)} of each run of its graph (its time in the model × launches)"
        )
    return text


def _compared(told: Comparison) -> str:
    return (
        f"takes {told.ratio:.3f} of the default's time ({told.low:.3f}–{told.high:.3f}, noise floor "
        f"{100 * told.noise_floor:.2f} %): {told.verdict}"
    )


def print_module(module: ModuleResult, categories: Mapping[str, str] | None, console: Console) -> None:
    """A module replayed: wall, busy, its work by category or kernel, and the exchange's effect where there was one."""
    wall = module.wall.subjects[0]
    parts = [f"wall {numbers.time(wall.median_ns / 1e3)} (n={wall.n})"]
    if module.busy_ns is not None and module.span_ns:
        parts.append(
            f"busy {numbers.time(module.busy_ns / 1e3)}, {numbers.percent(module.busy_ns / module.span_ns)} of its span"
        )
    if module.peak_memory_bytes:
        parts.append(f"peak memory {numbers.size(module.peak_memory_bytes)}")
    console.print(
        Text.assemble(
            (names.plain(f"{module.aot_id} {module.module}"), "bold"), ("  " + "; ".join(parts), "dim")
        )
    )
    for told in module.wall.comparisons:
        if told.name == "applied":
            console.print(
                Text(
                    "with the winners, the whole graph " + _compared(told).replace("default", "recorded one")
                )
            )
    if categories is not None and module.work:
        _work(module, categories, console)


def _work(module: ModuleResult, categories: Mapping[str, str], console: Console) -> None:
    total = sum(row.device_time_ns for row in module.work)
    sums: dict[str, list[float]] = {}
    for row in module.work:
        kept = sums.setdefault(categories.get(row.name, "other"), [0.0, 0.0])
        kept[0] += row.device_time_ns
        kept[1] += row.launches
    table = columns("left*", *["right"] * 3)
    heads(table, "category", "share of device time", "time a run", "launches")
    for category, (time_ns, launches) in sorted(sums.items(), key=lambda item: -item[1][0]):
        table.add_row(
            Text(category, style=palette.category(category)),
            Text(numbers.percent(time_ns / total)),
            Text(numbers.time(time_ns / 1e3)),
            Text(f"{launches:g}"),
        )
    console.print(table)
    rows = columns("left*", "left", *["right"] * 3)
    heads(rows, "kernel", "category", "share", "time a run", "launches")
    for row in module.work[:15]:
        category = categories.get(row.name, "other")
        rows.add_row(
            Name(names.plain(short_name(row.name))),
            Text(category, style=palette.category(category)),
            Text(numbers.percent(row.device_time_ns / total)),
            Text(numbers.time(row.device_time_ns / 1e3)),
            Text(f"{row.launches:g}"),
        )
    console.print(rows)


def _problems(result: Result, console: Console) -> None:
    for problem in result.problems:
        console.print(Text(names.plain(problem), style="red"))
