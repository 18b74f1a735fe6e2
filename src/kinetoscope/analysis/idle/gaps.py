"""When a device did nothing, and why: every gap with its cause and the host event that shows it."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.collectives.waiting import exposed_waiting, paired_of
from kinetoscope.analysis.events.rows import END
from kinetoscope.analysis.idle.causes import CAUSE, host_causes
from kinetoscope.analysis.idle.launches import arrival_ns
from kinetoscope.analysis.memo import kept, remembered
from kinetoscope.analysis.time.intervals import apart, overlay, within
from kinetoscope.analysis.time.window import window
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import typed

# How the work that ended a gap arrived.
LATE = "late"  # launched when the device was already idle: the host was behind
QUEUED = "queued"  # launched in time: the device took its own time to start it
EARLY = "early"  # launched before the recording began
UNLAUNCHED = "unlaunched"  # no launch was recorded
TAIL = "tail"  # none arrived any more
ARRIVED = pl.Enum([LATE, QUEUED, EARLY, UNLAUNCHED, TAIL])

SILENT = "the launching thread recorded nothing: Python, or a library that is not profiled"

# A device takes 1 to 3 µs from a kernel to the next that is queued: that is its ordinary pause.
PAUSE_NS = 3_000

# A launch that takes this many times what one takes to arrive at an idle device is delayed there.
LONG_LATENCIES = 20

# How many gaps these pieces of one device are of: a gap is what the same work ended.
TIMES = pl.n_unique("next")

GAPS = {
    "rank": pl.Int32,
    "device": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "cause": CAUSE,
    "next": pl.UInt32,
    "host_event": pl.UInt32,
    "text": pl.Categorical,
}


@kept
def gaps(run: LoadedRun) -> pl.DataFrame:
    """The idle time of every device inside its window, cut into disjoint pieces that have one cause each and
    sum to window less busy: ``rank``, ``device``, ``start_ns``, ``end_ns``, ``cause``, ``next`` (row of
    ``device_events`` that ended the gap; null at the end), ``host_event`` (row of ``host_events`` that shows
    the cause; null where none does) and ``text``.

    A gap whose next work had been launched early enough (see ``arrival_ns``) is not the host's doing: up to
    ``PAUSE_NS`` it is ``between-kernels``, beyond that ``unexplained``. Otherwise what its launching thread
    did meanwhile says why (``causes.host_causes``), or, where that was silent, the thread that launched last.
    What remains is ``launch-bound``. If the device ran dry during a synchronisation, the way to the next
    launch is its cost too.
    """
    found = [_gaps(trace, paired_of(run).table) for trace in run.traces]
    if len(found) == 1:  # no other run has this trace among its ranks
        _pieces.forget(run.traces[0])
    return pl.concat([pl.DataFrame(schema=GAPS), *found])


def gaps_of(trace: Trace) -> pl.DataFrame:
    """``gaps`` of one trace by itself, which may be among the ranks of a run."""
    return _gaps(trace, paired_of(LoadedRun((trace,))).table)


@kept
def idle(run: LoadedRun) -> pl.DataFrame:
    """Idle time of each device by cause, longest first: the columns of ``IdleRow``, in ns."""
    lengths = {trace.rank: window(trace).length_ns for trace in run.traces}
    length = pl.col("rank").replace_strict(lengths, return_dtype=pl.Int64)
    key = ["rank", "device", "cause"]
    pieces = gaps(run).with_columns(idle_ns=pl.col("end_ns") - pl.col("start_ns"))
    causes = pieces.group_by(key).agg(pl.sum("idle_ns"), gaps=TIMES)
    texts = pieces.group_by(*key, "text").agg(pl.sum("idle_ns")).sort("idle_ns", "text", descending=True)
    causes = causes.join(texts.unique(key, keep="first").drop("idle_ns"), on=key, how="left")
    waited = exposed_waiting(run).select(
        "rank",
        "device",
        cause=pl.lit("waiting-for-rank").cast(CAUSE),
        busy_inside_collectives_ns="exposed_waiting_ns",
    )
    return (
        causes.join(waited, on=key, how="full", coalesce=True)
        .with_columns(pl.col("idle_ns", "gaps", "busy_inside_collectives_ns").fill_null(0))
        .with_columns(share_of_window=pl.col("idle_ns") / length)
        .sort("rank", "device", "idle_ns", descending=[False, False, True])
    )


def _gaps(trace: Trace, collectives: pl.DataFrame) -> pl.DataFrame:
    queued, behind = _pieces(trace)
    decided = _decided(trace, behind, collectives).select(queued.columns)
    return _explained(trace, pl.concat([queued, decided]).sort("gap", "start_ns"))


@remembered
def _pieces(trace: Trace) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The gaps of work that was queued in time, each with its cause; and those that may be the host's doing,
    divided by what its threads did. Neither depends on other ranks."""
    whole = _whole_gaps(trace)
    is_pause = pl.col("end_ns") - pl.col("start_ns") <= PAUSE_NS
    queued = whole.filter(pl.col("arrived") == QUEUED).with_columns(
        cause=pl.when(is_pause)
        .then(pl.lit("between-kernels", CAUSE))
        .otherwise(pl.lit("unexplained", CAUSE)),
        host_event=pl.lit(None, pl.UInt32),
    )
    whole = whole.filter(pl.col("arrived") != QUEUED)
    causes = host_causes(trace)
    # Once the launch has returned, the thread may do anything: what is left is the launch's own latency.
    late = pl.col("arrived") == LATE
    until = pl.when(late).then(pl.min_horizontal("returned", "end_ns")).otherwise("end_ns")
    pieces = _cut(whole.select("gap", "device", "lane", "start_ns", end_ns=until), causes)
    silent = (pl.col("cause") == "unexplained").fill_null(False)
    elsewhere = whole.filter(pl.col("elsewhere") != pl.col("lane")).select("gap", lane="elsewhere")
    again = pieces.filter(silent).drop("lane", "cause", "host_event").join(elsewhere, on="gap")
    if len(again):
        kept = pieces.filter(~(silent & pl.col("gap").is_in(again["gap"].implode())))
        pieces = pl.concat([kept, _cut(again, causes).select(kept.columns)])
    arriving = whole.filter(late).select(
        "gap", "device", "end_ns", start_ns=pl.max_horizontal("start_ns", "returned")
    )
    pieces = pl.concat([pieces, arriving.filter(pl.col("end_ns") > pl.col("start_ns"))], how="diagonal")
    known = whole.select("gap", "before", "next", "arrived", "op", dry_ns="start_ns")
    # It is remembered: no more than is used.
    columns = ["gap", "device", "start_ns", "end_ns", "cause", "next", "host_event", "arrived"]
    return queued.select(columns), pieces.drop("lane").join(known, on="gap")


def _whole_gaps(trace: Trace) -> pl.DataFrame:
    """One row per gap: ``gap``, ``device``, its bounds, the work ``before`` and ``next``, how it ``arrived``,
    the ``op`` and ``lane`` that launched it, when that call ``returned``, and ``elsewhere``, the lane that
    had launched last when the gap began."""
    bounds, host, device = window(trace), trace.host_events, trace.device_events
    keys = apart(device, ["device"])
    work = device.select(
        "device",
        pl.col("id").alias("next"),
        "start_ns",
        END,
        launched=host["start_ns"][device["launch"]],
    ).with_columns(reached=within(pl.col("end_ns").cum_max(), keys))
    arrival = arrival_ns(trace)
    latest = pl.when(pl.col("end_ns") == pl.col("reached")).then("next").forward_fill()
    work = work.with_columns(
        dry_ns=within(pl.col("reached").shift(1), keys),
        before=within(within(latest, keys).shift(1), keys),
    )
    first_launched = work.drop_nulls("launched").group_by("device").agg(first_launched=pl.min("next"))
    ended = work.filter((pl.col("start_ns") > pl.col("dry_ns")).fill_null(True)).join(
        first_launched, on="device", how="left", maintain_order="left"
    )
    of_gap = device.select("op", "launch")[ended["next"]]
    ended = ended.with_columns(
        of_gap.select(op=pl.coalesce("op", "launch")).to_series(),
        host["lane"][of_gap["launch"]],
        returned=(host["start_ns"] + host["duration_ns"])[of_gap["launch"]],
    )
    arrived = (
        pl.when(pl.col("launched").is_null())
        .then(
            pl.when((pl.col("next") < pl.col("first_launched")).fill_null(False))
            .then(pl.lit(EARLY, ARRIVED))
            .otherwise(pl.lit(UNLAUNCHED, ARRIVED))
        )
        .when(pl.max_horizontal(pl.col("launched") + arrival, "returned") <= pl.col("dry_ns"))
        .then(pl.lit(QUEUED, ARRIVED))
        .otherwise(pl.lit(LATE, ARRIVED))
    )
    ended = ended.select(
        "device",
        pl.col("dry_ns").fill_null(bounds.start_ns).alias("start_ns"),
        pl.col("start_ns").alias("end_ns"),
        "before",
        "next",
        arrived.alias("arrived"),
        pl.col("returned"),
        (pl.col("returned") + LONG_LATENCIES * arrival).alias("due"),
        "op",
        "lane",
    )
    tails = work.group_by("device").agg(
        start_ns=pl.max("reached"),
        end_ns=pl.lit(bounds.end_ns, pl.Int64),
        before=pl.col("next").filter(pl.col("end_ns") == pl.max("reached")).last(),
        arrived=pl.lit(TAIL, ARRIVED),
    )
    # A launch that takes very long to arrive has: the device did not start what it had.
    stuck = ended.filter(pl.col("arrived") == LATE, pl.col("end_ns") > pl.col("due")).with_columns(
        start_ns=pl.max_horizontal("start_ns", "due"), arrived=pl.lit(QUEUED, ARRIVED)
    )
    on_time = pl.when(pl.col("arrived") == LATE).then(pl.min_horizontal("end_ns", "due")).otherwise("end_ns")
    ended = ended.with_columns(end_ns=on_time)
    elsewhere = host["lane"][device["launch"]].alias("elsewhere")
    launches = work.select("launched", elsewhere).drop_nulls().sort("launched")
    return (
        pl.concat([ended, stuck, tails], how="diagonal")
        .with_columns(
            pl.col("start_ns").clip(lower_bound=bounds.start_ns),
            pl.col("end_ns").clip(upper_bound=bounds.end_ns),
        )
        .filter(pl.col("end_ns") > pl.col("start_ns"))
        .sort("start_ns")
        .join_asof(launches, left_on="start_ns", right_on="launched")
        .with_columns(lane=pl.coalesce("lane", "elsewhere", pl.col("lane").drop_nulls().first()))
        .sort("device", "start_ns")
        .with_row_index("gap")
    )


def _cut(pieces: pl.DataFrame, causes: pl.DataFrame) -> pl.DataFrame:
    """The pieces, divided wherever the cause on their lane changes; ``cause`` is null where none is known."""
    known = causes.with_row_index("row").join(pieces.select("device", "lane").unique(), on="lane")
    cut = overlay({"piece": pieces.with_row_index("row"), "known": known}, ["device", "lane"])
    cut = cut.filter(pl.col("piece").is_not_null())
    return cut.select(
        pieces["gap"][cut["piece"]],
        "device",
        "lane",
        "start_ns",
        "end_ns",
        causes["cause"][cut["known"]],
        causes["host_event"][cut["known"]],
    )


def _decided(trace: Trace, pieces: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """Every piece with its one cause, from what the thread did and how the next work arrived."""
    cause, arrived = pl.col("cause"), pl.col("arrived")
    blocked = cause.is_in(["synchronization", "waiting-for-rank"])
    own = collectives.filter(pl.col("rank") == trace.rank)
    waited = own.filter(pl.col("waiting_ns") > pl.col("transfer_ns"))["id"]
    for_a_rank = pl.col("before").is_in(waited.implode()) | (
        (arrived == EARLY) & pl.col("next").is_in(own["id"].implode())
    )
    pieces = pieces.with_columns(
        cause=pl.when((cause == "synchronization") & for_a_rank)
        .then(pl.lit("waiting-for-rank", CAUSE))
        .otherwise(cause)
    )
    entered_dry = blocked & (pl.col("start_ns") == pl.col("dry_ns")) & (arrived == LATE)
    pieces = pieces.with_columns(
        dry_cause=pl.when(entered_dry).then(cause).max().over("gap"),
        dry_event=pl.when(entered_dry).then("host_event").max().over("gap"),
    )
    decided = (
        pl.when(arrived == LATE)
        .then(pl.coalesce("cause", "dry_cause", pl.lit("launch-bound", CAUSE)))
        .when(arrived == UNLAUNCHED)
        .then(cause.fill_null(pl.lit("unexplained", CAUSE)))
        .when((arrived == EARLY) & (cause == "waiting-for-rank"))
        .then(cause)
        .when(
            (arrived == TAIL)
            & cause.is_in(["compilation", "garbage-collection", "data-loading", "allocator", "host-op"])
        )
        .then(cause)
        .otherwise(pl.lit("start-or-end", CAUSE))
    )
    shown = (
        pl.when(arrived == LATE)
        .then(pl.coalesce("host_event", pl.when(cause.is_null()).then(pl.coalesce("dry_event", "op"))))
        .when(cause == pl.col("decided"))
        .then("host_event")
    )
    return pieces.with_columns(decided=decided).with_columns(host_event=shown, cause="decided")


def _explained(trace: Trace, pieces: pl.DataFrame) -> pl.DataFrame:
    """The result's columns, with a text composed once for each distinct combination of cause and names."""
    host = trace.host_events
    pieces = pieces.select(
        pl.lit(trace.rank, pl.Int32).alias("rank"),
        "device",
        "start_ns",
        "end_ns",
        "cause",
        "next",
        "host_event",
        "arrived",
        name=host["name"][pieces["host_event"]],
        around=host["name"][host["parent"][pieces["host_event"]]],
    )
    keys = ["cause", "arrived", "name", "around"]
    texts = pieces.select(keys).unique()
    sentences = [_text(*row) for row in texts.cast(pl.String).iter_rows()]
    texts = texts.with_columns(text=pl.Series(sentences, dtype=pl.String))
    pieces = pieces.join(texts, on=keys, how="left", nulls_equal=True, maintain_order="left")
    return pieces.select(typed(GAPS))


TEXTS = {
    "launch-bound": "{name} was launched when the device was already idle",
    "synchronization": "the host waited in {name}{inside}; nothing was queued behind it",
    "waiting-for-rank": "the host waited in {name} for a collective that waited",
    "data-loading": "the host waited for data in {name}",
    "garbage-collection": "Python's garbage collector kept the launching thread{inside}",
    "compilation": "the host was compiling: {name}",
    "allocator": "the allocator called {name}{inside}",
    "host-op": "{name} kept the launching thread{inside}",
    "start-or-end": "the recording's first or last moments",
    "between-kernels": "the device's ordinary pause between a kernel and the next one in its queue",
    "unexplained": SILENT,
}
TEXTS_OF_ARRIVALS = {
    (
        "waiting-for-rank",
        EARLY,
    ): "the host waited in {name}; a collective begun before the recording was most probably still waiting",
    ("start-or-end", TAIL): "no work followed before the window's end",
    ("unexplained", TAIL): "no work followed before the window's end",
    ("start-or-end", EARLY): "the next work was launched before the recording began",
    ("unexplained", QUEUED): "a pause of the device: the next work was already queued",
    ("unexplained", UNLAUNCHED): "no launch of the next work was recorded",
}


def _text(cause: str, arrived: str, name: str | None, around: str | None) -> str | None:
    """One sentence on a gap: ``name`` is the host event's, ``around`` that of the event around it."""
    text = TEXTS_OF_ARRIVALS.get((cause, arrived), TEXTS[cause])
    if "{name}" in text and name is None:
        return None
    return text.format(name=name, inside=f", inside {around}" if around is not None else "")
