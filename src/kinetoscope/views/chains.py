"""How kernels came about: what ``kinetoscope kernels --chain`` shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from kinetoscope import numbers
from kinetoscope.document import Chain, ChainListing, Link, Quantiles
from kinetoscope.render import names
from kinetoscope.render.json import indented
from kinetoscope.render.table import Prose, rest
from kinetoscope.views.listing import grid, titled

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
DEEPEST = 16  # levels that are indented: stacks of Python are deeper than a terminal is wide


@dataclass(frozen=True)
class Branch:
    """A link's name behind its indentation, shortened to the width there is."""

    depth: int
    text: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        indent = len(self._indent())
        return Measurement(indent + min(16, len(self.text)), indent + len(self.text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        indent = self._indent()
        yield Text.assemble(
            (indent, "dim"), names.shorten(self.text, options.max_width - len(indent)), no_wrap=True
        )

    def _indent(self) -> str:
        return "   " * (min(self.depth, DEEPEST) - 1) + "└─ " if self.depth else ""


def print_chains(listing: ChainListing, console: Console, limit: int) -> None:
    """A tree for each way, at most ``limit`` of them (0: all)."""
    shown = listing.chains[:limit] if limit else listing.chains
    time = numbers.time(listing.device_time_us)
    share = numbers.percent(sum(chain.share_of_device_time for chain in listing.chains))
    title = f"{numbers.count(listing.launches, 'launch')} of {names.shorten(listing.name, 60)}"
    console.print(titled(title, f"{time}, {share} of all device time"))
    for chain in shown:
        console.print()
        _print_chain(chain, console)
    for line in rest(len(listing.chains) - len(shown), "chain"):
        console.print()
        console.print(line)


def _print_chain(chain: Chain, console: Console) -> None:
    ranks = f" on {numbers.count(chain.ranks, 'rank')}" if chain.ranks > 1 else ""
    console.print(
        f"{numbers.count(chain.launches, 'launch')}{ranks}, {numbers.time(chain.device_time_us)}, "
        f"{numbers.percent(chain.share_of_device_time)} of all device time"
        + ("; the median one:" if chain.launches > 1 else ":")
    )
    _print_tree(chain.links, console)
    if chain.latency_us and chain.queue_delay_us:
        queued = _spread(chain.queue_delay_us, chain.launches) if chain.queue_delay_us.p90 else "0"
        latency = _spread(chain.latency_us, chain.launches)
        console.print(
            Prose(f"launch latency {latency}; of that behind earlier work of its stream: {queued}", "dim")
        )
    elif len(chain.links) == 1:
        console.print(Text("its launch is not in the recording", style="dim"))
    if chain.forward:
        console.print(Text("backward of:", style="dim"))
        _print_tree(chain.forward, console)


def _spread(times_us: Quantiles, launches: int) -> str:
    median = numbers.time(times_us.median)
    return f"{median} (median; p90 {numbers.time(times_us.p90)})" if launches > 1 else median


def _print_tree(links: Sequence[Link], console: Console) -> None:
    lines = list(_lines(links))
    timed = [link for _, link in lines]
    table = grid(
        ("", "left*", [Branch(depth, label) for depth, (label, _) in enumerate(lines)]),
        ("from", "right", [Text(numbers.time(link.since_us) if link else "", style="dim") for link in timed]),
        ("takes", "right", [numbers.time(link.duration_us) if link else "" for link in timed]),
        ("", "left", [Text(_kind(link) if link else "", style="dim") for link in timed]),
    )
    console.print(table)


def _kind(link: Link) -> str:
    return KINDS.get(link.kind, names.plain(link.kind))


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


def render_json(listing: ChainListing) -> str:
    """One document: ``chains``, most device time first; times in microseconds, as in the trace."""
    document = {
        "chain": listing.name,
        "launches": listing.launches,
        "device_time_us": listing.device_time_us,
        "chains": [
            {
                "kernel": chain.links[-1].name,
                **msgspec.structs.asdict(chain),
                "links": [_link(link) for link in chain.links],
                "forward": [_link(link) for link in chain.forward],
            }
            for chain in listing.chains
        ],
    }
    return indented(document)


def _link(link: Link) -> dict[str, object]:
    return {key: getattr(link, key) for key in ("kind", "name", "start_us", "duration_us", "event")}
