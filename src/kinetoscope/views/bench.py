"""What `bench` measured, on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from kinetoscope import numbers
from kinetoscope.document import measurements as document
from kinetoscope.render import names, palette
from kinetoscope.render.table import Name
from kinetoscope.views.listing import grid, titled

REFERENCE_STYLES = {"differs": "bold red", "agrees": "green"}


def print_kernels(shown: document.BenchListing, console: Console) -> None:
    """Each kernel's time alone, cold and hot, beside its time in the model, bandwidth and resources."""
    peak = shown.peak_bandwidth
    bandwidth = f"of {numbers.size(peak)}/s peak" if peak else "peak unknown"
    basis = f"median; cold: caches flushed, hot: not; in the model: from the trace; {bandwidth}"
    console.print(titled(f"Kernels alone on {names.plain(shown.device)}", basis))
    for row in shown.rows:
        kernel = row.kernel
        category = f"  {kernel.category}"
        if row.in_model is not None:
            category += f", {numbers.percent(row.in_model.share_of_device_time)} of GPU time"
        console.print()
        console.print(
            Text.assemble((names.plain(kernel.name), "bold"), (category, palette.category(kernel.category))),
            soft_wrap=True,
        )
        if kernel.error is not None:
            console.print(Text("  " + names.plain(kernel.error)[:300], style="red"))
            continue
        for line in _figures(row, peak):
            console.print(Text("  " + line))
        if kernel.reference is not None:
            style = REFERENCE_STYLES.get(kernel.reference.status, "dim")
            console.print(Text("  " + names.plain(kernel.reference.text), style=style))
        if row.worth is not None:
            console.print(Text("  " + _could_win(row.worth)))
    console.print()
    _print_notes(shown.notes, console)
    print_problems(shown.problems, console)


def _figures(row: document.BenchRow, peak: float | None) -> Iterator[str]:
    """The figures of one kernel: times, then traffic, then resources."""
    kernel, counters = row.kernel, row.counters
    times: list[str] = []
    if kernel.cold is not None:
        spread = numbers.span(kernel.cold.p10_ns / 1e3, kernel.cold.p90_ns / 1e3)
        times.append(f"cold {_time(kernel.cold.median_ns)} (p10–p90 {spread}, n={kernel.cold.n})")
    if kernel.hot is not None:
        times.append(f"hot {_time(kernel.hot.median_ns)}")
    if row.in_model is not None:
        times.append(f"in the model {_time(row.in_model.median_ns)}")
    if counters is not None:
        times.append(f"ncu {_time(counters.duration_ns)}")
    yield " · ".join(times)
    best = kernel.cold or kernel.hot
    if best is not None:
        rate = kernel.bytes / best.median_ns  # bytes/ns is GB/s
        traffic = [f"{numbers.size(kernel.bytes)} at {numbers.rate(rate)} GB/s{_of_peak(rate, peak)}"]
        if kernel.flops:
            traffic.append(f"{kernel.flops / best.median_ns / 1e3:.2f} TFLOP/s")
        if counters and counters.memory_percent is not None and counters.compute_percent is not None:
            memory, compute = _speed(counters.memory_percent), _speed(counters.compute_percent)
            traffic.append(f"speed of light (ncu): memory {memory}, compute {compute}")
        traffic.append(f"{numbers.count(kernel.launches_per_run, 'launch')} in a run of its graph")
        yield " · ".join(traffic)
    if kernel.registers is not None:
        shared = numbers.size(kernel.shared_memory_bytes or 0)
        resources = f"{kernel.registers} registers, {kernel.spills} spills, {shared} shared memory"
        yield f"{resources} · {configuration(kernel.configuration or {})}"


def _could_win(worth: document.Worth) -> str:
    least = f"a copy of as many bytes takes {_time(worth.least_ns)}"
    if worth.is_near:
        return f"could win nothing: {least}"
    runs = "in a run of its graph" if worth.launches_per_run > 1 else "a run"
    return f"could win {_time(worth.could_win_ns)} {runs}: {least}"


def _of_peak(rate: float, peak: float | None) -> str:
    if peak is None:
        return ""
    fraction = rate * 1e9 / peak
    # More than the device can do means that the count of bytes is wrong: no number is better than that one.
    return f", {numbers.percent(fraction)} of peak" if fraction <= 1 else " — refused: over the device's peak"


def configuration(values: Mapping[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def print_replays(shown: document.ReplayListing, console: Console) -> None:
    """Graphs replayed: wall, busy, their work by category and by kernel, with Nsight Compute's numbers."""
    for graph in shown.graphs:
        title = names.plain(f"{graph.module.aot_id} {graph.module.module}")
        console.print(titled(title, _replayed(graph.module)))
        if graph.kernels:
            _print_categories(graph.categories, console)
            _print_work(graph.kernels, shown.has_counters, console)
        _print_notes(graph.module.notes, console)
    print_problems(shown.problems, console)


def _replayed(graph: document.ModuleResult) -> str:
    wall = graph.wall["as recorded"]
    parts = [f"wall {_time(wall.median_ns)} (n={wall.n})"]
    if graph.busy_ns is not None and graph.span_ns:
        share = numbers.percent(graph.busy_ns / graph.span_ns)
        parts.append(f"busy {_time(graph.busy_ns)}, {share} of its span")
    if graph.peak_memory_bytes:
        parts.append(f"peak memory {numbers.size(graph.peak_memory_bytes)}")
    return "; ".join(parts)


def _print_categories(rows: Sequence[document.WorkRow], console: Console) -> None:
    table = grid(
        ("category", "left*", [_category(row) for row in rows]),
        ("share of device time", "right", [numbers.percent(row.share) for row in rows]),
        ("time a run", "right", [_time(row.device_time_ns) for row in rows]),
        ("launches", "right", [f"{row.launches:g}" for row in rows]),
    )
    console.print(table)


def _category(row: document.WorkRow) -> Text:
    return Text(row.category, style=palette.category(row.category))


def _print_work(rows: Sequence[document.WorkRow], has_counters: bool, console: Console) -> None:
    counters = [row.counters for row in rows]
    table = grid(
        ("kernel", "left*", [Name(names.plain(row.name)) for row in rows]),
        ("category", "left", [_category(row) for row in rows]),
        ("share", "right", [numbers.percent(row.share) for row in rows]),
        ("time a run", "right", [_time(row.device_time_ns) for row in rows]),
        ("launches", "right", [f"{row.launches:g}" for row in rows]),
        ("mean", "right", [_time(row.device_time_ns / row.launches) for row in rows]),
        ("ncu", "right", [_time(of.duration_ns) if of else "" for of in counters]) if has_counters else None,
        ("memory", "right", [_speed(of and of.memory_percent) for of in counters]) if has_counters else None,
        ("compute", "right", [_speed(of and of.compute_percent) for of in counters])
        if has_counters
        else None,
    )
    console.print(table)
    if has_counters:
        basis = "ncu: median duration of a launch; memory and compute: share of the device's speed of light"
        console.print(Text(basis, style="dim"))


def _time(ns: float) -> str:
    return numbers.time(ns / 1e3)


def _speed(percent: float | None) -> str:
    return f"{percent:.0f} %" if percent is not None else ""


def _print_notes(notes: Iterable[str], console: Console) -> None:
    for note in notes:
        console.print(Text(f"note: {names.plain(note)}", style="dim"))


def print_problems(problems: Iterable[str], console: Console) -> None:
    for problem in problems:
        console.print(Text(names.plain(problem), style="red"))
