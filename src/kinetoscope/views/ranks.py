"""Ranks compared: who waits for whom and why, in sentences and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

from kinetoscope import numbers
from kinetoscope.document import CollectiveRow, Ranks, RanksListing, Report
from kinetoscope.render import names
from kinetoscope.render.blocks import Block, Column, Heading, Line, Only, Prose, Table, Text, line
from kinetoscope.render.formats import Extent, View

ROWS = 8
STAGES, WORKERS = 16, 3
NOTABLE = 1.02  # times as long: below it no stage or operation is named
OPERATIONS = {"forward": "forward passes", "backward": "backward passes", "host": "the host between passes",
              "forward transfer": "sending forward", "backward transfer": "sending backward",
              "exchange": "sending in both directions at once"}  # fmt: skip


class Grid(NamedTuple):
    """A table: its title, what its figures are of, its heads (the first column is text), its rows."""

    title: str
    basis: str
    heads: Sequence[str]
    rows: list[Sequence[str]]


def title(listing: RanksListing) -> list[str]:
    """The ranks, devices and events that were read, in parts."""
    devices = ", ".join(f"{count} × {name}" for name, count in listing.devices.items())
    much = numbers.count(listing.events, "event"), numbers.size(listing.bytes)
    return [part for part in (f"ranks {listing.ranks.here}", devices, *much) if part]


def verdict(ranks: Ranks) -> str:
    """Who is waited for and why, in a sentence or two."""
    found = ranks.verdict
    if found.status == "straggler":
        detail = f" ({names.shorten(found.detail, 60)})" if found.detail else ""
        why = f": {WHY[found.cause]}{detail}" if found.cause in WHY else ": the cause is unknown"
        share = numbers.percent(found.share_of_waiting)
        return f"Rank {found.rank} is waited for{why}; {share} of the waiting is its doing."
    if found.status == "turns":
        last = ", ".join(
            f"rank {row.rank} ({WHY.get(row.cause or '', 'cause unknown')})" for row in ranks.worst[:3]
        )
        return f"Ranks take turns in being late: most often {last}."
    if found.status == "even":
        how = "hardly wait for each other" if not found.why else f"wait for each other, but {found.why}"
        return f"Ranks {how}."
    return f"Who is waited for is unknown: {found.why}."


WHY = {
    "slow kernel": "one of its kernels is slower",
    "clocks": "all its kernels are slower, as on a device that is throttled",
    "more work": "it launches more kernels",
    "more data": "all-to-alls give it more data, as to a rank whose experts are in demand",
    "compute": "it computes longer",
    "host": "its host is later with its launches",
    "data loader": "it waits for its data loader",
    "synchronization": "its host waits for its device where others do not",
    "recompilation": "it compiles",
    "allocator": "it allocates memory",
}


def lines(ranks: Ranks) -> list[str]:
    """The verdict, who is there, what the waiting costs, how well clocks are known, and what dumps say."""
    said = verdict(ranks), _present(ranks), _ideal(ranks), _staged(ranks), _clocks(ranks), *ranks.dumps
    return [line for line in said if line]


def _present(ranks: Ranks) -> str:
    parts: list[str] = []
    if ranks.missing:
        parts.append(f"of {ranks.expected} ranks, {_ranks(ranks.missing)} {_is(ranks.missing)} missing")
    if ranks.damaged:
        parts.append(f"the recording of {_ranks(ranks.damaged)} is damaged")
    if ranks.incomparable:
        parts.append(f"no collective of {_ranks(ranks.incomparable)} ends with another rank's")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}: what was not recorded is not guessed." if parts else ""


def _ranks(listed: str) -> str:
    """``rank 3``, ``ranks 0-3``."""
    return f"rank {listed}" if listed.isdigit() else f"ranks {listed}"


def _is(listed: str) -> str:
    return "is" if listed.isdigit() else "are"


def _ideal(ranks: Ranks) -> str:
    found = ranks.ideal
    if found is None or found.slowdown < 1.005:
        return ""
    less = numbers.percent(1 - 1 / found.slowdown)
    what = "the first collective and the last" if found.steps is None else "the first pass and the last"
    of = "a step of " if found.grain == "events" else ""
    between = "" if found.grain == "events" else f" between {what}"
    text = (
        f"Without stragglers {of}{numbers.time(found.recorded_us)}{between} "
        f"would be {numbers.time(found.ideal_us)}, {less} less (replayed to {found.error:+.1%})"
    )
    if ranks.verdict.status == "even":
        return f"{text}: if no rank was ever late, by chance either."
    alone = [(rank, found.replayed_us - us) for rank, us in found.without.items() if us < found.replayed_us]
    listed = ", ".join(f"rank {rank} {numbers.time(saved)} less" for rank, saved in alone[:3])
    return f"{text}; were one alone never late, {listed}." if listed else f"{text}."


def _staged(ranks: Ranks) -> str:
    """Which stage and which operations make a pipeline's steps longer, or why that is not known."""
    found = ranks.ideal
    if found is None or not (found.steps or found.why):
        return ""
    if found.why:
        return f"By stage and operation it is unknown: {found.why}."
    stage, most = max(found.by_stage.items(), key=lambda one: one[1])
    number = list(found.by_stage).index(stage)
    operation, longest = max(found.by_operation.items(), key=lambda one: one[1])
    if max(most, longest) < NOTABLE:
        return "No stage and no sort of operation makes its steps longer than the others do."
    return (
        f"Stage {number} (rank {stage}) alone makes the pipeline {most:.2f} times as long; of operations, "
        f"{OPERATIONS.get(operation, operation)} do most, {longest:.2f} times."
    )


def _clocks(ranks: Ranks) -> str:
    known = [row.residual_us for row in ranks.clocks if row.residual_us is not None]
    if not known:
        return ""
    apart = max(abs(row.ahead_us) for row in ranks.clocks)
    drift = max(abs(row.drift_ppm) for row in ranks.clocks)
    differ = f"Clocks are up to {numbers.time(apart)} apart" if apart >= 1 else "Clocks agree"
    drifts = f" and drift by up to {drift:.0f} ppm" if drift >= 1 else ""
    return f"{differ}{drifts}; aligned, collectives end within {numbers.time(max(known))} of each other."


def grids(ranks: Ranks, most: int = ROWS) -> Iterable[Grid]:
    """The tables, each of at most so many rows."""
    if ranks.late:
        yield Grid(
            "Why ranks were late", "what the others waited for it",
            ("rank", "cause", "waited", "collectives", ""),
            [
                ("?" if row.rank is None else str(row.rank), row.cause or "unknown",
                 numbers.time(row.waited_us), numbers.count(row.meetings), names.shorten(row.detail, 40))
                for row in ranks.late[:most]
            ],
        )  # fmt: skip
    for title, listed in (("Collectives", ranks.collectives), ("Collectives, inspected", ranks.inspected)):
        if listed:
            yield _collectives(title, listed[:most])
    yield from _slowdowns(ranks)
    if ranks.count > 2:
        yield Grid(
            "Over ranks", "shares of each rank's window, and whose the extremes are",
            ("", "least", "10 %", "median", "90 %", "most"),
            [
                (row.what, f"{numbers.percent(row.least)} ({row.least_rank})", numbers.percent(row.p10),
                 numbers.percent(row.median), numbers.percent(row.p90),
                 f"{numbers.percent(row.most)} ({row.most_rank})")
                for row in ranks.spread
            ],
        )  # fmt: skip
    if len(ranks.alike) > 1 and not ranks.ranks:
        yield Grid(
            "Similar ranks", "that compute for similar times; medians",
            ("ranks", "how many", "compute", "exposed waiting", "exposed transfer", "idle"),
            [
                (names.shorten(row.ranks, 40), numbers.count(row.count), numbers.percent(row.compute),
                 numbers.percent(row.exposed_waiting), numbers.percent(row.exposed_transfer),
                 numbers.percent(row.idle))
                for row in ranks.alike[:most]
            ],
        )  # fmt: skip
    shown = ranks.ranks or ranks.worst
    if shown:
        yield Grid(
            "Ranks" if ranks.ranks else "Ranks most waited for", "of each rank's own window",
            ("rank", "busy", "waits", "exposed", "transfer exposed", "waited for", "because"),
            [
                (str(row.rank), numbers.percent(row.busy_us / max(row.window_us, 1e-9)),
                 numbers.time(row.waiting_us), numbers.time(row.exposed_waiting_us),
                 numbers.time(row.exposed_transfer_us), numbers.time(row.blamed_us), row.cause or "")
                for row in shown
            ],
        )  # fmt: skip


def _slowdowns(ranks: Ranks) -> Iterable[Grid]:
    """A pipeline's slowdowns: stages in their order, operations by their cost."""
    found = ranks.ideal
    if found is None or not found.by_stage:
        return
    stages = [(f"stage {at}, rank {own}", took) for at, (own, took) in enumerate(found.by_stage.items())]
    workers = sorted(found.by_worker.items(), key=lambda one: -one[1])
    among = [(f"worker, ranks {own}", took) for own, took in workers[:WORKERS]]
    if len(workers) > WORKERS:
        among.append((f"workers, median of {len(workers)}", median(found.by_worker.values())))
    each = [(OPERATIONS.get(sort, sort), took) for sort, took in found.by_operation.items()]
    each.sort(key=lambda one: -one[1])
    yield Grid(
        "Pipeline", "how many times as long, were all else as its peers have it at the mean",
        ("stage, data-parallel worker or operation", "slowdown"),
        [
            (names.shorten(what, 40), f"{took:.3f}")
            for what, took in (*stages[:STAGES], *among, *each)
        ],
    )  # fmt: skip


def _collectives(title: str, listed: Sequence[CollectiveRow]) -> Grid:
    return Grid(
        title, "transfer and skew at the median; bandwidths as nccl-tests count them",
        ("group", "kind", "size", "times", "transfer", "waiting", "skew", "last", "GB/s", "bus"),
        [
            (_group(row.group, row.group_size, row.groups), row.kind,
             _size(row), numbers.count(row.meetings),
             _time(row.transfer_us), numbers.time(row.waiting_us), _time(row.skew_median_us),
             "–" if row.last_rank is None else f"{row.last_rank} ({row.last_times} of {row.told})",
             _rate(row.algorithm_gbps), _bus(row))
            for row in listed
        ],
    )  # fmt: skip


def _group(name: str, size: int | None, groups: int) -> str:
    text = names.shorten(name, 24)
    members = "" if size is None else f" of {size}"
    return f"{text}{members}" if groups == 1 else f"{text}{members}, {groups} ×"


def _time(us: float | None) -> str:
    return "–" if us is None else numbers.time(us)


def _size(row: CollectiveRow) -> str:
    """Bytes; of uneven ones the most loaded rank's, and how many times the mean that is."""
    text = "–" if row.bytes is None else numbers.size(row.bytes)
    return text if row.uneven is None else f"{text}, {row.uneven:.1f} × the mean (rank {row.heaviest_rank})"


def _bus(row: CollectiveRow) -> str:
    share = "" if row.share_of_link is None else f" ({numbers.percent(row.share_of_link)} of the link)"
    return f"{_rate(row.bus_gbps)}{share}"


def _rate(gbps: float | None) -> str:
    return "–" if gbps is None else numbers.rate(gbps)


def section(report: Report, most: int, *, whole: bool) -> Iterable[Block]:
    """The report's section: who waits for whom; ``whole``: with all sentences and tables."""
    if report.ranks is None:
        return
    yield Heading("Ranks", "who waits for whom in collectives")
    sentences = lines(report.ranks)
    yield from (Prose(sentence) for sentence in (sentences if whole else sentences[:most]))
    for shown in grids(report.ranks, most) if whole else ():
        yield Heading(shown.title, shown.basis, 3)
        yield _table(shown)


def _table(shown: Grid) -> Table:
    first, *others = shown.heads
    return Table(
        (Column(first), *(Column(head, "number") for head in others)), [tuple(row) for row in shown.rows]
    )


def view(listing: RanksListing, page: Callable[[], str]) -> View:
    """Many ranks, of which nothing but this comparison was kept, in every format."""
    return View(document=lambda: listing, blocks=partial(blocks, listing), page=page)


def blocks(listing: RanksListing, extent: Extent = "whole") -> list[Block]:
    """The verdict, and tables whose length does not grow with the ranks."""
    heading = " · ".join(title(listing))
    shown: list[Block] = [
        Only("page", Heading(heading, level=1)),
        Only("screen", line(heading, style="dim")),
        Line(),
    ]
    for at, sentence in enumerate(lines(listing.ranks)):
        shown.append(Prose(sentence, "" if at else "bold"))
    for grid in grids(listing.ranks):
        shown += [Heading(grid.title, grid.basis, 3), _table(grid)]
    return [*shown, *(line(Text(problem, "yellow")) for problem in listing.ranks.unread)]
