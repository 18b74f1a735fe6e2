"""Ranks compared: who waits for whom and why, in sentences and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from shlex import quote
from statistics import median

from kinetoscope import document, numbers
from kinetoscope.document.ranks import seen
from kinetoscope.render import names, palette
from kinetoscope.render.blocks import *
from kinetoscope.render.formats import Extent, View
from kinetoscope.views import findings, serving

ROWS = 8
HOSTS, LISTED = 3, 24  # hosts, and characters of ranks, that a sentence names
STAGES, WORKERS = 16, 3
PAIRS = 8  # of ranks, between which all-to-alls moved most
AMONG = 3  # slowest places of each sort
NOTABLE = 1.02  # times as long: below it no stage or operation is named
ROUGH = 0.05  # an error of the replay above which it tells no time
MORE = 1.25  # times what the named ranks cost: what all lateness costs is not said below that
FINDINGS = 3
UNREAD = 3  # sentences on what was left out
OPERATIONS = {"forward": "forward passes", "backward": "backward passes", "host": "the host between passes",
              "forward transfer": "sending forward", "backward transfer": "sending backward",
              "exchange": "sending in both directions at once"}  # fmt: skip


def title(listing: document.RanksListing) -> list[str]:
    """The ranks, devices and events that were read, in parts."""
    devices = ", ".join(f"{count} × {name}" for name, count in listing.devices.items())
    much = numbers.count(listing.events, "event"), numbers.size(listing.bytes)
    return [part for part in (f"ranks {listing.ranks.here}", devices, *much) if part]


def verdict(ranks: document.Ranks) -> str:
    """Who makes the run slower, where, why and by how much, in a sentence or two."""
    found = ranks.verdict
    if found.status in ("straggler", "link"):
        why = seen(found.cause, names.shorten(found.detail, 60)) or "the cause is unknown"
        return f"{_culprit(found)} {_cost(found)}: {why}."
    if found.status == "turns":
        last = ", ".join(
            f"rank {row.rank} ({seen(row.cause, '') or 'cause unknown'})" for row in ranks.worst[:3]
        )
        cost = f", which {_cost(found)}" if found.cost_share else ""
        return f"Ranks take turns in being late{cost}: most often {last}."
    if found.status == "even":
        if not found.why:
            return "No rank is late: ranks hardly wait for each other."
        return f"Ranks wait for each other, but {found.why}."
    return f"Who is waited for is unknown: {found.why}."


def lines(ranks: document.Ranks) -> list[str]:
    """The verdict, who is there, what the waiting costs, how well clocks are known, and what dumps say."""
    said = verdict(ranks), _present(ranks), _ideal(ranks), _staged(ranks), _clocks(ranks), *ranks.dumps
    return [line for line in said if line]


def _present(ranks: document.Ranks) -> str:
    parts: list[str] = []
    if ranks.missing:
        verb = "is" if ranks.missing.isdigit() else "are"
        parts.append(f"of {ranks.expected} ranks, {_ranks(ranks.missing)} {verb} missing")
    if ranks.damaged:
        parts.append(f"the recording of {_ranks(ranks.damaged)} is damaged")
    if ranks.incomparable:
        parts.append(f"no collective of {_ranks(ranks.incomparable)} ends with another rank's")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}: what was not recorded is not guessed." if parts else ""


def _ranks(listed: str) -> str:
    return f"rank {listed}" if listed.isdigit() else f"ranks {listed}"


def _culprit(found: document.RankVerdict) -> str:
    listed = names.shorten(found.listed, LISTED)
    hosts = found.hosts if len(found.hosts) <= HOSTS else [f"{len(found.hosts)} hosts"]
    on = f"host{'' if len(found.hosts) == 1 else 's'} {', '.join(hosts)}" if hosts else ""
    devices = f"GPU{'' if len(found.devices) == 1 else 's'} {', '.join(map(str, found.devices))}"
    if found.scope == "host":
        return f"Host {hosts[0]} ({_ranks(listed)})"
    if found.scope == "stage":
        return f"Stage {found.stage} of the pipeline ({_ranks(listed)}{f', {on}' if on else ''})"
    if found.status == "link":
        return f"The link of {_ranks(listed)}{f' ({on})' if on else ''}"
    if len(found.hosts) > 1 or len(found.ranks) > HOSTS:
        return f"Ranks {listed}{f' ({on})' if on else ''}"
    where = " of ".join(one for one in (devices if found.devices else "", on) if one)
    return _ranks(listed).capitalize() + (f" ({where})" if where else "")


def _cost(found: document.RankVerdict) -> str:
    verb = "make" if found.scope == "ranks" else "makes"
    what = "the recording" if found.steps is None else "each step"
    if found.cost_us is None or found.cost_share is None:
        return f"{verb} {what} longer"
    return f"{verb} {what} {numbers.time(found.cost_us)} longer, {numbers.percent(found.cost_share)} of it"


# By the cause: what to look at; {gpu} chooses the device there, where its number is known.
LOOK = {
    "clocks": [
        ("nvidia-smi -q {gpu}-d PERFORMANCE,CLOCK,TEMPERATURE,POWER", "why clocks are reduced"),
        ("dcgmi dmon {gpu}-e 100,112,150,155,230", "clock, reasons to reduce it, temperature, power, Xid"),
    ],
    "link": [
        ("nvidia-smi nvlink {gpu}-e", "errors of NVLink; between hosts: counters of the network card"),
        ("dcgmi dmon {gpu}-e 202,409", "repeated transfers of PCIe, checksum errors of NVLink"),
    ],
    "data loader": [("iostat -x 1", "whether its disk or network file system is slower")],
    "host": [("mpstat -P ALL 1", "whether other programs take its CPU, or its cores' clocks are reduced")],
}
# Causes that lie in the machine: another run there would be as slow.
OF_THE_HOST = {"clocks", "link", "host", "data loader"}


def next_commands(found: document.RankVerdict) -> list[tuple[str, str]]:
    """Commands to run next about those that make the run slower, and what each shows."""
    if found.status not in ("straggler", "link"):
        return []
    items: list[tuple[str, str]] = []
    slow = found.rank if found.rank is not None else found.ranks[0]
    if found.path and found.peer_path:
        command = f"kinetoscope diff {quote(found.peer_path)} {quote(found.path)}"
        items.append((command, f"what rank {slow} does that a rank like it does not"))
    if found.path:
        items.append((f"kinetoscope report {quote(found.path)}", f"all about rank {slow}"))
    if found.path and found.peer_path:
        items.append((f"kinetoscope report {quote(found.peer_path)}", "the same of that other rank"))
    on = f"on {found.hosts[0]}: " if found.hosts else "there: "
    of_one = found.scope != "host" and len(found.hosts) <= 1
    gpu = f"-i {','.join(map(str, found.devices))} " if found.devices and of_one else ""
    items += [(command.format(gpu=gpu), on + shows) for command, shows in LOOK.get(found.cause or "", ())]
    if found.cause in OF_THE_HOST:
        for host in found.hosts[:1]:
            command = f"scontrol update nodename={quote(host)} state=drain reason=slow"
            items.append((command, f"if it stays so; in Kubernetes: kubectl cordon {quote(host)}"))
    return items


def advice(ranks: document.Ranks) -> Iterable[Block]:
    """The next commands, however many ranks there are."""
    if items := next_commands(ranks.verdict):
        yield Heading("Next", level=3)
        yield Commands(tuple(items))


def _ideal(ranks: document.Ranks) -> str:
    found = ranks.ideal
    if found is None or found.slowdown < 1.005:
        return ""
    if abs(found.error) > ROUGH:
        return (
            f"What the run would take without stragglers is not known well: replayed as it was recorded, "
            f"its time is off by {numbers.change(found.error)}."
        )
    share = 1 - 1 / found.slowdown
    # Those that are named are most of it, and what they cost stands above.
    if ranks.verdict.cost_share is not None and share < MORE * ranks.verdict.cost_share:
        error = numbers.change(found.error)
        return f"The cost is by a replay of the run, whose own time is off by {error}."
    what = "the first collective and the last" if found.steps is None else "the first pass and the last"
    ever = ", by chance either" if ranks.verdict.status == "even" else ""
    return (
        f"If no rank were ever late{ever}, {numbers.time(found.recorded_us)} between {what} would be "
        f"{numbers.time(found.recorded_us / found.slowdown)}, {numbers.percent(share)} less "
        f"(the replay of the run is off by {numbers.change(found.error)})."
    )


def _staged(ranks: document.Ranks) -> str:
    found = ranks.ideal
    # What a named stage, or a rank of one, costs stands above.
    if found is None or ranks.verdict.stage is not None or not (found.steps or found.why):
        return ""
    if found.why:
        return f"By stage and operation it is unknown: {found.why}."
    stage, most = max(found.by_stage.items(), key=lambda one: one[1])
    number = list(found.by_stage).index(stage)
    operation, longest = max(found.by_operation.items(), key=lambda one: one[1])
    if max(most, longest) < NOTABLE:
        return "No stage and no sort of operation makes its steps longer than the others do."
    return (
        f"Stage {number} ({_ranks(stage)}) alone makes the pipeline {most:.2f} times as long; "
        f"of operations, {OPERATIONS.get(operation, operation)} do most, {longest:.2f} times."
    )


def _clocks(ranks: document.Ranks) -> str:
    known = [row.residual_us for row in ranks.clocks if row.residual_us is not None]
    if not known:
        return ""
    apart = max(abs(row.ahead_us) for row in ranks.clocks)
    drift = max(abs(row.drift_ppm) for row in ranks.clocks)
    differ = f"Clocks are up to {numbers.time(apart)} apart" if apart >= 1 else "Clocks agree"
    drifts = f" and drift by up to {drift:.0f} ppm" if drift >= 1 else ""
    return f"{differ}{drifts}; aligned, collectives end within {numbers.time(max(known))} of each other."


def tables(ranks: document.Ranks, most: int = ROWS) -> Iterable[Block]:
    """The tables with their titles, each of at most so many rows (0: all)."""
    if ranks.late:
        yield Heading("Why ranks were late", "what the others waited for it", 3)
        yield table(
            ranks.late,
            field("rank", "text", lambda row: "?" if row.rank is None else str(row.rank)),
            field("cause", "text", lambda row: row.cause or "unknown"),
            field("", "words", lambda row: seen(row.cause, ""), only="page"),
            field("waited", "time", "waited_us"),
            field("collectives", "count", "meetings"),
            field("", "name", "detail"),
            most=most,
        )
    yield from _collectives("Collectives", ranks.collectives, most)
    yield from _collectives("Collectives, inspected", ranks.inspected, most)
    if ranks.volumes:
        yield Heading("All-to-alls", "bytes from one rank to another, all calls; the pairs with most", 3)
        yield table(
            ranks.volumes,
            field("from rank", "number", lambda row: str(row.sender)),
            field("to rank", "number", lambda row: str(row.receiver)),
            field("moved", "bytes", "bytes"),
            field("calls", "count", "calls"),
            most=min(most or PAIRS, PAIRS),
        )
    yield from _slowdowns(ranks)
    if ranks.count > 2:
        yield Heading("Over ranks", "shares of each rank's window, and whose the extremes are", 3)
        yield table(
            ranks.spread,
            field("", "text", "what"),
            field("least", "share", lambda row: (row.least, Text(f" (rank {row.least_rank})", "dim"))),
            field("10 %", "share", "p10"),
            field("median", "share", "median"),
            field("90 %", "share", "p90"),
            field("most", "share", lambda row: (row.most, Text(f" (rank {row.most_rank})", "dim"))),
            field("from the least to the most", "bar", partial(_range_bar, ranks.spread), only="page"),
        )
    if len(ranks.alike) > 1 and not ranks.ranks:
        yield Heading("Groups of ranks", "that compute equally long; medians of their windows", 3)
        yield table(
            ranks.alike,
            field("ranks", "name", "ranks"),
            field("how many", "count", "count"),
            field("compute", "share", "compute"),
            field("exposed waiting", "share", "exposed_waiting"),
            field("exposed transfer", "share", "exposed_transfer"),
            field("idle", "share", "idle"),
            field("others waited", "time", "blamed_us", only="page"),
            most=most,
        )
    yield from _places(ranks)
    if shown := ranks.ranks or ranks.worst:
        title = "Ranks" if ranks.ranks else "Ranks that others wait for most"
        yield Heading(title, "of each rank's own window", 3)
        yield table(
            shown,
            field("rank", "text", lambda row: (str(row.rank), Text(f" {row.host}", "dim"))),
            field("busy", "share", lambda row: row.busy_us / max(row.window_us, 1e-9)),
            field("computes", "time", "compute_us", only="page"),
            field("waits", "time", "waiting_us"),
            field("exposed", "time", "exposed_waiting_us"),
            field("transfer exposed", "time", "exposed_transfer_us"),
            field("waits in sends and receives", "time", lambda row: row.bubble_us or None, only="page"),
            field("others waited", "time", "blamed_us"),
            field("because", "words", _because),
        )
    if len(ranks.clocks) > 1:
        basis = "measured by when collectives end; no difference below the residual is certain"
        yield Heading("Clocks", basis, 3)
        yield table(
            ranks.clocks,
            field("ranks", "name", "ranks"),
            field("host", "text", "host"),
            field("ahead", "change", "ahead_us"),
            field("drifts", "number", lambda row: f"{row.drift_ppm:.1f} ppm"),
            field("residual", "time", "residual_us"),
            most=most,
        )


def _places(ranks: document.Ranks) -> Iterable[Block]:
    usual = ranks.paces.own_us
    each = [(sort, row) for sort, rows in ranks.paces.places.items() for row in rows[:AMONG]]
    if not each:
        return
    yield Heading("Ranks by place", "own time of a step, without waiting, against the median of all ranks", 3)
    yield table(
        each,
        field("", "text", lambda one: names.shorten(one[0], 24)),
        field("place", "text", lambda one: names.shorten(one[1].place, 24)),
        field("ranks", "name", lambda one: names.shorten(one[1].ranks, LISTED)),
        field("own time", "text", lambda one: numbers.change(one[1].longer(usual))),
        field("others waited", "time", lambda one: sum(one[1].blamed_us)),
    )


def _range_bar(rows: Sequence[document.SpreadRow], row: document.SpreadRow) -> tuple[Segment, ...]:
    whole = max((one.most for one in rows), default=0.0) or 1.0
    edges = (0.0, row.least, row.p10, row.p90, row.most)
    eight = f"{numbers.percent(row.p10)} to {numbers.percent(row.p90)}: eight in ten ranks"
    looks = (("#00000000", ""), (palette.OTHER, "the least"), (palette.USES[palette.COMPUTE], eight),
             (palette.OTHER, "the most"))  # fmt: skip
    return tuple(
        Segment((high - low) / whole, colour, label=label)
        for (low, high), (colour, label) in zip(pairwise(edges), looks, strict=True)
    )


def _because(row: document.RankRow) -> Cell:
    notes = [names.shorten(row.detail, 60), *row.damages]
    return (row.cause or "", *(Text(f" {note}", "dim") for note in notes if note))


def _slowdowns(ranks: document.Ranks) -> Iterable[Block]:
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
    yield Heading("Pipeline", "how many times as long, were all else as its peers have it at the mean", 3)
    yield table(
        (*stages[:STAGES], *among, *each),
        field("stage, data-parallel worker or operation", "text", lambda row: names.shorten(row[0], 40)),
        field("slowdown", "number", lambda row: f"{row[1]:.3f}"),
    )


def _collectives(title: str, listed: Sequence[document.CollectiveRow], most: int) -> Iterable[Block]:
    if not listed:
        return
    yield Heading(title, "transfer and skew at the median; bandwidths as nccl-tests count them", 3)
    yield table(
        listed,
        field("group", "text", lambda row: _group(row.group, row.group_size, row.groups)),
        field("kind", "text", "kind"),
        field("size", "bytes", _size),
        field("times", "count", _times),
        field("transfer", "time", "transfer_us"),
        field("waiting", "time", "waiting_us"),
        field("skew", "time", "skew_median_us"),
        field("largest skew", "time", "skew_max_us", only="page"),
        field("last", "number", _last),
        field("GB/s", "number", lambda row: _rate(row.algorithm_gbps)),
        field("bus", "number", _bus),
        field("hosts", "number", lambda row: None if row.hosts is None else str(row.hosts), only="page"),
        field("slowest group's bus", "number", _slowest, only="page"),
        most=most,
    )


def _last(row: document.CollectiveRow) -> Cell:
    if row.last_rank is None:
        return None
    return str(row.last_rank), Text(f" ({row.last_times} of {row.told})", "dim")


def _times(row: document.CollectiveRow) -> Cell:
    lack = f" ({numbers.count(row.incomplete)} lack ranks)"
    return (row.meetings, Text(lack, "dim")) if row.incomplete else row.meetings


def _group(name: str, size: int | None, groups: int) -> str:
    text = names.shorten(name, 24)
    members = "" if size is None else f" of {size}"
    return f"{text}{members}" if groups == 1 else f"{text}{members}, {groups} ×"


def _size(row: document.CollectiveRow) -> Cell:
    """Bytes; of uneven ones the most loaded rank's, and how many times the mean that is."""
    if row.bytes is None or row.uneven is None:
        return row.bytes
    return row.bytes, Text(f", {row.uneven:.1f} × the mean (rank {row.heaviest_rank})", "dim")


def _bus(row: document.CollectiveRow) -> Cell:
    if row.share_of_link is None:
        return _rate(row.bus_gbps)
    return _rate(row.bus_gbps), Text(f" ({numbers.percent(row.share_of_link)} of the link)", "dim")


def _slowest(row: document.CollectiveRow) -> Cell:
    if row.slowest_bus_gbps is None or row.slowest_ranks is None:
        return None
    who = f"{_ranks(names.shorten(row.slowest_ranks, LISTED))}; usually {_rate(row.usual_bus_gbps)}"
    return _rate(row.slowest_bus_gbps), Text(f" ({who})", "dim")


def _rate(gbps: float | None) -> str:
    return "–" if gbps is None else numbers.rate(gbps)


def page(ranks: document.Ranks) -> list[Block]:
    """The verdict as a title, the other sentences, and whole tables."""
    first, *others = lines(ranks)
    return [Heading(first, level=1), *map(Prose, others), *advice(ranks), *tables(ranks, 0)]


def section(report: document.Report, most: int, *, whole: bool) -> Iterable[Block]:
    """The report's section: who waits for whom; ``whole``: with all sentences and tables."""
    if report.ranks is None:
        return
    yield Heading("Ranks", "who waits for whom in collectives")
    sentences = lines(report.ranks)
    yield from (Prose(sentence) for sentence in (sentences if whole else sentences[:most]))
    if whole:
        yield from advice(report.ranks)
        yield from tables(report.ranks, most)


def view(listing: document.RanksListing, page: Callable[[], str]) -> View:
    """Many ranks, of which nothing but this comparison was kept, in every format."""
    return View(document=lambda: listing, blocks=partial(blocks, listing), page=page)


def blocks(listing: document.RanksListing, extent: Extent = "whole") -> list[Block]:
    """The verdict, and tables whose length does not grow with the ranks."""
    heading = " · ".join(title(listing))
    shown: list[Block] = [
        Only("page", Heading(heading, level=1)),
        Only("screen", line(heading, style="dim")),
        Line(),
    ]
    # What was left out comes first: all that follows is of the rest.
    unread = listing.ranks.unread
    shown += [line(Text(names.shorten(problem, 240), "yellow")) for problem in unread[:UNREAD]]
    if len(unread) > UNREAD:
        more = f"{len(unread) - UNREAD:,} more were left out; -o FILE.json lists them"
        shown.append(line(Text(more, "yellow")))
    for at, sentence in enumerate(lines(listing.ranks)):
        shown.append(Prose(sentence, "" if at else "bold"))
    shown += [*advice(listing.ranks), *what_to_change(listing, FINDINGS), *served(listing, ROWS, whole=False)]
    return [*shown, *tables(listing.ranks)]


def served(listing: document.RanksListing, most: int, *, whole: bool) -> Iterable[Block]:
    """The steps of the server that the ranks are of, by the one whose trace was looked at."""
    return serving.section(listing.serving, most, whole=whole, of_rank=listing.findings_rank)


def what_to_change(listing: document.RanksListing, most: int) -> Iterable[Block]:
    """Findings, at most so many (0: all): of the comparison, then of the rank whose trace was looked at."""
    found = listing.findings
    if found is None or (most and not found.findings):
        return
    said: list[str] = []
    if any(row.of_ranks for row in found.findings):
        said.append("by the comparison of all ranks")
    if not all(row.of_ranks for row in found.findings):
        others = "the others " if said else ""
        said.append(f"{others}of rank {listing.findings_rank}, by its trace alone: likely of all ranks")
    yield Heading("Findings", "; ".join(said), 3)
    yield from findings.listing(found, most)
