"""How kernels came about: what ``kinetoscope kernels --chain`` shows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from kinetoscope import numbers
from kinetoscope.analysis.events.torch_names import LIBRARY_FRAME, MODULE
from kinetoscope.analysis.kernels.names import short_name
from kinetoscope.analysis.origins.dispatch import Dispatch, Link
from kinetoscope.report.pages.table import Prose, columns, rest
from kinetoscope.report.words import names

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


def print_chains(name: str, found: Sequence[Dispatch], console: Console, limit: int) -> None:
    """A tree for each way, at most ``limit`` of them (0: all)."""
    shown = found[:limit] if limit else found
    launches, time = sum(one.launches for one in found), sum(one.device_time_ns for one in found)
    share = sum(one.share_of_device_time for one in found)
    console.print(
        Text.assemble(
            (f"{numbers.count(launches, 'launch')} of {names.shorten(name, 60)}", "bold"),
            (f"  {numbers.time(time / 1000)}, {numbers.percent(share)} of all device time", "dim"),
        )
    )
    for one in shown:
        console.print()
        _print_one(one, console)
    for line in rest(len(found) - len(shown), "chain"):
        console.print()
        console.print(line)


def _print_one(one: Dispatch, console: Console) -> None:
    ranks = f" on {numbers.count(one.ranks, 'rank')}" if one.ranks > 1 else ""
    console.print(
        f"{numbers.count(one.launches, 'launch')}{ranks}, {numbers.time(one.device_time_ns / 1000)}, "
        f"{numbers.percent(one.share_of_device_time)} of all device time"
        + ("; the median one:" if one.launches > 1 else ":")
    )
    _print_tree(one.chain.links, console)
    if one.latency_ns and one.queued_ns:
        queued = _spread(one.queued_ns, one.launches) if one.queued_ns[1] else "0"
        latency = _spread(one.latency_ns, one.launches)
        console.print(
            Prose(f"launch latency {latency}; of that behind earlier work of its stream: {queued}", "dim")
        )
    elif len(one.chain.links) == 1:
        console.print(Text("its launch is not in the recording", style="dim"))
    if one.chain.forward:
        console.print(Text("backward of:", style="dim"))
        _print_tree(one.chain.forward, console)


def _spread(times_ns: tuple[float, float], launches: int) -> str:
    median, p90 = (numbers.time(time / 1000) for time in times_ns)
    return f"{median} (median; p90 {p90})" if launches > 1 else median


def _print_tree(links: Sequence[Link], console: Console) -> None:
    table = columns("left*", "right", "right", "left")
    for header, column in zip(("", "from", "takes", ""), table.columns, strict=True):
        column.header = Text(header, style="dim")
    table.show_header = True
    for depth, line in enumerate(_lines(links)):
        if isinstance(line, int):
            table.add_row(Branch(depth, f"… {numbers.count(line, 'frame')} of libraries"), "", "", "")
        else:
            table.add_row(
                Branch(depth, short_name(line.name) if line is links[-1] else line.name),
                Text(numbers.time((line.start_ns - links[0].start_ns) / 1000), style="dim"),
                Text(numbers.time(line.duration_ns / 1000)),
                Text(KINDS.get(line.kind, names.plain(line.kind)), style="dim"),
            )
    console.print(table)


def _lines(links: Sequence[Link]) -> Iterator[Link | int]:
    """The links, with the number of frames where library frames follow each other."""
    frames = 0
    for link in links:
        is_library = link.kind == "python_function" and re.search(LIBRARY_FRAME, link.name)
        if is_library and not link.name.startswith(MODULE):
            frames += 1
            continue
        if frames:
            yield frames
        frames = 0
        yield link


def chains_json(name: str, found: Sequence[Dispatch]) -> str:
    """One document: ``chains``, most device time first; times in microseconds, each link's ``start_us`` as in the
    trace, ``latency_us`` from the launching call's start to the work's, ``queue_delay_us`` the part of it in which
    earlier work of the stream had not ended."""
    document: dict[str, Any] = {
        "chain": name,
        "launches": sum(one.launches for one in found),
        "device_time_us": sum(one.device_time_ns for one in found) / 1000,
        "chains": [
            {
                "kernel": one.chain.links[-1].name,
                "rank": one.rank,
                "ranks": one.ranks,
                "launches": one.launches,
                "device_time_us": one.device_time_ns / 1000,
                "share_of_device_time": one.share_of_device_time,
                "latency_us": _quantiles(one.latency_ns),
                "queue_delay_us": _quantiles(one.queued_ns),
                "links": [_link(link) for link in one.chain.links],
                "forward": [_link(link) for link in one.chain.forward],
            }
            for one in found
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def _quantiles(times_ns: tuple[float, float] | None) -> dict[str, float] | None:
    return None if times_ns is None else {"median": times_ns[0] / 1000, "p90": times_ns[1] / 1000}


def _link(link: Link) -> dict[str, Any]:
    return {
        "kind": link.kind,
        "name": link.name,
        "start_us": link.start_ns / 1000,
        "duration_us": link.duration_ns / 1000,
        "event": link.event,
    }
