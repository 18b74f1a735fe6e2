"""What grows from step to step: more of one line's allocations at every boundary than at the one before."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.memory.peak import DeviceHistory, owner
from kinetoscope.trace.schema import whole

GROWTH = {
    "line": pl.String,
    "owner": pl.String,
    "role": pl.String,
    "bytes_per_step": pl.Int64,
    "bytes": pl.Int64,
    "names": pl.List(pl.String),
    "grows": pl.String,
    "stack": pl.Int32,
}
PLACES = r"\[\d+\]"  # in a list
STEPS = 3  # boundaries apart: what grows twice may yet be given back


def growth(history: DeviceHistory, boundaries_ns: tuple[int, ...]) -> pl.DataFrame:
    """The lines whose memory grows with each step, most first.

    Returns:
        ``line``, ``owner``, ``role``, ``bytes_per_step``, ``bytes`` (at the last boundary, of what the
        history saw begin), ``names`` (of variables that hold some of it,
        numbers in brackets as ``*``), ``grows`` (allocations: a new one
        is kept in each step; bytes: one is replaced by a larger one), ``stack``.
    """
    known = history.known.filter(
        pl.col("start").is_not_null(), ~pl.col("role").is_in(["parameter", "graph pool"])
    ).with_columns(owner().alias("owner"))
    marks = [ns // 1000 for ns in boundaries_ns]
    if len(marks) <= STEPS or known.is_empty():
        return pl.DataFrame(schema=GROWTH)
    ended = pl.col("end_us")
    there = [(pl.col("start_us") <= mark) & (ended.is_null() | (ended > mark)) for mark in marks]
    by_line = known.group_by("stack", "line", "owner").agg(
        pl.col("role").mode().first(),
        pl.col("name")
        .drop_nulls()
        .str.replace_all(PLACES, "[*]")
        .unique(maintain_order=True)
        .head(3)
        .alias("names"),
        *(pl.col("bytes").filter(at).sum().alias(f"bytes_{number}") for number, at in enumerate(there)),
        *(at.sum().cast(pl.Int64).alias(f"count_{number}") for number, at in enumerate(there)),
    )
    # The first boundary knows nothing of what the history did not see.
    more = pl.all_horizontal(_grows("bytes", len(marks)))
    last = len(marks) - 1
    return (
        by_line.filter(more)
        .select(
            "line", "owner", "role",
            ((pl.col(f"bytes_{last}") - pl.col("bytes_1")) // (last - 1)).alias("bytes_per_step"),
            pl.col(f"bytes_{last}").alias("bytes"),
            "names",
            pl.when(pl.all_horizontal(_grows("count", len(marks))))
            .then(pl.lit("allocations"))
            .otherwise(pl.lit("bytes"))
            .alias("grows"),
            "stack",
        )
        .sort("bytes_per_step", descending=True)
    )  # fmt: skip


def _grows(what: str, boundaries: int) -> list[pl.Expr]:
    pairs = ((number, number + 1) for number in range(1, boundaries - 1))
    return [pl.col(f"{what}_{later}") > pl.col(f"{what}_{earlier}") for earlier, later in pairs]


def held_at_peak(history: DeviceHistory, line: str, whose: str, names: list[str]) -> int:
    """Bytes at a peak of what a line allocates that grows, and of what lies with it in its variables since
    before the history; the peak may be of another history of the same process."""
    variable = pl.col("name").str.replace(r" \(.*$", "").str.replace_all(PLACES, "[*]")
    same = (pl.col("line") == line) & (owner() == whose) & pl.col("start").is_not_null()
    beside = variable.is_in([name.partition(" (")[0] for name in names if "[*]" in name])
    return whole(history.at_peak.filter(same | beside)["bytes"].sum())
