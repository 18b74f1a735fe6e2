"""What `bench` and `tune` measured, on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from kinetoscope import numbers
from kinetoscope.analysis.kernels.names import short_name
from kinetoscope.bench.autotune.worth import NEAR, Worth
from kinetoscope.bench.kernels.modules import ModuleResult
from kinetoscope.bench.kernels.ncu import NcuRow
from kinetoscope.bench.kernels.timing import KernelResult
from kinetoscope.bench.measure.results import Comparison
from kinetoscope.bench.worker import Result
from kinetoscope.hardware.spec import DeviceSpec
from kinetoscope.report.pages.table import Name, columns, heads
from kinetoscope.report.words import names, palette


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
    worth = {(row.module, row.name): row for row in result.worth}
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
        if kernel.reference is not None:
            style = {"differs": "bold red", "agrees": "green"}.get(kernel.reference.status, "dim")
            console.print(Text("  " + names.plain(kernel.reference.text), style=style))
        if (kernel.module, kernel.name) in worth:
            console.print(Text("  " + _could_win(worth[kernel.module, kernel.name])))
    console.print()
    notes = [*result.notes, *(note for kernel in result.kernels for note in kernel.notes)]
    for line in dict.fromkeys(notes):
        console.print(Text(f"note: {names.plain(line)}", style="dim"))
    print_problems(result, console)


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
        traffic = [f"{numbers.size(kernel.bytes)} at {numbers.rate(rate)} GB/s{_of_peak(rate, peak)}"]
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
            f"shared memory · {configuration(kernel.configuration)}"
        )


def _could_win(worth: Worth) -> str:
    least = f"a copy of as many bytes takes {numbers.time(worth.least_ns / 1e3)}"
    if worth.speed >= NEAR:
        return f"could win nothing: {least}"
    runs = "in a run of its graph" if worth.launches_per_run > 1 else "a run"
    return f"could win {numbers.time(worth.could_win_ns / 1e3)} {runs}: {least}"


def _of_peak(rate: float, peak: DeviceSpec | None) -> str:
    if peak is None:
        return ""
    fraction = rate * 1e9 / peak.bandwidth
    # More than the device can do means that the count of bytes is wrong: no number is better than that one.
    return f", {numbers.percent(fraction)} of peak" if fraction <= 1 else " — refused: over the device's peak"


def configuration(configuration: Mapping[str, int] | None) -> str:
    return " ".join(f"{name}={value}" for name, value in (configuration or {}).items())


def compared(told: Comparison) -> str:
    return (
        f"takes {told.ratio:.3f} of the default's time ({told.low:.3f}–{told.high:.3f}, noise floor "
        f"{100 * told.noise_floor:.2f} %): {told.verdict}"
    )


def print_module(
    module: ModuleResult, categories: Mapping[str, str], ncu: Sequence[NcuRow], console: Console
) -> None:
    """A module replayed: wall, busy, its work by category and by kernel, Nsight Compute's numbers where there are."""
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
    if module.work:
        _work(module, categories, ncu, console)
    for note in module.notes:
        console.print(Text(f"note: {names.plain(note)}", style="dim"))


def _work(
    module: ModuleResult, categories: Mapping[str, str], ncu: Sequence[NcuRow], console: Console
) -> None:
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
    seen = {row.name: row for row in ncu}
    rows = columns("left*", "left", *["right"] * (7 if ncu else 4))
    heads(
        rows,
        *("kernel", "category", "share", "time a run", "launches", "mean"),
        *(("ncu", "memory", "compute") if ncu else ()),
    )
    for row in module.work[:15]:
        category = categories.get(row.name, "other")
        told = seen.get(row.name)
        rows.add_row(
            Name(names.plain(short_name(row.name))),
            Text(category, style=palette.category(category)),
            Text(numbers.percent(row.device_time_ns / total)),
            Text(numbers.time(row.device_time_ns / 1e3)),
            Text(f"{row.launches:g}"),
            Text(numbers.time(row.device_time_ns / row.launches / 1e3)),
            *([Text(numbers.time(told.duration_ns / 1e3) if told else "")] if ncu else []),
            *([Text(_speed(p)) for p in (told.memory_percent, told.compute_percent)] if told else []),
        )
    console.print(rows)
    if ncu:
        basis = "ncu: median duration of a launch; memory and compute: share of the device's speed of light"
        console.print(Text(basis, style="dim"))


def _speed(percent: float | None) -> str:
    return f"{percent:.0f} %" if percent is not None else ""


def print_problems(result: Result, console: Console) -> None:
    for problem in result.problems:
        console.print(Text(names.plain(problem), style="red"))
