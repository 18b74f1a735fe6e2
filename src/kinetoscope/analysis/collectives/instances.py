"""Each collective over its ranks: who came when, who waited, how fast data moved against collectives like it
and against the link, and how much all-to-alls moved between each two ranks."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kinetoscope.analysis.collectives.recorded import BUS, hosts_of
from kinetoscope.analysis.collectives.waiting import collectives_of
from kinetoscope.hardware.links import link
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.schema import TEXT, Schema, TableColumn

# Equal for collectives that do the same: ``sort`` (what their process groups are called), and so on.
LIKE = ["sort", "size", "kind", "size_if_even", "is_uneven", "hosts"]

COLUMNS: Schema = {
    "rank": TableColumn(pl.Int32, "the rank whose part in the collective this is"),
    "instance": TableColumn(pl.Int64, "one number for a collective on all ranks; below zero: of one alone"),
    "id": TableColumn(pl.UInt32, "row of its kernel in this rank's device_events"),
    "kind": TableColumn(TEXT, "all-reduce, all-gather, reduce-scatter, all-to-all, …"),
    "group": TableColumn(TEXT, "its process group, with the first of the group's ranks"),
    "sort": TableColumn(TEXT, "what process groups of this sort are called"),
    "size": TableColumn(pl.Int64, "how many ranks the group has"),
    "hosts": TableColumn(pl.UInt32, "on how many hosts they run; null where a host is not known"),
    "step": TableColumn(TEXT, "name of the step it was launched in"),
    "bytes": TableColumn(pl.Int64, "of this rank's larger side"),
    "start_ns": TableColumn(pl.Int64, "when this rank's kernel began, on its own clock"),
    "end_ns": TableColumn(pl.Int64, "when it ended, on its own clock"),
    "arrived_ns": TableColumn(pl.Int64, "its begin on the first rank's clock; null where not known"),
    "left_ns": TableColumn(pl.Int64, "its end on the first rank's clock"),
    "waiting_ns": TableColumn(pl.Int64, "how long it waited for other ranks"),
    "exposed_waiting_ns": TableColumn(pl.Int64, "of that, while its device did nothing else"),
    "transfer_ns": TableColumn(pl.Int64, "how long the data took once all had come"),
    "exposed_transfer_ns": TableColumn(pl.Int64, "of that, while its device did nothing else"),
    "last_rank": TableColumn(pl.Int32, "the rank that came last; null where clocks do not tell"),
    "skew_ns": TableColumn(pl.Int64, "from the first rank's arrival to the last one's"),
    "complete": TableColumn(pl.Boolean, "all ranks of the group are in it"),
    "bus_gbps": TableColumn(pl.Float64, "bus bandwidth as nccl-tests count it, GB/s, of the transfer"),
    "usual_bus_gbps": TableColumn(pl.Float64, "the median of collectives like it, in all groups of its sort"),
    "share_of_link": TableColumn(pl.Float64, "bus bandwidth over the peak of a host's links, one way"),
}  # fmt: skip


def of_run(run: LoadedRun) -> pl.DataFrame:
    devices = {trace.rank: trace.devices[0].name if trace.devices else "" for trace in run.traces}
    return by_rank(collectives_of(run).table, hosts_of(run), devices)


def by_rank(table: pl.DataFrame, hosts: Mapping[int, str], devices: Mapping[int, str]) -> pl.DataFrame:
    """One row per rank and collective of ``waiting.waited``, of ``COLUMNS``, by instance and rank; ``hosts``
    and ``devices`` say where each rank ran and on what (empty: not known)."""
    table = _numbered(table)
    each = instances(table, hosts, devices).select(
        "instance", "sort", "hosts", "bus_gbps", "usual_bus_gbps", "share_of_link"
    )
    clock = pl.col("clock_ns")
    return (
        table.join(each, on="instance", how="left", maintain_order="left")
        .with_columns(arrived_ns=pl.col("start_ns") - clock, left_ns=pl.col("end_ns") - clock)
        .sort("instance", "rank")
        .select(pl.col(name).cast(column.dtype) for name, column in COLUMNS.items())
    )


_ASKED = ["rank", "instance", "kind", "group", "group_name", "size", "bytes", "transfer_ns", "waiting_ns",
          "skew_ns", "last_rank", "complete"]  # fmt: skip


def instances(table: pl.DataFrame, hosts: Mapping[int, str], devices: Mapping[int, str]) -> pl.DataFrame:
    """One row per collective, by ``instance``: ``LIKE``, ``group``, ``ranks``, ``bytes`` (of the most loaded
    rank), ``uneven`` (of an all-to-all: that over the mean), ``heaviest_rank``, ``transfer_ns``,
    ``waiting_ns`` (of all ranks), ``skew_ns``, ``last_rank``, ``incomplete``, ``algorithm_gbps``,
    ``bus_gbps``, ``usual_bus_gbps`` and ``share_of_link``."""
    ranks = table["rank"].unique().sort()
    known = ((rank, hosts.get(rank) or None, devices.get(rank, "")) for rank in ranks)
    places = pl.DataFrame(
        [(rank, host, link(device) if host else None) for rank, host, device in known],
        {"rank": pl.Int32, "host": pl.String, "link": pl.Float64},
        orient="row",
    )
    is_uneven = (pl.col("bytes").n_unique() > 1).over("instance") & (pl.col("kind") == "all-to-all")
    largest = pl.col("bytes").max()
    each = (
        _numbered(table.select(_ASKED))  # a join copies all that it is given
        .join(places, on="rank", how="left", maintain_order="left")
        .with_columns(sort=pl.coalesce("group_name", "group"), is_uneven=is_uneven)
        .with_columns(size_if_even=pl.when("is_uneven").then(None).otherwise("bytes"))
        .group_by("instance")
        .agg(
            pl.col("sort", "size", "kind", "size_if_even", "is_uneven", "group").first(),
            pl.col("rank").sort().alias("ranks"),
            pl.when(pl.col("host").null_count() == 0).then(pl.col("host").n_unique()).alias("hosts"),
            largest.alias("bytes"),
            pl.when(pl.col("is_uneven").first()).then(largest / pl.col("bytes").mean()).alias("uneven"),
            pl.when(pl.col("is_uneven").first())
            .then(pl.col("rank").sort_by("bytes", "rank").last())
            .alias("heaviest_rank"),
            pl.when(pl.col("link").n_unique() == 1).then(pl.col("link").first()).alias("link"),
            pl.col("transfer_ns").min(),
            pl.col("waiting_ns").sum(),
            pl.col("skew_ns").max(),
            pl.col("last_rank").min(),
            incomplete=~pl.col("complete").first().fill_null(False),
        )
        .sort("instance")
        .with_columns(algorithm_gbps=pl.col("bytes") / pl.col("transfer_ns").clip(1))
    )
    members, factor = (
        pl.col("size").cast(pl.Float64),
        pl.col("kind").replace_strict(BUS, return_dtype=pl.Float64),
    )
    bus = pl.when(factor > 0).then(factor * (members - 1) / members).otherwise(1.0)
    is_link = pl.col("hosts") == 1
    return each.with_columns(bus_gbps=pl.col("algorithm_gbps") * bus).with_columns(
        usual_bus_gbps=pl.col("bus_gbps").quantile(0.5, "higher").over(LIKE),
        share_of_link=pl.when(is_link).then(pl.col("bus_gbps") * 1e9 / pl.col("link")),
    )


def volumes(table: pl.DataFrame) -> pl.DataFrame:
    """``sender``, ``receiver``, ``bytes`` and ``calls``: what all-to-alls moved between each two ranks, the
    most first. Of complete collectives, by the sizes that their senders recorded."""
    known = table.filter(pl.col("sent").is_not_null(), "complete")
    ranks = known.group_by("instance").agg(receiver=pl.col("rank").sort())
    pairs = known.select("instance", "sent", sender="rank").join(ranks, on="instance")
    pairs = pairs.filter(pl.col("sent").list.len() == pl.col("receiver").list.len())
    return (
        pairs.explode("sent", "receiver")
        .filter(pl.col("sender") != pl.col("receiver"))
        .group_by("sender", "receiver")
        .agg(bytes=pl.col("sent").sum(), calls=pl.len())
        .sort("bytes", "sender", "receiver", descending=[True, False, False])
    )


def _numbered(table: pl.DataFrame) -> pl.DataFrame:
    """Collectives that are no other rank's have numbers below zero, each its own."""
    alone = -1 - pl.int_range(pl.len())
    return table.with_columns(instance=pl.coalesce(pl.col("instance").cast(pl.Int64), alone))
