"""Ranks compared, as rows of the document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl
from msgspec.structs import replace

from kinetoscope import __version__, document
from kinetoscope.analysis.collectives.instances import LIKE, instances, volumes
from kinetoscope.analysis.collectives.logs import INSPECTED, Hang, inspected
from kinetoscope.analysis.collectives.recorded import PAIR, ranges
from kinetoscope.analysis.ranks.comparison import RankComparison, comparison
from kinetoscope.analysis.ranks.parts import RankFacts
from kinetoscope.analysis.ranks.step_times import paces, set_apart
from kinetoscope.analysis.replay.ranks import verdict_as_it_runs
from kinetoscope.analysis.serving.table import serving
from kinetoscope.document.collect.rows import rows
from kinetoscope.errors import InputError
from kinetoscope.sources.run import LoadedRun, load

FEW = 16  # ranks of which each has a row unasked
WORST, COLLECTIVES, INSTANCES, SIMILAR = 8, 24, 8, 12
PAIRS = 4096  # of ranks, between which all-to-alls moved most
OF_RANKS = ("straggler",)  # rules by which one trace tells of the others
ALIKE_WITHIN = 0.05  # of the compute time


def ranks(run: LoadedRun) -> document.Ranks | None:
    """The ranks of a run in memory; None where there is one rank alone: nothing is known to be missing."""
    if len(run.traces) < 2:
        return None
    found = replace(comparison(run), verdict=verdict_as_it_runs(run))
    return compared(found, every=len(run.traces) <= FEW)


def listing(
    found: RankComparison,
    *,
    every: bool,  # with a row for each rank
    hangs: Sequence[Hang],  # what flight-recorder dumps say
    unread: Sequence[str],  # what could not be read, and why
    logs: Sequence[pl.DataFrame] = (),  # of NCCL's Inspector, one a process
) -> document.RanksListing:
    """The comparison alone, of many ranks."""
    from kinetoscope.document.collect.findings import compared as findings_of

    facts = [part.facts for part in found.parts]
    typical = _typical(facts, found.verdict)
    unit = "step" if any(len(part.steps) for part in found.parts) else "recording"
    every = every or len(facts) <= FEW
    shown, first = compared(found, every=every, hangs=hangs, unread=unread), findings_of(found)
    del found  # its tables may go before a trace is read
    of_one, served = _of_one(typical, unit)
    return document.RanksListing(
        findings=_findings(first, of_one) if facts else None,
        serving=served,
        findings_rank=None if typical is None else typical.rank,
        kinetoscope=__version__,
        events=sum(one.events for one in facts),
        bytes=sum(one.bytes for one in facts),
        devices=dict(Counter(one.device for one in facts if one.device)),
        ranks=replace(shown, inspected=_inspected(logs)),
    )


def _typical(facts: Sequence[RankFacts], verdict: document.RankVerdict) -> RankFacts | None:
    """A rank whose trace is here, and that is not one of the slow ones."""
    others = [one for one in facts if one.rank not in verdict.ranks and Path(one.path).is_file()]
    peers = [one for one in others if one.path == verdict.peer_path] or others
    return sorted(peers, key=lambda one: (one.window_ns, one.rank))[len(peers) // 2] if peers else None


def _of_one(typical: RankFacts | None, unit: str) -> tuple[document.FindingsListing, document.Serving | None]:
    from kinetoscope.document.collect.findings import listing

    nothing = document.FindingsListing(findings=[], unit=unit)
    if typical is None:
        return nothing, None
    try:
        run = load(typical.path)
    except InputError as error:
        return replace(nothing, unread=[f"{error.where}: {error.what}"]), None
    return listing(run), serving(run)


def _findings(first: list[document.FindingRow], of_one: document.FindingsListing) -> document.FindingsListing:
    """Findings of the comparison, then of one rank's trace: of all ranks more is known than of one."""
    rules = {one.rule for one in first}
    # What the trace alone tells of waiting was taken off what else it finds, and stands first or nowhere.
    own = [
        replace(one, also=None, above=[]) if one.also in OF_RANKS and one.also not in rules else one
        for one in of_one.findings
        if one.rule not in {*OF_RANKS, *rules}
    ]
    return replace(of_one, findings=[*first, *own])


def compared(
    found: RankComparison, *, every: bool, hangs: Sequence[Hang] = (), unread: Sequence[str] = ()
) -> document.Ranks:
    each = _each(found)
    hosts = {part.facts.rank: part.facts.host for part in found.parts}
    listed = _rank_rows(found, each)
    worst = sorted(listed, key=lambda one: (-one.blamed_us, one.rank))
    most = [one.rank for one in worst[:WORST] if one.blamed_us > 0]
    similar = _groups(each)
    known, met = set(found.paired.clocks), _instances(found)
    meets = set(found.table["rank"].unique())
    return document.Ranks(
        here=ranges(each["rank"]),
        count=len(each),
        expected=len(each) + len(found.missing) if found.missing else None,
        missing=ranges(found.missing),
        damaged=ranges(part.facts.rank for part in found.parts if part.facts.damages),
        incomparable=ranges(meets - known),
        verdict=found.verdict,
        clocks=_clocks(found, hosts),
        collectives=_collectives(found, hosts),
        volumes=rows(volumes(found.table).head(PAIRS), document.VolumeRow),
        late=_late(found),
        worst=[one for one in worst[:WORST] if one.blamed_us > 0],
        spread=_spread(each),
        alike=rows(
            similar.head(SIMILAR),
            document.SimilarRanksRow,
            ranks=[ranges(one) for one in similar["rank"][:SIMILAR]],
        ),
        ideal=found.ideal,
        longest=met[0] if met else None,
        lateness=_lateness(found, most),
        paces=paces(
            found,
            [(one,) for one in each["rank"]]
            if every
            else set_apart(similar["rank"].to_list(), most, SIMILAR),
        ),
        meetings=met,
        ranks=listed if every else [],
        dumps=[_sentence(hang) for hang in hangs],
        unread=list(unread),
    )


def _sentence(hang: Hang) -> str:
    parts = [f"rank {ranges(hang.missing)} has not issued it"] if hang.missing else []
    parts += [f"rank {ranges(ranks)} issued {other} instead" for other, ranks in hang.mismatched.items()]
    parts += [f"of rank {ranges(hang.silent)} there is no dump"] if hang.silent else []
    why = "; ".join(parts) or "all have issued it"
    return (
        f"Group {hang.group} stands in its collective {hang.number} ({hang.operation} {hang.sizes}), "
        f"in which rank {ranges(hang.waiting)} waits: {why}."
    )


def _each(found: RankComparison) -> pl.DataFrame:
    """One row a rank, in ns; ``blamed_ns`` is what all others waited for it."""
    facts = [part.facts for part in found.parts]
    table = pl.DataFrame(
        [(f.rank, f.host, f.window_ns, f.busy_ns, f.compute_ns + f.copy_ns, f.compute_ns) for f in facts],
        schema={"rank": pl.Int32, "host": pl.String, "window_ns": pl.Int64, "busy_ns": pl.Int64,
                "worked_ns": pl.Int64, "compute_ns": pl.Int64},
        orient="row",
    )  # fmt: skip
    waited = found.table.group_by("rank").agg(
        pl.col("waiting_ns", "exposed_waiting_ns", "exposed_transfer_ns").sum(),
        bubble_ns=pl.col("waiting_ns").filter(pl.col("semantics") == PAIR).sum(),
    )
    caused = (
        found.attributed.drop_nulls("culprit").group_by(rank="culprit").agg(blamed_ns=pl.sum("waited_ns"))
    )
    table = table.join(waited, on="rank", how="left").join(caused, on="rank", how="left")
    return table.with_columns(pl.col(pl.Int64).fill_null(0)).sort("rank")


def _rank_rows(found: RankComparison, each: pl.DataFrame) -> list[document.RankRow]:
    causes = (
        found.attributed.drop_nulls("culprit").group_by("culprit", "cause", "detail").agg(pl.sum("waited_ns"))
    ).sort("waited_ns", "cause", "detail")
    why = {rank: (cause, detail) for rank, cause, detail, _ in causes.iter_rows()}
    order = each["rank"].to_list()
    known = [why.get(rank, (None, "")) for rank in order]
    damages = {part.facts.rank: list(part.facts.damages) for part in found.parts}
    return rows(
        each,
        document.RankRow,
        cause=[cause for cause, _ in known],
        detail=[detail for _, detail in known],
        damages=[damages[rank] for rank in order],
    )


def _clocks(found: RankComparison, hosts: Mapping[int, str]) -> list[document.ClockRow]:
    """One row a host, or a rank where hosts are not known; clocks that agree are one row."""
    groups: dict[tuple[str, float], list[int]] = {}
    for rank, clock in sorted(found.paired.clocks.items()):
        known = (group for group in groups if group[0] == hosts.get(rank, ""))
        finest = max(1000.0, found.paired.residuals.get(rank) or 0.0)
        same = (group for group in known if abs(group[1] - clock.ahead_ns) <= finest)
        groups.setdefault(next(same, (hosts.get(rank, ""), clock.ahead_ns)), []).append(rank)
    made: list[document.ClockRow] = []
    for (host, _), members in groups.items():
        clocks = [found.paired.clocks[rank] for rank in members]
        known = [left for rank in members if (left := found.paired.residuals.get(rank)) is not None]
        made.append(
            document.ClockRow(
                ranks=ranges(members),
                host=host,
                ahead_us=sum(clock.ahead_ns for clock in clocks) / len(clocks) / 1000,
                drift_ppm=sum(clock.drift for clock in clocks) / len(clocks) * 1e6,
                residual_us=max(known) / 1000 if known else None,
            )
        )
    return made


def _collectives(found: RankComparison, hosts: Mapping[int, str]) -> list[document.CollectiveRow]:
    devices = {part.facts.rank: part.facts.device for part in found.parts}
    each = instances(found.table, hosts, devices)
    groups = each.group_by(*LIKE, "group").agg(pl.median("bus_gbps"), pl.first("ranks"), count=pl.len())
    slowest = (
        groups.filter(pl.len().over(LIKE) > 1)
        .with_columns(usual_bus_gbps=pl.col("bus_gbps").quantile(0.5, "higher").over(LIKE))
        .sort("bus_gbps", pl.col("ranks").list.min(), nulls_last=True)
        .unique(LIKE, keep="first", maintain_order=True)
        .select(*LIKE, "usual_bus_gbps", slowest_ranks="ranks", slowest_bus_gbps="bus_gbps")
    )
    latest = pl.col("last_rank").drop_nulls().mode().min()
    table = (
        each.group_by(LIKE)
        .agg(
            pl.median("bytes").cast(pl.Int64),
            pl.median("uneven"),
            pl.col("heaviest_rank").drop_nulls().mode().min(),
            pl.n_unique("group").alias("groups"),
            pl.len().alias("meetings"),
            pl.sum("incomplete"),
            pl.median("transfer_ns"),
            pl.sum("waiting_ns"),
            pl.median("skew_ns").alias("skew_median_ns"),
            pl.max("skew_ns").alias("skew_max_ns"),
            latest,
            last_times=(pl.col("last_rank") == latest).sum(),
            told=pl.col("last_rank").count(),
            share=(pl.col("share_of_link") / pl.col("bus_gbps")).min(),
            link_is_known=pl.col("share_of_link").null_count() == 0,
            bus=(pl.col("bus_gbps") / pl.col("algorithm_gbps")).first(),
        )
        .join(slowest, on=LIKE, how="left", nulls_equal=True, maintain_order="left")
        .sort("waiting_ns", "kind", "bytes", *LIKE, descending=[True, *[False] * 8], nulls_last=False)
        .head(COLLECTIVES)
        .with_columns(algorithm_gbps=pl.col("bytes") / pl.col("transfer_ns").clip(1))
        .with_columns(bus_gbps=pl.col("algorithm_gbps") * pl.col("bus"))
        .with_columns(share_of_link=pl.when("link_is_known").then(pl.col("bus_gbps") * pl.col("share")))
    )
    slow = [None if ranks is None else ranges(ranks) for ranks in table["slowest_ranks"]]
    renamed = {"group": "sort", "group_size": "size"}
    return rows(table, document.CollectiveRow, renamed, slowest_ranks=slow)


def _inspected(logs: Sequence[pl.DataFrame]) -> list[document.CollectiveRow]:
    table = inspected(pl.concat([pl.DataFrame(schema=INSPECTED), *logs])).head(COLLECTIVES)
    unknown = ("skew_median_ns", "skew_max_ns", "share_of_link", "uneven", "heaviest_rank", "hosts",
               "slowest_ranks", "slowest_bus_gbps", "usual_bus_gbps")  # fmt: skip
    table = table.with_columns(pl.lit(None).alias(name) for name in unknown)
    return rows(table, document.CollectiveRow, {"group_size": "size"})


def _late(found: RankComparison) -> list[document.LatenessRow]:
    table = (
        found.attributed.group_by(pl.col("culprit").alias("rank"), "cause")
        .agg(pl.col("detail").sort_by("waited_ns", "detail").last(), pl.sum("waited_ns"), meetings=pl.len())
        .sort("waited_ns", "rank", "cause", descending=[True, False, False])
        .head(COLLECTIVES)
    )
    return rows(table, document.LatenessRow)


def _spread(each: pl.DataFrame) -> list[document.SpreadRow]:
    made: list[document.SpreadRow] = []
    if each.is_empty():
        return made
    window = each["window_ns"].clip(1)
    for what in ("busy", "compute", "exposed waiting", "exposed transfer"):
        share = (each[f"{what.replace(' ', '_')}_ns"] / window).alias("share")
        table = each.select("rank").with_columns(share).sort("share", "rank")
        shares = table["share"]
        p10, median, p90 = (float(shares.quantile(q, "linear") or 0.0) for q in (0.1, 0.5, 0.9))
        made.append(
            document.SpreadRow(
                what=what, least=shares[0], p10=p10, median=median, p90=p90, most=shares[-1],
                least_rank=table["rank"][0], most_rank=table["rank"][-1],
            )
        )  # fmt: skip
    return made


def _groups(each: pl.DataFrame) -> pl.DataFrame:
    """Ranks by their compute time, cut wherever it jumps; the largest groups first. ``rank`` lists them."""
    table = each.with_columns(compute=pl.col("compute_ns") / pl.col("window_ns").clip(1)).sort(
        "compute", "rank"
    )
    jump = (pl.col("compute").diff() > ALIKE_WITHIN * pl.col("compute")).fill_null(False)
    table = table.with_columns(similar=jump.cum_sum())
    shares = [
        (pl.col(f"{name}_ns") / pl.col("window_ns").clip(1)).median().alias(name)
        for name in ("exposed_waiting", "exposed_transfer")
    ]
    groups = table.group_by("similar").agg(
        "rank",
        pl.len().alias("count"),
        pl.median("compute"),
        (1 - pl.col("busy_ns") / pl.col("window_ns").clip(1)).median().alias("idle"),
        pl.sum("blamed_ns"),
        *shares,
    )
    return groups.sort("count", "compute", pl.col("rank").list.min(), descending=[True, False, False])


def _instances(found: RankComparison) -> list[document.CollectiveInstance]:
    """The instance with most waiting, of each sort of collectives with a late rank."""
    waited = found.attributed.group_by("instance").agg(pl.sum("waited_ns"))
    sort = [pl.coalesce("group_name", "group").alias("sort"), "size", "kind", "bytes"]
    most = (
        found.table.select("instance", *sort)
        .unique("instance", keep="first", maintain_order=True)
        .join(waited, on="instance")
        .sort("waited_ns", "instance", descending=[True, False])
        .unique(["sort", "size", "kind", "bytes"], keep="first", maintain_order=True)
        .head(INSTANCES)["instance"]
    )
    return [_instance(found.table.filter(pl.col("instance") == one).sort("rank")) for one in most]


def _instance(own: pl.DataFrame) -> document.CollectiveInstance:
    arrived, left = own["start_ns"] - own["clock_ns"], own["end_ns"] - own["clock_ns"]
    first = arrived.min()
    kind, group, step, size = own.select("kind", "group", "step", "bytes").row(0)
    return document.CollectiveInstance(
        kind=kind, group=group, step=step, bytes=size, ranks=own["rank"].to_list(),
        arrived_us=((arrived - first) / 1000).to_list(), left_us=((left - first) / 1000).to_list(),
        waiting_us=(own["waiting_ns"] / 1000).to_list(),
    )  # fmt: skip


def _lateness(found: RankComparison, worst: Sequence[int]) -> document.Lateness:
    costs = found.attributed.group_by("culprit", "where").agg(pl.sum("waited_ns"))
    by = {(rank, step): waited / 1000 for rank, step, waited in costs.iter_rows()}
    steps = list(dict.fromkeys(name for part in found.parts for name in part.steps["name"]))
    return document.Lateness(
        ranks=list(worst),
        steps=steps,
        blamed_us=[[by.get((rank, step), 0.0) for step in steps] for rank in worst],
    )
