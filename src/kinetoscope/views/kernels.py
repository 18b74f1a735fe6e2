"""Device time by kernel and by what kernels belong to; and how single kernels came about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from kinetoscope import numbers
from kinetoscope.document import Chain, ChainListing, KernelListing, Link, ListingRow, Quantiles, Report
from kinetoscope.render import names, palette
from kinetoscope.render.blocks import *

CATEGORY = 13  # characters
_NO_LINES = "No lines of the program were recorded: `kinetoscope run` notes them unless --no-lines."
NOT_NOTED = {  # by what kernels were to be summed: what is said where none of it was recorded
    "line": _NO_LINES,
    "module": _NO_LINES,
    "op": "No ops were recorded: torch.profiler records them (ProfilerActivity.CPU), and so does nsys inside "
    "of torch.autograd.profiler.emit_nvtx().",
}
KINDS = {
    "cpu_op": "op",
    "user_annotation": "annotation",
    "python_function": "Python",
    "cuda_runtime": "runtime call",
    "cuda_driver": "driver call",
    "privateuse1_runtime": "runtime call",
    "privateuse1_driver": "driver call",
    "memcpy": "copy",
}


def document(shown: KernelListing) -> dict[str, object]:
    """The contract: rows stand under the plural of what they are summed by: ``kernels``, ``ops``, …"""
    return {
        "by": shown.by,
        "category": shown.category,
        "device_time_us": shown.device_time_us,
        "categories" if shown.by == "category" else f"{shown.by}s": shown.rows,
        "share_of_device_time": shown.shares,
    }


def listing(shown: KernelListing, limit: int) -> Iterable[Block]:
    """A table of at most ``limit`` rows (0: all); of kernels with the categories' shares at the end."""
    what = f"{names.plain(shown.category)} device time" if shown.category else "device time"
    time = sum(row.device_time_us for row in shown.rows)
    of_all = f", {numbers.percent(time / shown.device_time_us)} of all" if shown.category else ""
    basis = f"{numbers.time(time)}{of_all}; share of all device time; times of one launch"
    yield Heading(f"{what.capitalize()} by {shown.by}", basis, 1)
    with_category = shown.by != "category" and not shown.category
    yield table(
        shown.rows,
        field(shown.by, "name", lambda row: kernel(row.name, row.short_name)),
        field("category", "text", _category) if with_category else None,
        field("share", "share", "share_of_device_time"),
        field("total", "time", "device_time_us"),
        field("launches", "count", "launches"),
        field("median", "time", "median_us"),
        field("p90", "time", "p90_us"),
        field("max", "time", "max_us", "dim"),
        field("waves", "number", _waves) if shown.by == "grid" else None,
        most=limit,
    )
    if shown.by in NOT_NOTED and not shown.is_noted:
        yield line(NOT_NOTED[shown.by])
    if shown.by != "kernel":
        return
    yield Line()
    shares = (f"{names.plain(category)} {numbers.percent(share)}" for category, share in shown.shares.items())
    yield line(" · ".join((f"of {numbers.time(shown.device_time_us)} device time", *shares)))


class Dot(msgspec.Struct, frozen=True):
    """A kernel in a roofline plot: its place among the report's, FLOP per byte, and FLOP/s."""

    kernel: int
    intensity: float
    flops_per_s: float


class Roofline(msgspec.Struct, frozen=True):
    """The kernels whose FLOPs and bytes are known, and the share of device time that they are."""

    dots: list[Dot]
    share_of_device_time: float


def roofline(report: Report) -> Roofline:
    """Kernels by the cost of all their launches: the recording's, or else the compile log's."""
    compiled = {
        name: row
        for row in (reversed(report.compilation.kernels) if report.compilation else ())
        for name in (row.name, row.symbol)
    }
    dots: list[Dot] = []
    for place, row in enumerate(report.kernels):
        flops, moved, known = row.flops, row.bytes, compiled.get(row.name)
        if not (flops and moved) and known and known.flops and known.bytes:
            flops, moved = known.flops * row.launches, known.bytes * row.launches
        if flops and moved and row.device_time_us:
            dots.append(Dot(place, flops / moved, flops / (row.device_time_us / 1e6)))
    whole = sum(row.device_time_us for row in report.kernels)
    shown = sum(report.kernels[dot.kernel].device_time_us for dot in dots)
    return Roofline(dots, shown / whole if whole else 0.0)


def _category(row: ListingRow) -> Text:
    return Text(names.shorten(row.category, CATEGORY), palette.category(row.category))


def _waves(row: ListingRow) -> str:
    return "" if row.waves is None else f"{row.waves:.3g}"


def chains_document(found: ChainListing) -> dict[str, object]:
    """The contract: ``chains``, most device time first; times in microseconds, as in the trace."""
    return {
        "chain": found.name,
        "launches": found.launches,
        "device_time_us": found.device_time_us,
        "chains": [
            {
                "kernel": chain.links[-1].name,
                **msgspec.structs.asdict(chain),
                "links": [_link(link) for link in chain.links],
                "forward": [_link(link) for link in chain.forward],
            }
            for chain in found.chains
        ],
    }


def _link(link: Link) -> dict[str, object]:
    return {key: getattr(link, key) for key in ("kind", "name", "start_us", "duration_us", "event")}


def chains(found: ChainListing, limit: int) -> Iterable[Block]:
    """A tree for each chain, at most ``limit`` of them (0: all)."""
    shown = found.chains[:limit] if limit else found.chains
    share = numbers.percent(sum(chain.share_of_device_time for chain in found.chains))
    title = f"{numbers.count(found.launches, 'launch')} of {names.shorten(found.name, 60)}"
    yield Heading(title, f"{numbers.time(found.device_time_us)}, {share} of all device time", 1)
    for chain in shown:
        yield Line()
        yield from _chain(chain)
    for left in rest(len(found.chains) - len(shown), "chain"):
        yield from (Line(), left)


def _chain(chain: Chain) -> Iterable[Block]:
    ranks = f" on {numbers.count(chain.ranks, 'rank')}" if chain.ranks > 1 else ""
    yield line(
        f"{numbers.count(chain.launches, 'launch')}{ranks}, {numbers.time(chain.device_time_us)}, "
        f"{numbers.percent(chain.share_of_device_time)} of all device time"
        + ("; the median one:" if chain.launches > 1 else ":")
    )
    yield _tree(chain.links)
    if chain.latency_us and chain.queue_delay_us:
        queued = _spread(chain.queue_delay_us, chain.launches) if chain.queue_delay_us.p90 else "0"
        latency = _spread(chain.latency_us, chain.launches)
        yield Prose(f"launch latency {latency}; of that behind earlier work of its stream: {queued}", "dim")
    elif len(chain.links) == 1:
        yield line("its launch is not in the recording", style="dim")
    if chain.forward:
        yield line("backward of:", style="dim")
        yield _tree(chain.forward)


def _spread(times_us: Quantiles, launches: int) -> str:
    median = numbers.time(times_us.median)
    return f"{median} (median; p90 {numbers.time(times_us.p90)})" if launches > 1 else median


def _tree(links: Sequence[Link]) -> Table:
    return table(
        enumerate(_lines(links)),
        field("", "name", lambda row: Text(row[1][0], depth=row[0])),
        field("from", "number", lambda row: numbers.time(row[1][1].since_us) if row[1][1] else "", "dim"),
        field("takes", "number", lambda row: numbers.time(row[1][1].duration_us) if row[1][1] else ""),
        field("", "text", lambda row: KINDS.get(row[1][1].kind, row[1][1].kind) if row[1][1] else "", "dim"),
    )


def _lines(links: Sequence[Link]) -> Iterator[tuple[str, Link | None]]:
    """The links with their labels; where library frames follow each other, only how many."""
    frames = 0
    for link in links:
        if link.label is None:
            frames += 1
            continue
        if frames:
            yield f"… {numbers.count(frames, 'frame')} of libraries", None
        frames = 0
        yield link.label, link
