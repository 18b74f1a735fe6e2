"""Memory of a device: its parts at the peak, their owners, what grows, and which batch fits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import PurePath

import msgspec

from kinetoscope import document, numbers
from kinetoscope.render import names, palette
from kinetoscope.render.blocks import *
from kinetoscope.views.findings import enough

SNAPSHOT = ("Snapshot", "as torch's own viewer of memory reads it")
RANGES = 2  # the innermost that a headline names
FIRST = 5  # owners that stand first on the page of a failure
FREE = "free"  # of a segment's pieces
SEGMENTS = 8  # on a terminal
BAR = 60  # cells of the bar of all parts
FILLS = "█▒▓░"
PARTS = {
    "parameter": "with buffers",
    "activation": "of the forward pass, kept for the backward pass",
    "input": "from before the model was called",
    "temporary": "given back in the pass in which it was allocated",
    "cache": "outlives its step; nothing runs backward",
    "graph pool": "of CUDA graphs",
    "communication": "of torch.distributed",
    "workspace": "of cuBLAS: one for each thread and stream that multiplies",
    "kept": "outlives the step after its own",
    "before": "from before the history: the owner is not known",
    "unknown": "of no category",
    "rounding": "blocks are multiples of 512 bytes",
    "fragmentation": "free, between blocks in use",
    "cached": "free, in segments that hold nothing",
}
LINES = 2  # of the largest part, in a sentence
MANY = 100  # times a batch: too far from what was recorded for a number
OUTSIDE = "other processes, the driver, libraries' own; at the snapshot"
MUCH_OUTSIDE = 0.1  # of the device: the driver and its context have some 1 %
MOMENTS = {
    "recorded steps": "at the peak of the recorded steps",
    "history": "at the peak of the history",
    "out of memory": "when the allocation failed",
    "snapshot": "at the snapshot",
    "chosen": "at the chosen moment",
    "timeline": "at the peak of the memory timeline",
}


def headline(peak: document.MemoryPeak) -> tuple[str, str]:
    """How much of a device was allocated, and of what that is."""
    is_known = peak.moment != "timeline"
    device = f"GPU {peak.device}" if is_known else "One device"
    title = f"{device}: {numbers.size(peak.requested_bytes)} allocated"
    if peak.rank:
        title = f"rank {peak.rank}, {title}"
    words = [f"of {numbers.size(peak.reserved_bytes)} reserved"] if is_known else []
    if peak.total_bytes:
        share = numbers.percent(peak.reserved_bytes / peak.total_bytes)
        words.append(f"{share} of the device's {numbers.size(peak.total_bytes)}")
    words.append(MOMENTS.get(peak.moment, peak.moment))
    if peak.failed_bytes is not None:
        words.append(f"which requested {numbers.size(peak.failed_bytes)} more{_requester(peak)}")
    if peak.annotations:
        words.append(f"inside {' › '.join(names.shorten(one, 60) for one in peak.annotations[-RANGES:])}")
    return title, ", ".join(words)


def _requester(peak: document.MemoryPeak) -> str:
    by = f" in {names.plain(peak.failed_by)}" if peak.failed_by else ""
    return by + (f" at {names.plain(peak.failed_line)}" if peak.failed_line else "")


def fits(row: document.Fits, failed_bytes: int | None = None) -> str:
    """How large a batch fits; where an allocation failed, of the batch that failed."""
    low, high = (f"{float(f'{value:.2g}'):,g}" for value in (row.low, row.high))
    times = high if low == high else f"{low} to {high}"
    if row.low >= MANY:  # what a peak has of the batch is then too little to tell
        times = f"more than {MANY}"
    batch = "recorded batch" if failed_bytes is None else "batch that failed"
    return (
        f"{times} times the {batch}: {numbers.size(row.scaling_bytes)} of its peak grow with it, "
        f"{numbers.size(row.fixed_bytes)} do not, and there is room for {numbers.size(row.room_bytes)}"
    )


def given_back(row: document.GivenBackRow) -> str:
    """Why memory was given back, and what was taken again."""
    cause = "for room that an allocation needed" if row.cause == "room" else "by empty_cache()"
    steps = f", in {numbers.count(row.steps, 'recorded step')}" if row.steps else ""
    return f"{cause}{steps}; {numbers.size(row.again_bytes)} taken again"


def traced(row: document.MemoryRow) -> str:
    """The memory of one device by a trace's own events."""
    peak = f"peak {numbers.size(row.peak_allocated_bytes)}"
    if row.peak_reserved_bytes is not None:
        peak += f" of {numbers.size(row.peak_reserved_bytes)} reserved"
    if row.peak_op:
        peak += f", in {names.shorten(row.peak_op, 60)}"
    change = row.last_allocated_bytes - row.first_allocated_bytes
    return (
        f"{peak}; {numbers.count(row.allocations, 'allocation')} ({numbers.size(row.turned_over_bytes)}), "
        f"{numbers.count(row.releases, 'release')}; {numbers.size(abs(change))} "
        f"{'more' if change >= 0 else 'less'} at the end than at the start"
    )


def lines(report: document.Report, most: int) -> list[str]:
    """A few sentences on the peaks of a report."""
    found: list[str] = []
    for peak in report.memory_peaks[:most]:
        title, basis = headline(peak)
        parts = sorted(peak.parts, key=lambda part: -part.bytes)[:4]
        split = ", ".join(f"{part.part} {numbers.size(part.bytes)}" for part in parts)
        found.append(f"{title} {basis}: {split}")
        found += [
            f"grows by {numbers.size(row.bytes_per_step)} per step: {row.line or row.owner}"
            for row in peak.growth[:2]
        ]
    return found


def ran_out(report: document.Report) -> str:
    """A sentence on an allocation that failed, and the largest part of the memory; empty where none did."""
    peak = next((peak for peak in report.memory_peaks if peak.failed_bytes is not None), None)
    if peak is None:
        return ""
    return (
        f"It ran out of memory: {numbers.size(peak.failed_bytes or 0)} could not be had{_requester(peak)} "
        f"where {numbers.size(peak.requested_bytes)} were allocated of "
        f"{numbers.size(peak.reserved_bytes)} reserved; {_largest(peak)}.{_elsewhere(peak)}"
    )


def is_alone(report: document.Report) -> bool:
    """Whether nothing but memory was recorded: a snapshot of the allocator, or a memory timeline."""
    return bool(report.memory_peaks) and not (report.devices or report.ops or report.compilation)


def alone(report: document.Report) -> str:
    """A sentence on each peak of what has nothing but memory, but for those of which ``ran_out`` tells."""
    peaks = [peak for peak in report.memory_peaks if peak.failed_bytes is None]
    return " ".join(f"{' '.join(headline(peak))}; {_largest(peak)}." for peak in peaks)


def _largest(peak: document.MemoryPeak) -> str:
    most = max(peak.parts, key=lambda part: part.bytes)
    by = [row for row in peak.holders if row.role == most.part and row.line][:LINES]
    at = (f"{numbers.size(row.bytes)} at {names.plain(row.line or '')}" for row in by)
    where = f" ({', '.join(at)})" if by else ""
    return f"the largest part: {most.part}, {numbers.size(most.bytes)}{where}"


def _elsewhere(peak: document.MemoryPeak) -> str:
    """The part of the device that the program did not have, where that is why it ran out."""
    total, outside = peak.total_bytes or 0, peak.outside_bytes or 0
    if not total and (peak.free_bytes or 0) > (peak.failed_bytes or 0):
        free = numbers.size(peak.free_bytes or 0)
        return f" The device had {free} free: the program is limited to a part of it."
    if total - outside - peak.reserved_bytes > (peak.failed_bytes or 0):
        return f" The device has {numbers.size(total)}: the program is limited to a part of it."
    if outside > MUCH_OUTSIDE * total:
        return f" Of the device {numbers.size(outside)} are allocated outside of the program's allocator."
    return ""


def listing(found: document.MemoryPeaks, limit: int, *, stacks: bool = False) -> Iterable[Block]:
    """Each device: its parts at the peak, who has them, what grows, and what fits."""
    yield from (line(Text(problem, "yellow")) for problem in found.unread)
    if not found.peaks:
        yield from (Line((traced(row),), overflow="whole") for row in found.memory)
        yield line("`kinetoscope run --memory` records who holds it", style="dim", indent=4)
    for number, peak in enumerate(found.peaks):
        if number:
            yield Line()
        yield from _peak(peak, limit, [row for row in found.frees if peak.rank in row.ranks])
        yield from calls(peak) if stacks else ()


def _peak(peak: document.MemoryPeak, limit: int, frees: Sequence[document.FindingRow]) -> Iterable[Block]:
    yield Heading(*headline(peak), level=1)
    fills = _fills(peak)
    yield line("  ", *(Text(fills[row.part] * _cells(row), palette.memory(row.part)) for row in peak.parts))
    yield from (line(note, style="yellow", indent=2) for note in peak.notes)
    if frees:
        lacked = f"{numbers.size(peak.failed_bytes)} could not be had; " if peak.failed_bytes else ""
        yield Heading("What would free it", f"{lacked}each by itself; they do not add up")
        yield Labelled(tuple((Text(numbers.size(row.saving_bytes)), tuple(_advice(row))) for row in frees))
    if peak.failed_bytes is not None:  # all that a person wants of it stands on the first screen
        yield from _batches(peak)
        peak = msgspec.structs.replace(peak, fits=None)
    yield from _tables(peak, limit)


def _batches(peak: document.MemoryPeak) -> Iterable[Block]:
    if peak.fits is not None:
        yield Heading("What fits")
        yield line(fits(peak.fits, peak.failed_bytes))
        tried = "`kinetoscope tune --fits REC -- script.py … {batch}` tries it, and batches near it"
        yield line(tried, style="dim", indent=4)


def _advice(row: document.FindingRow) -> Iterable[Line]:
    where = f" ({row.source})" if row.source else ""
    yield line(names.safe(row.title) + enough(row))
    yield line(f"{names.safe(row.advice)}{where}", style="dim")


def peak(row: document.MemoryPeak) -> Iterable[Block]:
    """The page's blocks of a peak, below its drawing."""
    yield from _tables(row, 0)
    yield from calls(row)


def answer(peak: document.MemoryPeak) -> Iterable[Block]:
    """The page's first blocks of an allocation that failed, above its drawing."""
    if peak.failed_bytes is None:
        return
    whole = peak.requested_bytes or 1
    yield Heading("Most of it", f"{_when(peak)}; all of it below")
    yield table(
        peak.holders[:FIRST],
        field("bytes", "bytes", "bytes"),
        field("of what was allocated", "share", lambda row: row.bytes / whole),
        field("role", "text", lambda row: (Text("■ ", palette.memory(row.role)), row.role)),
        field("whose", "name", "owner"),
        field("line", "text", lambda row: _line(row.line, row.stack)),
        heads=False,
    )
    if peak.fits is not None:
        yield line(Text("What fits: ", "bold"), fits(peak.fits, peak.failed_bytes))


def _tables(peak: document.MemoryPeak, limit: int) -> Iterable[Block]:
    yield from _parts(peak)
    if peak.holders:
        whole = peak.requested_bytes or 1
        yield Heading(
            "Who had it", f"{_when(peak)}; sums to the {numbers.size(peak.requested_bytes)} allocated"
        )
        yield table(
            peak.holders,
            field("whose", "name", _owner, only="page"),
            field("bytes", "bytes", "bytes"),
            field("of what was allocated", "share", lambda row: row.bytes / whole, only="page"),
            field("", "number", lambda row: f"{row.allocations:,} ×", "dim", only="screen"),
            field("allocations", "count", lambda row: row.allocations or None, only="page"),
            field("role", "text", lambda row: (Text("■ ", palette.memory(row.role)), row.role), only="page"),
            field("", "text", lambda row: Text(row.role, palette.memory(row.role)), only="screen"),
            field("", "name", "owner", only="screen"),
            field("line", "text", lambda row: _line(row.line, row.stack)),
            field("op", "name", "op", only="page"),
            field("largest", "bytes", "largest_bytes", only="page"),
            most=limit,
            noun="owner",
            leave=(3, 8),
            heads=False,
        )
    yield from _segments(peak, limit)
    if peak.growth:
        yield Heading("What grows", "with every recorded step")
        yield table(
            peak.growth,
            field("", "number", lambda row: f"+{numbers.size(row.bytes_per_step)} per step", only="screen"),
            field("per step", "bytes", "bytes_per_step", only="page"),
            field("by now", "bytes", "bytes", only="page"),
            field("line", "text", lambda row: place(row.line)),
            field("whose", "name", "owner"),
            field("role", "text", "role", only="page"),
            field("what grows", "text", "grows", only="page"),
            field("kept by", "words", lambda row: ", ".join(row.names), "dim"),
            heads=False,
        )
    if peak.given_back:
        yield Heading("What was given back to the driver", "each time waits for the device")
        yield table(
            peak.given_back,
            field("", "number", lambda row: f"{row.times:,} ×", only="screen"),
            field("times", "count", "times", only="page"),
            field("segments", "count", "segments", only="page"),
            field("bytes", "bytes", "bytes"),
            field("line", "text", lambda row: place(row.line)),
            field("why", "words", given_back, "dim"),
            leave=(0,),
            heads=False,
        )
    yield from _batches(peak)
    is_snapshot = peak.moment != "timeline"
    yield Heading(*SNAPSHOT if is_snapshot else ("Memory timeline", "of torch's profiler"))
    yield table([peak], field("", "name", "snapshot"))


def _segments(peak: document.MemoryPeak, limit: int) -> Iterable[Block]:
    if not peak.segments:
        return
    free = sum(row.free_bytes for row in peak.segments)
    hole = max(row.largest_hole_bytes for row in peak.segments)
    words = f"{numbers.count(len(peak.segments), 'segment')} of the driver; {numbers.size(free)} free in them"
    words += f", the largest hole {numbers.size(hole)}" if hole else ""
    if peak.failed_bytes:
        words += f" where {numbers.size(peak.failed_bytes)} were requested"
    yield Heading("Where it lay", words)
    several = len({(row.stream, row.pool) for row in peak.segments}) > 1
    yield table(
        peak.segments,
        field("segment", "bytes", "bytes"),
        field("free", "bytes", "free_bytes"),
        field("largest hole", "bytes", "largest_hole_bytes"),
        field("allocations", "count", "allocations", "dim"),
        field("stream", "text", lambda row: f"{row.stream:x}", "dim") if several else None,
        field("pool", "text", lambda row: ", ".join(map(str, row.pool)), "dim") if several else None,
        field("by address", "bar", partial(_drawn, _fills(peak))),
        most=min(limit, SEGMENTS) if limit else 0,
        noun="segment",
        leave=(3, 4, 5) if several else (3,),
    )


def _drawn(fills: Mapping[str, str], row: document.SegmentRow) -> tuple[Segment, ...]:
    """The bar of a segment; its end, of no length, has one that is all of a piece drawn as a bar of parts."""
    return tuple(
        Segment(
            size / row.bytes,
            palette.memory("fragmentation" if part == FREE else part),
            " " if part == FREE else fills.get(part, "·"),
            f"{part}: {numbers.size(size)}" if size else "",
        )
        for part, size in (*row.pieces, (FREE, 0))
    )


def calls(peak: document.MemoryPeak) -> Iterable[Block]:
    """Everything that was allocated at the peak by whole stacks."""
    if not peak.calls:
        return
    whole = peak.requested_bytes or 1
    yield Heading("By whole stack", "each with what the calls below it allocated", folded=True)
    yield table(
        peak.calls,
        field("bytes", "bytes", "bytes"),
        field("of what was allocated", "share", lambda row: row.bytes / whole),
        field("allocations", "count", "allocations", "dim"),
        field("call", "name", _call),
        leave=(2,),
        heads=False,
    )


def _call(row: document.CallsRow) -> Text:
    """The innermost call, with those that only lead to it behind it; a module's, not what calls them all."""
    path, _, name = next((one for one in row.frames if "_call_impl" not in one), row.frames[0]).partition(" ")
    return Text(f"{'· ' * row.depth}{name} {PurePath(path).name}", "", "stack", "\n".join(row.frames))


def _when(peak: document.MemoryPeak) -> str:
    return MOMENTS[peak.moment] if peak.moment in ("out of memory", "snapshot", "chosen") else "at the peak"


def _owner(row: document.HolderRow) -> Cell:
    return Text(row.owner, "", "stack", "\n".join(row.stack)) if row.stack else row.owner


def _line(line: str | None, stack: Iterable[str]) -> Text:
    """A line, which leads to the whole path that the stack has of it."""
    if line is None:
        return Text("")
    paths = (frame.partition(" ")[0] for frame in stack)
    return Text(line, "", "line", next((path for path in paths if path.endswith(line)), line))


def _cells(part: document.MemoryPart) -> int:
    return round(min(max(part.share_of_reserved, 0.0), 1.0) * BAR)


def _fills(peak: document.MemoryPeak) -> dict[str, str]:
    """A glyph for each part: in the bar of all, neighbours differ where colours do not show. A part of less
    than half a cell is not drawn."""
    glyphs = cycle(FILLS)
    return {part.part: next(glyphs) if _cells(part) else "·" for part in peak.parts}


def _parts(peak: document.MemoryPeak) -> Iterable[Block]:
    kind = "allocated" if peak.moment == "timeline" else "reserved"
    fills = _fills(peak)
    whole = f"{_when(peak)}; sums to the {numbers.size(peak.reserved_bytes)} {kind}"
    yield Heading("What it was", whole)
    yield stacked_bar(
        Segment(
            part.share_of_reserved,
            palette.memory(part.part),
            label=f"{part.part}: {numbers.size(part.bytes)}",
        )
        for part in peak.parts
    )
    parts = table(
        peak.parts,
        field("part", "text", lambda row: (Text(f"{fills[row.part]} ", palette.memory(row.part)), row.part)),
        field("bytes", "bytes", "bytes"),
        field(f"of the {kind}", "share", "share_of_reserved"),
        field("allocations", "count", lambda row: row.allocations or "", "dim"),
        field("what it is", "words", lambda row: PARTS.get(row.part, ""), "dim"),
        heads=False,
    )
    if peak.outside_bytes is not None:
        parts.rows.append(("  outside the allocator", peak.outside_bytes, "", "", OUTSIDE))
    yield parts


def device(row: document.MemoryRow) -> Iterable[Block]:
    """The memory of one device by a trace's own events, and what was allocated at its peak."""
    if row.peak_us:
        shown = Text("show it in the timeline", "", "time", f"{row.peak_us - 500},{row.peak_us + 500}")
        yield line("peak: ", shown)
    yield line(traced(row))
    if not row.held_at_peak:
        return
    whole, before = row.peak_allocated_bytes or 1, row.held_from_before_bytes
    basis = ""
    if before is not None:
        share = numbers.percent(before / whole)
        basis = f"{numbers.size(before)} more, {share}, were allocated before the recording"
    yield Heading(f"Held at the peak of rank {row.rank} GPU {row.device}", basis)
    yield table(
        row.held_at_peak,
        field("allocated by", "name", lambda one: one.op or "no op"),
        field("module", "name", "module"),
        field("line", "text", lambda one: _frame(one.line)),
        field("bytes", "bytes", "bytes"),
        field("of the peak", "share", lambda one: one.bytes / whole),
        field("allocations", "count", "allocations"),
    )


def _frame(frame: str | None) -> Cell:
    """A Python frame, ``path/model.py(12): forward``, as its line and its function."""
    found = re.fullmatch(r"(.*?)\((\d+)\): (.*)", frame or "")
    return (place(f"{found[1]}:{found[2]}"), Text(f" {found[3]}", "dim")) if found else frame


def allocator(report: document.Report) -> Iterable[Block]:
    """The host's requests to the driver."""
    if report.allocator:
        yield Heading("Calls of the driver", "that take or give back memory")
        yield table(
            report.allocator,
            field("call", "name", "name"),
            field("calls", "count", "calls"),
            field("in the recorded time", "count", "calls_in_window"),
            field("host time", "time", "host_us"),
        )
