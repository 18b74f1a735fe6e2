"""The collectives of one rank: what each is, how much it moves, among whom, and when ranks may leave it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import msgspec
import polars as pl

from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.memo import kept
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace, with_arguments
from kinetoscope.trace.schema import typed

# When ranks may leave a collective.
TOGETHER = "together"  # no rank is done before the last has come: all end at one instant
ARRIVAL = "arrival"  # every rank needs the data of all, but not all of it at once: ends lie apart
SENDER = "sender"  # all wait for one, who may leave before they come
PAIR = "pair"  # two ranks, of which the sender may leave early


class Kind(NamedTuple):
    """A kind of collective; ``bus`` by which part of its algorithm bandwidth a link is used, for n ranks, as
    nccl-tests count it (doc/PERFORMANCE.md there): a (n - 1) / n."""

    name: str
    pattern: str  # of its recorded name or its kernel's
    semantics: str
    bus: float


KINDS = (
    Kind("all-reduce", r"(?i)all_?reduce", TOGETHER, 2.0),
    Kind("reduce-scatter", r"(?i)reduce_?scatter", TOGETHER, 1.0),
    Kind("all-gather", r"(?i)all_?gather", TOGETHER, 1.0),
    Kind("barrier", r"(?i)barrier", TOGETHER, 0.0),
    Kind("all-to-all", r"(?i)all_?to_?all", ARRIVAL, 1.0),
    Kind("broadcast", r"(?i)broadcast", SENDER, 0.0),
    Kind("scatter", r"(?i)scatter", SENDER, 0.0),
    Kind("send-receive", r"(?i)^(send|recv|batch_isend|coalesced)", PAIR, 0.0),
    Kind("all-to-all", r"(?i)send_?recv", ARRIVAL, 1.0),  # a kernel without a recorded name: mostly that
    Kind("reduce", r"(?i)reduce", TOGETHER, 0.0),
    Kind("other", "", TOGETHER, 0.0),
)
SEMANTICS = {kind.name: kind.semantics for kind in KINDS}
BUS = {kind.name: kind.bus for kind in KINDS}

OWN = "<own>"  # in what a send or receive is like, for its rank: torch names the other end alone
BATCHED = " + "  # between those of one batch
SENT = '"(send|recv)"'  # in the arguments of a call
SAID = ("Collective name", "dtype", "In msg nelems", "Out msg nelems", "Process Group Ranks", "Src Rank",
        "Dst Rank", "Seq", "In split size", "Process Group Description")  # fmt: skip
MOST_RANKS = 1 << 20  # a header may say anything
LONGEST = 48  # characters of a group's ranks

BYTES = {
    "double": 8, "long": 8, "float": 4, "int": 4, "half": 2, "bfloat16": 2, "short": 2,
    "byte": 1, "char": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip

REPEATED = pl.Categorical  # few texts, each in many rows: of a thousand ranks most memory would be theirs
COLLECTIVES = {
    "rank": pl.Int32,
    "device": pl.Int32,
    "id": pl.UInt32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "duration_ns": pl.Int64,
    "kind": REPEATED,
    "semantics": REPEATED,
    "bytes": pl.Int64,
    "signature": REPEATED,
    "sequence": REPEATED,
    "group": REPEATED,
    "group_name": REPEATED,
    "size": pl.Int64,
    "step": REPEATED,
    "recorded": pl.Boolean,
    "before": pl.Boolean,
    "launched_ns": pl.Int64,
    "stream": pl.Int64,
    "sent": pl.List(pl.Int64),
}


@kept
def collectives(trace: Trace) -> pl.DataFrame:
    """One row per communication kernel of one rank, ordered by device and start.

    Returns:
        ``rank``, ``device``, ``id`` (row of ``device_events``), ``start_ns``, ``end_ns``, ``duration_ns``,
        ``kind`` and ``semantics`` (see ``KINDS``), ``bytes`` (of the larger side: what nccl-tests count; null
        where unknown), ``signature`` (one text for what must be the same on all ranks; ``OWN`` stands for the
        rank itself), ``sequence`` (torch's number of it in its group, which its latest versions record; else
        empty), ``group`` (one text a process group; of an unrecorded one the stream), ``group_name``,
        ``size`` (how many ranks it has; null where unknown), ``step`` (name of the step it was launched in;
        empty without), ``recorded`` (its arguments are), ``before`` (launched before the recording),
        ``launched_ns`` (null where that is not known), ``stream`` and ``sent`` (of an all-to-all: bytes to
        each rank of its group; else null).
    """
    table = work(trace).filter(pl.col("part") == "communication").sort("device", "start_ns")
    table = _together(_described(_with_batched(trace, table)))
    groups = pl.DataFrame(
        [(text, *_group(text)) for text in table["arguments"].unique().drop_nulls()],
        schema={"arguments": pl.String, "known": pl.String, "size": pl.Int64},
        orient="row",
    )
    stream = pl.col("stream").rank("dense").cast(pl.String)
    return (
        table.join(groups, on="arguments", how="left", maintain_order="left")
        .with_columns(
            rank=pl.lit(trace.rank, pl.Int32),
            group=pl.coalesce("known", "stream " + stream),
            step=trace.steps["name"][table["step"]].fill_null(""),
            before=pl.col("launch").is_null() & pl.col("launch").is_not_null().any(),
            launched_ns=trace.host_events["start_ns"][table["launch"]],
            sent=_sent(),
        )
        .select(typed(COLLECTIVES))
    )


def _sent() -> pl.Expr:
    """The bytes that go to each rank: by the splits' sizes, which may count rows, else as many to all."""
    split, all_of_it = pl.col("split"), pl.col("sent_bytes")
    shares = split.list.eval(pl.element() / pl.element().sum())
    even = (1 / pl.col("size")).repeat_by(pl.col("size").fill_null(0))
    each = pl.when(split.list.len() > 0).then(shares).otherwise(even) * all_of_it
    return pl.when(pl.col("kind") == "all-to-all", all_of_it.is_not_null()).then(
        each.list.eval(pl.element().fill_nan(0).round().cast(pl.Int64))
    )


def _with_batched(trace: Trace, table: pl.DataFrame) -> pl.DataFrame:
    """Add the arguments of sends and receives in a batch, as pipelines do: their kernel has none, but the
    calls before its launch have. One row per call, all of a kernel with its ``batch``."""
    host = trace.host_events
    table = table.with_row_index("batch")
    arguments = trace.host_arguments.with_columns(sends=matching(trace.host_arguments, "collective", SENT))
    calls = with_arguments(host.select("lane", "start_ns", "arguments"), arguments, "sends", "collective")
    calls = calls.filter("sends").select("lane", "start_ns", call="collective")
    if calls.is_empty():
        return table
    launches = table.select("batch").hstack(host.select("lane", at="start_ns")[table["launch"]])
    launches = launches.drop_nulls().sort("at")
    called = calls.sort("start_ns").join_asof(
        launches, left_on="start_ns", right_on="at", by="lane", strategy="forward", check_sortedness=False
    )
    batched = table.filter(~pl.col("collective").cast(pl.String).str.contains(SENT).fill_null(False))
    known = batched.select("batch").join(called.drop_nulls("batch"), on="batch", maintain_order="right")
    return table.join(
        known.select("batch", "call"), on="batch", how="left", maintain_order="left"
    ).with_columns(collective=pl.coalesce("call", "collective"))


def _together(table: pl.DataFrame) -> pl.DataFrame:
    """One row per kernel, from one per call: ``signature`` of all, and the ``bytes`` of the larger side."""
    if table["batch"].is_unique().all():
        return table
    is_sent = pl.col("signature").str.contains(f"{OWN} [^ ]+$")
    sides = [pl.col("bytes").filter(side).sum() for side in (is_sent, ~is_sent)]
    several = pl.len() > 1
    return table.group_by("batch", maintain_order=True).agg(
        pl.exclude("batch", "signature", "bytes").first(),
        pl.col("signature").str.join(BATCHED),
        bytes=pl.when(several).then(pl.max_horizontal(sides)).otherwise(pl.col("bytes").first()),
    )


def _described(table: pl.DataFrame) -> pl.DataFrame:
    """Add ``arguments``, ``kind``, ``semantics``, ``bytes``, ``signature``, ``sequence``, ``recorded`` and
    ``group_name``; each distinct collective is described once."""
    key = ["collective", "name"]
    distinct = table.select(key).unique().with_columns(arguments=pl.col("collective").cast(pl.String))
    distinct = distinct.join(_said(distinct["arguments"]), on="arguments", how="left")
    said = pl.col
    names = distinct.select(pl.coalesce("Collective name", pl.col("name").cast(pl.String))).to_series()
    distinct = distinct.with_columns(kind=pl.Series([_kind(name) for name in names], dtype=pl.String))
    kind = pl.col("kind")
    element = said("dtype").str.to_lowercase().replace_strict(BYTES, default=None, return_dtype=pl.Int64)
    counts = [said(f"{side} msg nelems").cast(pl.Int64, strict=False) for side in ("In", "Out")]
    # An all-to-all's shares differ from rank to rank.
    shape = pl.when(kind != "all-to-all").then(pl.max_horizontal(counts)).cast(pl.String).fill_null("")
    semantics = kind.replace_strict(SEMANTICS)
    own = pl.when(semantics == PAIR).then(pl.lit(OWN)).otherwise(pl.lit(""))
    # Torch counts the other end within the process group (pytorch/pytorch#153819).
    ranks = said("Process Group Ranks").str.extract_all(r"\d+")
    ends = [said(f"{side} Rank") for side in ("Src", "Dst")]
    peers = [
        pl.coalesce(ranks.list.get(end.cast(pl.Int64, strict=False), null_on_oob=True), end).fill_null(own)
        for end in ends
    ]
    # Of sends and receives each rank counts its own.
    sequence = pl.when(semantics != PAIR).then(said("Seq")).fill_null("")
    distinct = distinct.with_columns(
        semantics=semantics,
        sequence=sequence,
        bytes=pl.max_horizontal(counts) * element,
        sent_bytes=counts[0] * element,
        split=said("In split size").str.extract_all(r"\d+").cast(pl.List(pl.Float64)).fill_null([]),
        signature=pl.concat_str(kind, shape, said("dtype").fill_null(""), *peers, separator=" "),
        recorded=pl.col("arguments").is_not_null(),
        group_name=said("Process Group Description"),
    ).drop(SAID)
    table = table.drop(distinct.drop(key).columns, strict=False)  # device events have some of these names
    return table.join(distinct, on=key, how="left", nulls_equal=True, maintain_order="left")


@lru_cache(maxsize=4096)
def _kind(name: str) -> str:
    """The first of ``KINDS`` that the name of a collective or of its kernel fits."""
    return next(one.name for one in KINDS if re.search(one.pattern, name))


def _said(arguments: pl.Series) -> pl.DataFrame:
    """By ``arguments``, the text of each of ``SAID``; null where it is not recorded. Each is decoded once."""
    texts = arguments.unique().drop_nulls().to_list()
    columns: dict[str, list[str | None]] = {key: [] for key in SAID}
    for text in texts:
        known: dict[str, object] = msgspec.json.decode(text)
        for key, column in columns.items():
            value = known.get(key)
            column.append(
                value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()
            )
    return pl.DataFrame({"arguments": texts, **columns}, dict.fromkeys(("arguments", *SAID), pl.String))


def _group(arguments: str) -> tuple[str, int | None]:
    """One text for the process group in a collective's arguments, and how many ranks that has.

    Torch lists thirty ranks at most; the name and the first of them tell groups apart.
    """
    said: dict[str, object] = msgspec.json.decode(arguments)
    listed, size = str(said.get("Process Group Ranks", "")), said.get("Group size")
    if len(listed) > LONGEST:
        listed = f"{listed[: LONGEST - 1]}…"
    ranks = size if isinstance(size, int) and size > 0 else None
    return f"{said.get('Process Group Name', '')} {listed}", ranks


def ways(like: str) -> list[tuple[int, int]]:
    """From which rank to which a send, a receive or a batch of them goes; empty where that is not known."""
    found = re.findall(r"(?:^| )(\d+) (\d+)(?= \+ |$)", like)
    return sorted({(int(source), int(target)) for source, target in found if source != target})


def members(group: str) -> list[int]:
    """The ranks of a group, from its text; empty where not all are listed."""
    try:
        return msgspec.json.decode(group[group.index("[") :].encode(), type=list[int])
    except (msgspec.MsgspecError, ValueError):
        return []


def ranges(numbers: Iterable[int]) -> str:
    """Ranks as text, runs of them joined: 0-7, 12."""
    ordered = sorted(set(numbers))
    edges = [at + 1 for at, (one, other) in enumerate(pairwise(ordered)) if other != one + 1]
    runs = [ordered[start:end] for start, end in pairwise([0, *edges, len(ordered)]) if end > start]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def host_of(path: str) -> str:
    """The host as torch's tensorboard_trace_handler names files, HOST_PID.TIME.pt.trace.json; else ""."""
    name = re.fullmatch(r"(.+)_\d+\.\d+\.pt\.trace\.json(\.gz)?", path.replace("\\", "/").rpartition("/")[2])
    return name[1] if name else ""


def hosts_of(run: LoadedRun) -> dict[int, str]:
    """Where each rank ran, as its trace's name or the recording says; empty where neither does."""
    recorded = {one.rank: one.host for one in run.manifest.ranks} if run.manifest else {}
    return {trace.rank: host_of(trace.source.path) or recorded.get(trace.rank, "") for trace in run.traces}


def world_size(trace: Trace) -> int | None:
    """How many ranks the run has, as the trace's header says."""
    match trace.metadata.get("distributedInfo"):
        case {"world_size": int(size)} if 0 < size <= MOST_RANKS:
            return size
        case _:
            return None
