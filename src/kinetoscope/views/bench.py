"""Results of ``bench``: kernels alone, graphs replayed, configurations tried."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kinetoscope import numbers
from kinetoscope.document import measurements as document
from kinetoscope.render import palette
from kinetoscope.render.blocks import Block, Heading, Line, Text, field, kernel, line, table

REFERENCE_STYLES = {"differs": "bold red", "agrees": "green"}
LONGEST = 300  # characters of an error
WHY = {
    "nothing to win": "within a tenth of a copy",
    "too little to win": "too little to win",
    "beyond the limit": "beyond --limit",
}


def _time(ns: float) -> str:
    return numbers.time(ns / 1e3)


def _remarks(notes: Iterable[str], problems: Iterable[str]) -> Iterable[Block]:
    yield from (line(f"note: {note}", style="yellow") for note in notes)
    yield from (line(problem, style="red") for problem in problems)


def _whole(*parts: Text | str) -> Line:
    return Line(parts, overflow="whole")


def kernels(shown: document.BenchListing) -> Iterable[Block]:
    """Each kernel's time alone, cold and hot, its time in the model, bandwidth and resources."""
    peak = shown.peak_bandwidth
    bandwidth = f"of {numbers.size(peak)}/s peak" if peak else "peak unknown"
    basis = f"median; cold: caches flushed, hot: not; in the model: from the trace; {bandwidth}"
    yield Heading(f"Kernels alone on {shown.device}", basis, 1)
    for row in shown.rows:
        own = row.kernel
        category = f"  {own.category}"
        if row.in_model is not None:
            category += f", {numbers.percent(row.in_model.share_of_device_time)} of GPU time"
        yield Line()
        yield _whole(kernel(own.name, style="bold"))
        yield line(Text(category, palette.category(own.category)))
        if own.error is not None:
            yield line(f"  {own.error[:LONGEST]}", style="red")
            continue
        yield from (line(f"  {figures}") for figures in _figures(row, peak))
        if own.reference is not None:
            style = REFERENCE_STYLES.get(own.reference.status, "dim")
            yield line(f"  {own.reference.text}", style=style)
        if row.worth is not None:
            yield line(f"  {_could_win(row.worth)}")
    yield Line()
    yield from _remarks(shown.notes, shown.problems)


def _figures(row: document.BenchRow, peak: float | None) -> Iterator[str]:
    own, counters = row.kernel, row.counters
    times: list[str] = []
    if own.cold is not None:
        spread = numbers.span(own.cold.p10_ns / 1e3, own.cold.p90_ns / 1e3)
        times.append(f"cold {_time(own.cold.median_ns)} (p10–p90 {spread}, n={own.cold.n})")
    if own.hot is not None:
        times.append(f"hot {_time(own.hot.median_ns)}")
    if row.in_model is not None:
        times.append(f"in the model {_time(row.in_model.median_ns)}")
    if counters is not None:
        times.append(f"ncu {_time(counters.duration_ns)}")
    yield " · ".join(times)
    best = own.cold or own.hot
    if best is not None:
        rate = own.bytes / best.median_ns  # bytes/ns is GB/s
        traffic = [f"{numbers.size(own.bytes)} at {numbers.rate(rate)} GB/s{_of_peak(rate, peak)}"]
        if own.flops:
            traffic.append(f"{own.flops / best.median_ns / 1e3:.2f} TFLOP/s")
        if counters and counters.memory_percent is not None and counters.compute_percent is not None:
            memory, compute = _speed(counters.memory_percent), _speed(counters.compute_percent)
            traffic.append(f"speed of light (ncu): memory {memory}, compute {compute}")
        traffic.append(f"{numbers.count(own.launches_per_run, 'launch')} in a run of its graph")
        yield " · ".join(traffic)
    if own.registers is not None:
        shared = numbers.size(own.shared_memory_bytes or 0)
        resources = f"{own.registers} registers, {own.spills} spills, {shared} shared memory"
        yield f"{resources} · {_configuration(own.configuration or {})}"


def _could_win(worth: document.Worth) -> str:
    least = f"a copy of as many bytes takes {_time(worth.least_ns)}"
    if worth.is_near:
        return f"could win nothing: {least}"
    if worth.spreads:
        return f"could win: not known, its times spread too widely: {least}"
    runs = "in a run of its graph" if worth.launches_per_run > 1 else "a run"
    return f"could win {_time(worth.could_win_ns)} {runs}: {least}"


def _of_peak(rate: float, peak: float | None) -> str:
    if peak is None:
        return ""
    fraction = rate * 1e9 / peak
    # More than the device can do means that the count of bytes is wrong: no number is better than that one.
    return f", {numbers.percent(fraction)} of peak" if fraction <= 1 else " — refused: over the device's peak"


def _configuration(values: Mapping[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def _speed(percent: float | None) -> str:
    return f"{percent:.0f} %" if percent is not None else ""


def replays(shown: document.ReplayListing) -> Iterable[Block]:
    """Graphs replayed: wall, busy, their work by category and by kernel, with Nsight Compute's numbers."""
    for graph in shown.graphs:
        yield Heading(f"{graph.module.aot_id} {graph.module.module}", _replayed(graph.module), 1)
        if graph.kernels:
            yield table(
                graph.categories,
                field("category", "words", lambda row: Text(row.category, palette.category(row.category))),
                field("share of device time", "share", "share"),
                field("time a run", "time", lambda row: row.device_time_ns / 1e3),
                field("launches", "number", lambda row: f"{row.launches:g}"),
            )
            yield from _work(graph.kernels, shown.has_counters)
        yield from _remarks(graph.module.notes, ())
    yield from _remarks(shown.notes, shown.problems)


def _replayed(graph: document.ModuleResult) -> str:
    wall = graph.wall["as recorded"]
    parts = [f"wall {_time(wall.median_ns)} (n={wall.n})"]
    if graph.busy_ns is not None and graph.span_ns:
        share = numbers.percent(graph.busy_ns / graph.span_ns)
        parts.append(f"busy {_time(graph.busy_ns)}, {share} of its span")
    if graph.peak_memory_bytes:
        parts.append(f"peak memory {numbers.size(graph.peak_memory_bytes)}")
    return "; ".join(parts)


def _work(rows: Sequence[document.ReplayedWork], has_counters: bool) -> Iterable[Block]:
    counted = (
        field("ncu", "number", lambda row: _time(row.counters.duration_ns) if row.counters else ""),
        field("memory", "number", lambda row: _speed(row.counters and row.counters.memory_percent)),
        field("compute", "number", lambda row: _speed(row.counters and row.counters.compute_percent)),
    )
    yield table(
        rows,
        field("kernel", "name", lambda row: kernel(row.name)),
        field("category", "text", lambda row: Text(row.category, palette.category(row.category))),
        field("share", "share", "share"),
        field("time a run", "time", lambda row: row.device_time_ns / 1e3),
        field("launches", "number", lambda row: f"{row.launches:g}"),
        field("mean", "time", lambda row: row.device_time_ns / row.launches / 1e3),
        *(counted if has_counters else ()),
    )
    if has_counters:
        basis = "ncu: median duration of a launch; memory and compute: share of the device's speed of light"
        yield line(basis, style="dim")


def autotuned(shown: document.AutotuneListing) -> Iterable[Block]:
    """Which kernels were worth it, the best configurations of each, what they promise and replays keep."""
    if shown.worth:
        yield from _worth(shown)
    for row in shown.rows:
        yield from _configurations(row)
    if shown.rows:
        yield from _promises(shown)
    if shown.applied is not None:
        picked = f"{len(shown.applied.picked_up)} of {len(shown.applied.kernels)}"
        yield line(f"Written: {shown.applied.table}; Inductor picks up {picked}")
        # Never folded: the line must be right when it is copied.
        yield from (_whole(f"    {text}") for text in shown.applied.lines)
    yield from _remarks(shown.notes, shown.problems)


def _worth(shown: document.AutotuneListing) -> Iterable[Block]:
    basis = "cold; the least is a copy of as many bytes, or the arithmetic at peak; in one run of its graph"
    yield Heading("Worth tuning", basis, 1)
    yield table(
        shown.worth,
        field("kernel", "name", lambda row: kernel(row.name)),
        field("launches", "count", "launches_per_run"),
        field("time", "time", lambda row: row.cold_ns / 1e3),
        field("least", "time", lambda row: row.least_ns / 1e3),
        field("of a copy's speed", "share", lambda row: min(1.0, row.speed)),
        field("could win", "time", lambda row: row.could_win_ns / 1e3),
        field("", "text", lambda row: f"skipped: {WHY[row.skipped]}" if row.skipped else "", "dim"),
    )
    for left in shown.skipped:
        together = f"{numbers.count(left.count, 'kernel')}, which together could win"
        yield line(f"skipped, {WHY[left.reason]}: {together} {_time(left.could_win_ns)}", style="dim")
    yield Line()


def _configurations(row: document.AutotuneRow) -> Iterable[Block]:
    unusable = len(row.kernel.trials) - row.timed
    timed = f"  {numbers.count(row.timed, 'configuration')} timed cold, side by side; {unusable} unusable"
    yield _whole(kernel(row.kernel.name, style="bold"))
    yield line(timed, style="dim")
    yield table(
        row.fastest,
        field("configuration", "words", lambda tried: _configuration(tried.configuration)),
        field("median", "time", lambda tried: (tried.median_ns or 0.0) / 1e3),
        field("registers", "number", lambda tried: str(tried.registers)),
        field("spills", "number", lambda tried: str(tried.spills)),
        field("from", "text", "origin", "dim"),
    )
    yield line(_winner(row))
    yield Line()


def _winner(row: document.AutotuneRow) -> str:
    against = row.kernel.comparison
    if against is None:
        return "The default is the fastest."
    text = (
        f"winner takes {against.ratio:.3f} of the default's time ({against.low:.3f}–{against.high:.3f}, "
        f"noise floor {100 * against.noise_floor:.2f} %): {against.verdict}"
    )
    if row.saves_in_model_ns is not None:
        saved = _time(row.saves_in_model_ns)
        text += f"; would save {saved} of each run of its graph (its time in the model × launches)"
    return text


def _promises(shown: document.AutotuneListing) -> Iterable[Block]:
    basis = "of one run of the graph: default's cold median × (1 − ratio) × launches; 95 % intervals"
    yield Heading("Promised and measured", basis, 1)
    yield table(
        (row.kernel for row in shown.rows),
        field("kernel", "name", lambda row: kernel(row.name)),
        field("launches", "count", "launches_per_run"),
        field("default → winner", "words", _changes),
        field("ratio", "number", lambda row: _ratio(row.comparison)),
        field("promised", "number", lambda row: _gain(row.gain)),
    )
    for row in shown.promises:
        made = row.promise
        yield line(
            f"{made.aot_id}: promised {_gain(made.promised)}; replayed with and without, interleaved: "
            f"{_time(row.before_ns)} → {_time(row.after_ns)}, measured {_gain(made.measured)}: ",
            Text(made.outcome, palette.verdict(made.outcome)),
        )
    yield Line()


def _changes(row: document.Tuned) -> str:
    """The parameters that the winner changes of the default: ``XBLOCK 8→4, warps 16→32``."""
    default, winner = row.default, row.winner
    changed = [
        f"{n.removeprefix('num_')} {default.get(n, 0)}→{v}" for n, v in winner.items() if default.get(n) != v
    ]
    return ", ".join(changed) or "(the default)"


def _ratio(against: document.RatioToBase | None) -> str:
    return f"{against.ratio:.3f} ({against.low:.3f}–{against.high:.3f})" if against else "–"


def _gain(gain: document.Gain) -> str:
    return f"{_time(gain.ns)} ({_time(gain.low_ns)} to {_time(gain.high_ns)})" if gain.ns else "0"
