"""A device at its peak: what its memory was split into, and who owned each part; of every device that a run
recorded."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Literal

import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.memory.lifetimes import GIVES, TAKES, Curve, alive, changes, curve
from kinetoscope.analysis.memory.owners import OWNER, ROLES, owned
from kinetoscope.analysis.memory.traced import buffers, ops, unseen
from kinetoscope.errors import InputError
from kinetoscope.recording.memory import DeviceMemory, Held
from kinetoscope.snapshot.model import ALLOC, MAP, OOM, SEGMENT, SEGMENT_FREE, UNMAP, Snapshot
from kinetoscope.sources.run import LoadedRun, MemoryFiles
from kinetoscope.trace.schema import whole

# Reserved memory that has no owner: blocks are multiples of 512 bytes; what is free lies between blocks
# in use, or in segments that hold none, which the driver could have back.
REST = ("rounding", "fragmentation", "cached")
ROUND = 512
# Of a segment of large blocks no less than this is split off: what is left over stays the block's own, and no
# hole is as small.
LEAST_SPLIT = 1 << 20

Moment = Literal["recorded steps", "history", "out of memory", "snapshot", "chosen"]


class DeviceHistory(Struct, frozen=True, eq=False, dict=True):
    """One device of a snapshot, with what analyses of it start from."""

    device: int
    snapshot: Snapshot
    known: pl.DataFrame  # the allocations (``owners.owned``)
    curve: Curve
    place: int  # the entry of the history after which most was allocated; of a failure, the last
    moment: Moment
    # the first and the last place of its step; of the history, where no steps are known
    span: tuple[int, int]
    # by the allocator's and the driver's own account at the snapshot, where the program gave it
    counters: DeviceMemory | None
    failed_bytes: int = 0  # the bytes that the failed allocation requested; 0: none failed
    free_bytes: int | None = None  # what the driver had free at the failure; None where nothing tells it

    def at(self, time_us: float) -> DeviceHistory:
        """The same history with another moment in the peak's stead, counted from its beginning."""
        table = self.curve.table
        earlier = table.filter(pl.col("time_us") <= table["time_us"][0] + time_us)
        place = whole(earlier["place"].max()) if len(earlier) else -1
        return replace(
            self, place=place, moment="chosen", span=(place, place), failed_bytes=0, free_bytes=None
        )

    @property
    def requested(self) -> int:
        return self.curve.at(self.place)[0]

    @property
    def reserved(self) -> int:
        return self.curve.at(self.place)[1]

    @property
    def most_requested(self) -> int:
        """At any time of the history, which may reach back before the recorded steps."""
        return whole(self.curve.table["held"].max())

    @cached_property
    def at_peak(self) -> pl.DataFrame:
        return alive(self.known, self.place)

    @property
    def failed_stack(self) -> int | None:
        """The stack of the allocation that failed; None where none did, or no stacks were recorded."""
        failures = self.snapshot.entries.filter(device=self.device, action=OOM, bytes=self.failed_bytes)
        is_known = len(failures) and len(self.snapshot.stacks) > 1
        return int(failures["stack"][-1]) if is_known else None

    @property
    def annotations(self) -> list[str]:
        """The program's named ranges at that moment, the outermost first."""
        here, moment_us = list[str](), self.time_us
        for one in self.snapshot.annotations:
            if one.device != self.device or one.time_us > moment_us:
                continue
            if one.begins:
                here.append(one.name)
            elif one.name in here:
                del here[len(here) - 1 - here[::-1].index(one.name)]
        return here

    @property
    def time_us(self) -> int:
        return whole(self.curve.table.filter(pl.col("place") <= self.place)["time_us"].max())


NO_BUFFERS = pl.DataFrame(schema={"graph": pl.String, "graph_line": pl.Int32, "buffer": pl.String})


def devices(
    snapshot: Snapshot,
    held: Held | None,
    buffers: pl.DataFrame = NO_BUFFERS,  # what lines of generated code allocate (``ops.buffers``)
    traced: Callable[[pl.DataFrame], pl.DataFrame] = unseen,  # the ops that made allocations (``ops.ops``)
) -> list[DeviceHistory]:
    """Every device of which the allocator has anything."""
    found: list[DeviceHistory] = []
    for device in sorted({*snapshot.segments["device"].unique(), *snapshot.entries["device"].unique()}):
        table = curve(snapshot, device)
        failure = _failure(snapshot, device, held)
        place, moment, span = _highest(table, held)
        if failure is not None:
            place, moment, span = failure["place"], "out of memory", (failure["place"], failure["place"])
        counters = next((one for one in held.devices if one.device == device), None) if held else None
        known = owned(snapshot, held, device)
        known = known.join(buffers, on=["graph", "graph_line"], how="left", maintain_order="left")
        known = known.join(traced(known), on="allocation", how="left", maintain_order="left")
        failed = failure["bytes"] if failure else (held and held.failed_bytes) or 0
        free = failure["address"] if failure else counters.free_bytes if failed and counters else None
        found.append(
            DeviceHistory(device, snapshot, known, table, place, moment, span, counters, failed, free)
        )
    return found


def _failure(snapshot: Snapshot, device: int, held: Held | None) -> dict[str, int] | None:
    """The entry of the allocation that failed, in a history without a description: the last of the device, if
    what was allocated afterwards is together less than it requested. A program that ends allocates little: a
    barrier of its ranks, a copy of its state to write it down. One that goes on soon has more than that."""
    if held is not None:
        return None
    entries = snapshot.entries.with_row_index("place").filter(device=device)
    last = entries.filter(action=OOM).tail(1).select("place", "bytes", "address")
    for row in last.iter_rows(named=True):
        later = entries.filter(pl.col("place") > row["place"], action=ALLOC)
        if whole(later["bytes"].sum()) < row["bytes"]:
            return row
    return None


def _highest(found: Curve, held: Held | None) -> tuple[int, Moment, tuple[int, int]]:
    table = found.table
    last = whole(table["place"].max())
    if held is not None and held.failed_bytes is not None:
        return last, "out of memory", (last, last)
    moment: Moment = "history"
    if held is not None and len(held.boundaries_ns) > 1:
        first_us, last_us = held.boundaries_ns[0] // 1000, held.boundaries_ns[-1] // 1000
        inside = table.filter(pl.col("time_us").is_between(first_us, last_us))
        if len(inside):
            table, moment = inside, "recorded steps"
    if len(table) == 1:
        return last, "snapshot", (last, last)
    peak = table.row(table["held"].arg_max() or 0, named=True)
    if moment == "recorded steps" and held is not None:
        marks = [ns // 1000 for ns in held.boundaries_ns]
        number = bisect_right(marks, peak["time_us"])
        until = marks[number] if number < len(marks) else marks[-1]
        table = table.filter(pl.col("time_us").is_between(marks[number - 1], until))
    return whole(peak["place"]), moment, (whole(table["place"].min()), whole(table["place"].max()))


def split(history: DeviceHistory) -> pl.DataFrame:
    """The parts of the reserved memory at the peak: they sum to it, byte by byte. Columns: ``part``
    (``ROLES`` and ``REST``, in that order), ``bytes``, ``allocations``."""
    here = history.at_peak
    roles = here.group_by("role").agg(pl.col("bytes").sum(), allocations=pl.len().cast(pl.Int64))
    rounding = whole(block_sizes(history, here).sum()) - history.requested
    cached = _whole_segments(history, here)
    fragments = history.reserved - history.requested - rounding - cached
    rest = pl.DataFrame({"role": REST, "bytes": [rounding, fragments, cached], "allocations": [0, 0, 0]})
    order = pl.DataFrame({"part": [*ROLES, *REST]})
    found = order.join(pl.concat([roles, rest]), left_on="part", right_on="role", how="left")
    return found.with_columns(pl.col("bytes", "allocations").fill_null(0)).filter(
        (pl.col("bytes") != 0) | pl.col("part").is_in(REST)
    )


def block_sizes(history: DeviceHistory, here: pl.DataFrame) -> pl.Series:
    """Bytes of the blocks of allocations: exact where the snapshot still has them as they were. Of others the
    request rounded up, and of large blocks also what lies between them and the next, where that is too little
    to have been split off."""
    if history.place == whole(history.curve.table["place"].max()):
        blocks = history.snapshot.blocks.filter(pl.col("state") < 2)
        blocks = blocks.select("device", "address", block="bytes")
        found = here.join(blocks, on=["device", "address"], how="left", maintain_order="left")
        return found["block"].fill_null(0)
    blocks = pl.max_horizontal((pl.col("bytes") + ROUND - 1) // ROUND, 1) * ROUND
    segments = segments_then(history).select("segment", until=pl.col("address") + pl.col("bytes"))
    placed = here.select("address", block=blocks).with_row_index("order").sort("address")
    placed = placed.join_asof(segments, left_on="address", right_on="segment")
    following = pl.min_horizontal(pl.col("address").shift(-1), "until")
    left = following - pl.col("address") - pl.col("block")
    is_own = (pl.col("block") > LEAST_SPLIT) & left.is_between(0, LEAST_SPLIT)
    found = placed.select("order", block=pl.when(is_own).then(pl.col("block") + left).otherwise("block"))
    return found.sort("order")["block"]


def _whole_segments(history: DeviceHistory, here: pl.DataFrame) -> int:
    """Bytes of segments that hold nothing; 0 where segments grow and shrink, and none is ever whole."""
    snapshot = history.snapshot
    entries = snapshot.entries.filter(device=history.device)
    if entries["action"].is_in([MAP, UNMAP]).any() or snapshot.segments["is_expandable"].any():
        return 0
    there = segments_then(history)
    used = here.select("address").sort("address").join_asof(there, on="address")["segment"]
    return whole(there.filter(~pl.col("segment").is_in(used.unique().implode()))["bytes"].sum())


def segments_then(history: DeviceHistory) -> pl.DataFrame:
    """The segments at the peak, by address: ``address`` (twice, as ``segment``), ``bytes``, ``stream``,
    ``pool``."""
    snapshot, device, place = history.snapshot, history.device, history.place
    entries = snapshot.entries.with_row_index("place").filter(device=device)
    changes = entries.filter(pl.col("action").is_in([SEGMENT, SEGMENT_FREE])).filter(pl.col("place") > place)
    first = changes.group_by("address", maintain_order=True).first()
    columns = "address", "bytes", "stream", "pool"
    gone = first.filter(action=SEGMENT_FREE).select(columns)
    later = first.filter(action=SEGMENT).select("address")
    now = snapshot.segments.filter(device=device).select(columns)
    there = pl.concat([now.join(later, on="address", how="anti").join(gone, on="address", how="anti"), gone])
    return there.sort("address").with_columns(segment="address")


def holders(history: DeviceHistory) -> pl.DataFrame:
    """Owners of memory at the peak, most first; every requested byte is in one row: ``role``, ``owner`` (the
    program's name with its layers' numbers as ``*``, the module, the graph, or the function that allocates),
    ``line`` (the user's; null: none), ``allocations``, ``bytes``, ``largest``, ``op`` and ``stack`` (of the
    largest; null: not in the trace)."""
    here = history.at_peak.with_columns(owner().alias("owner"), pl.col("line").replace({"": None}))
    return (
        here.sort("bytes", descending=True, maintain_order=True)
        .group_by("role", "owner", "line", maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("allocations"),
            pl.col("bytes").sum(),
            pl.col("bytes").max().alias("largest"),
            pl.col("op").drop_nulls().first(),
            pl.col("stack").first(),
        )
        .sort("bytes", descending=True, maintain_order=True)
    )


def owner() -> pl.Expr:
    """Who an allocation belongs to, of the columns of ``owners.owned``."""
    path = pl.col("name").str.replace(r" \(.*$", "").str.replace(r" and \d+ more$", "")
    path = path.str.replace_all(r"\.\d+\.", ".*.").str.replace_all(r"\[\d+\]", "[*]")
    graph = pl.format("compiled graph {}, line {}", pl.col("graph").str.slice(0, 8), "graph_line")
    graph = pl.coalesce(pl.format("graph {}", "buffer"), graph)
    is_said = pl.col("role").is_in(["parameter", "gradient", "optimizer state"]) | pl.col("start").is_null()
    named = pl.col("name").is_not_null() & is_said
    return (
        pl.when(pl.col("role") == "workspace")
        .then(pl.lit(OWNER))
        .when(named)
        .then(path)
        .when(pl.col("graph") != "")
        .then(graph)
        .when(pl.col("ran_module").is_not_null())
        .then(pl.col("ran_module"))
        .when(pl.col("module") != "")
        .then(pl.col("module"))
        .when(pl.col("function") != "")
        .then(pl.col("function"))
        .when(pl.col("stack") != 0)
        .then(pl.lit("torch"))
        .when(pl.col("start").is_null())
        .then(pl.lit("allocated before the history"))
        .otherwise(pl.coalesce(pl.format("autograd, {}", "op"), pl.lit("autograd")))
    )


def over_time(history: DeviceHistory, points: int) -> pl.DataFrame:
    """Bytes of each role over the history: of ``points`` intervals of equal length, each in which anything
    changed, the moment when most was allocated, and the last. ``time_us``, ``reserved``, ``idle`` (what
    private pools have of the driver and no tensor has), and a column for each role that ever had any."""
    table = history.curve.table
    since_us = pl.col("time_us") - pl.col("time_us").min()
    intervals = table.group_by(since_us * points // (since_us.max() + 1), maintain_order=True)
    marks = intervals.agg(pl.col("place").get(pl.col("held").arg_max()).alias("most"), pl.col("place").last())
    shown = pl.concat([marks["most"], marks["place"]]).unique()
    found = table.filter(pl.col("place").is_in(shown.implode())).drop("held").sort("place")
    for role in ROLES:
        of_role = history.known.filter(role=role)
        if not of_role.is_empty():
            found = _summed(found, role, [changes(of_role)])
    in_pools = changes(history.known.filter(pl.col("pool") != 0)).with_columns(-pl.col("change"))
    return _summed(found, "idle", [_private(history), in_pools]).drop("place")


def _private(history: DeviceHistory) -> pl.DataFrame:
    private = (pl.col("device") == history.device) & (pl.col("pool") != 0)
    entries = history.snapshot.entries.with_row_index("place").filter(private)
    sign = pl.when(pl.col("action").is_in(TAKES)).then(1).when(pl.col("action").is_in(GIVES)).then(-1)
    later = entries.select(pl.col("place").cast(pl.Int64), change=sign * pl.col("bytes")).drop_nulls()
    now = whole(history.snapshot.segments.filter(private)["bytes"].sum())
    before = pl.DataFrame({"place": [-1], "change": [now - whole(later["change"].sum())]})
    return pl.concat([before, later])


def _summed(found: pl.DataFrame, name: str, changes: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The sum of all changes up to each place, as a column."""
    sums = pl.concat(changes).sort("place").with_columns(pl.col("change").cum_sum().alias(name))
    return found.join_asof(sums.select("place", name), on="place").with_columns(pl.col(name).fill_null(0))


class RankHistory(Struct, frozen=True, eq=False):
    """One device of one rank's snapshot, with the program's own account of it."""

    rank: int
    files: MemoryFiles
    held: Held | None
    history: DeviceHistory


class Histories(Struct, frozen=True, eq=False):
    """All histories, by rank and device; of a rank whose allocation failed, that moment as well. ``unread``
    names the snapshots that cannot be used, and why."""

    found: tuple[RankHistory, ...]
    unread: tuple[InputError, ...]

    def failure(self, of: RankHistory) -> RankHistory | None:
        """The same device when an allocation failed."""
        place = of.rank, of.history.device
        mine = (one for one in self.found if (one.rank, one.history.device) == place)
        return next((one for one in mine if one.history.failed_bytes), None)


@remembered
def histories(run: LoadedRun) -> Histories:
    found: list[RankHistory] = []
    unread: list[InputError] = []
    made, traces = buffers(run), {trace.rank: trace for trace in run.traces}
    for files in run.snapshots:
        try:
            traced = partial(ops, traces[files.rank]) if files.rank in traces else unseen
            read = devices(files.snapshot, files.held, made, traced)
        except InputError as error:
            unread.append(error)
            continue
        found += [RankHistory(files.rank, files, files.held, history) for history in read]
    return Histories(tuple(found), tuple(unread))
