"""PyTorch's allocator as rows: by a trace's events, and at its peak by the allocator's own history."""

from __future__ import annotations

from typing import Any

import polars as pl
from msgspec.structs import replace

from kinetoscope import document, numbers
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.memory.growth import given_back, growth
from kinetoscope.analysis.memory.headroom import fits
from kinetoscope.analysis.memory.lifetimes import alive
from kinetoscope.analysis.memory.owners import ROLES, stack_owners
from kinetoscope.analysis.memory.peak import (
    DeviceHistory,
    RankHistory,
    histories,
    holders,
    over_time,
    owner,
    split,
)
from kinetoscope.analysis.memory.segments import before, segments
from kinetoscope.analysis.memory.stacks import calls
from kinetoscope.analysis.memory.traced import (
    BASE,
    allocator_calls,
    held_at_peak,
    memory_over_time,
    memory_statistics,
)
from kinetoscope.document.collect.findings import findings
from kinetoscope.document.collect.rows import rows, rows_by
from kinetoscope.document.collect.timeline import packed
from kinetoscope.document.page import AllocatorEvents
from kinetoscope.proof.measured import measurements
from kinetoscope.snapshot import timeline as timelines
from kinetoscope.snapshot.model import ACTIONS, FREE, FREED, OOM, Snapshot
from kinetoscope.snapshot.timeline import MemoryTimeline
from kinetoscope.sources.run import LoadedRun

CURVE = 100  # points over the recording
POINTS = 300  # of the curve over the history
BLOCKS, AT_PEAK = 1000, 600  # allocations that a page draws: the largest, and of the peak so many first
NO_OWNERS = (
    "a memory timeline is of one device, which it does not name, and says neither whose its memory was nor "
    "what was reserved: `kinetoscope run --memory` records it"
)
SHOWN = 0.01  # of what was requested: of a tree of calls
SEGMENTS = 200  # that are drawn
FRAMES = 12  # of a stack
EVENTS = 200_000  # of a history that a page lists: the last, as many as `run --memory` keeps


def memory(run: LoadedRun) -> list[document.MemoryRow]:
    """One row a rank and device whose memory was recorded."""
    table = memory_statistics(run)
    total = {"allocated_bytes": "allocated", "reserved_bytes": "reserved"}
    places = table.select("rank", "device").rows()
    traces = [trace for trace in run.traces if trace.rank in {rank for rank, _ in places}]
    points = {
        t.rank: rows_by(memory_over_time(t, CURVE), "device", document.MemoryPoint, total) for t in traces
    }
    living = {t.rank: rows_by(held_at_peak(t), "device", document.HeldRow) for t in traces}
    held = [living[rank].get(device, []) for rank, device in places]
    sums = pl.Series([sum(row.bytes for row in one) for one in held], dtype=pl.Int64)
    before = table["peak_allocated"] - sums
    is_known = table["peak_reserved"].is_not_null() & (before >= 0)  # the allocator's totals, with no gap
    return rows(
        table,
        document.MemoryRow,
        {
            "peak_allocated_bytes": "peak_allocated",
            "peak_reserved_bytes": "peak_reserved",
            "first_allocated_bytes": "first_allocated",
            "last_allocated_bytes": "last_allocated",
            "turned_over_bytes": "allocated_bytes",
        },
        held_at_peak=held,
        held_from_before_bytes=before.set(~is_known, None),
        over_time=[points[rank][device] for rank, device in places],
    )


def allocator(run: LoadedRun) -> list[document.AllocatorRow]:
    """One row a rank and driver call that takes or gives back memory."""
    return rows(allocator_calls(run), document.AllocatorRow)


@remembered
def peaks(run: LoadedRun) -> document.MemoryPeaks:
    """One row a rank and device of which a snapshot was recorded, and what cannot be read."""
    known = histories(run)
    bases = {trace.rank: trace.metadata.get(BASE) for trace in run.traces}
    return document.MemoryPeaks(
        peaks=[
            *(_peak(one, known.failure(one), bases.get(one.rank)) for one in known.found),
            *(_of_timeline(timelines.read(path)) for path in run.timelines),
        ],
        unread=[f"{error.where} was left out: {error.what}" for error in known.unread],
    )


def listing(run: LoadedRun, at_us: float | None = None) -> document.MemoryPeaks:
    """The same, what the traces' own events say, and the advice that frees memory; with ``at_us`` another
    moment than the peak, since each history began, and no advice."""
    found = peaks(run)
    if at_us is not None:
        chosen = [replace(one, history=one.history.at(at_us)) for one in histories(run).found]
        return replace(found, peaks=[_peak(one, None, None) for one in chosen])
    advice = findings(run, measurements(run)) if found.peaks else []
    frees = [finding for finding in advice if finding.saving_bytes]
    return replace(found, memory=memory(run), frees=frees)


def _peak(one: RankHistory, failure: RankHistory | None, base_ns: object) -> document.MemoryPeak:
    history, counters = one.history, one.history.counters
    table = history.curve.table
    began, ended = int(table["time_us"][0]), int(table["time_us"][-1])
    samples = over_time(history, POINTS)
    roles = [role for role in ROLES if role in samples.columns]
    room = fits(history, failure.history if failure else None) if history.moment != "chosen" else None
    blocks, stacks = _blocks(one, began)
    failed_by, failed_line, failed_stack = _failed(history)
    outside = counters and counters.total_bytes - counters.free_bytes - counters.reserved_bytes
    return document.MemoryPeak(
        rank=one.rank,
        device=history.device,
        moment=history.moment,
        failed_bytes=history.failed_bytes or None,
        failed_by=failed_by,
        failed_line=failed_line,
        failed_stack=failed_stack,
        annotations=history.annotations,
        free_bytes=one.history.free_bytes,
        peak_us=float(history.time_us - began),
        history_us=float(ended - began),
        requested_bytes=history.requested,
        reserved_bytes=history.reserved,
        outside_bytes=outside if counters and counters.total_bytes else None,
        total_bytes=counters.total_bytes or None if counters else None,
        parts=_parts(one),
        holders=_holders(one),
        roles=roles,
        over_time=[
            document.MemorySample(
                time_us=float(at - began),
                reserved_bytes=reserved,
                bytes=list(values),
                idle_in_pools_bytes=max(0, idle),
            )
            for at, reserved, idle, *values in samples.select(
                "time_us", "reserved", "idle", *roles
            ).iter_rows()
        ],
        blocks=blocks,
        stacks=stacks,
        traced_us=began - base_ns / 1000 if isinstance(base_ns, int) else None,
        growth=rows(growth(history, _boundaries(one)), document.GrowthRow),
        given_back=_given_back(one),
        segments=segments(history, SEGMENTS),
        calls=calls(history, SHOWN),
        fits=room,
        snapshot=str(one.files.path),
        notes=_notes(one),
    )


def _of_timeline(timeline: MemoryTimeline) -> document.MemoryPeak:
    """By the profiler's own categories; it knows neither owners nor what was reserved."""
    held = timeline.table.with_columns(held=pl.sum_horizontal(timelines.KINDS))
    kinds = [kind for kind in timelines.KINDS if (timeline.table[kind] != 0).any()]
    began, ended = float(held["time_us"][0]), float(held["time_us"][-1])
    peak = held.row(held["held"].arg_max() or 0, named=True)
    interval = pl.int_range(pl.len()) * POINTS // len(held)
    most = pl.all().get(pl.col("held").arg_max())
    samples = held.group_by(interval.alias("interval"), maintain_order=True).agg(most)
    return document.MemoryPeak(
        rank=0,
        device=0,
        moment="timeline",
        peak_us=peak["time_us"] - began,
        history_us=ended - began,
        requested_bytes=peak["held"],
        reserved_bytes=peak["held"],
        parts=[
            document.MemoryPart(
                part=kind,
                bytes=peak[kind],
                share_of_reserved=peak[kind] / max(1, peak["held"]),
                allocations=0,
            )
            for kind in kinds
        ],
        roles=kinds,
        over_time=[
            document.MemorySample(time_us=at - began, reserved_bytes=held, bytes=list(values))
            for at, held, *values in samples.select("time_us", "held", *kinds).iter_rows()
        ],
        snapshot=timeline.path,
        notes=[NO_OWNERS],
    )


def _failed(history: DeviceHistory) -> tuple[str | None, str | None, list[str]]:
    """The owner of the allocation that failed, its line and stack; nothing where no stack was recorded."""
    snapshot, number = history.snapshot, history.failed_stack
    if number is None:
        return None, None, []
    said = stack_owners(snapshot).row(number, named=True)
    by = said["module"] or said["function"] or ("autograd" if said["backward"] else "torch")
    return by, said["line"] or None, stack_lines(snapshot, number)


def _parts(one: RankHistory) -> list[document.MemoryPart]:
    table = split(one.history)
    shares = (table["bytes"] / max(1, one.history.reserved)).to_list()
    return rows(table, document.MemoryPart, share_of_reserved=shares)


def _holders(one: RankHistory) -> list[document.HolderRow]:
    table = holders(one.history)
    stacks = [stack_lines(one.history.snapshot, number) for number in table["stack"]]
    return rows(table, document.HolderRow, {"largest_bytes": "largest"}, stack=stacks)


def _given_back(one: RankHistory) -> list[document.GivenBackRow]:
    times = given_back(one.history, _boundaries(one))
    kinds = dict.fromkeys((time.cause, time.line) for time in times)
    same_kind = {kind: [time for time in times if (time.cause, time.line) == kind] for kind in kinds}
    found = [
        document.GivenBackRow(
            cause=cause,
            line=line or None,
            times=len(same),
            steps=len({time.step for time in same if time.step}),
            segments=sum(time.segments for time in same),
            bytes=sum(time.bytes for time in same),
            again_bytes=sum(time.again_bytes for time in same),
        )
        for (cause, line), same in same_kind.items()
    ]
    return sorted(found, key=lambda row: -row.bytes)


def _boundaries(one: RankHistory) -> tuple[int, ...]:
    return one.held.boundaries_ns if one.held else ()


def stack_lines(snapshot: Snapshot, number: int) -> list[str]:
    """A stack, the innermost function first; of a long one the beginning."""
    return [*map(str, snapshot.stacks[number][:FRAMES])]


def _blocks(one: RankHistory, began: int) -> tuple[list[document.MemoryBlock], list[list[str]]]:
    known = one.history.known
    of_peak, largest = (
        some.select("allocation", "bytes").sort("bytes", descending=True, maintain_order=True)["allocation"]
        for some in (one.history.at_peak, known)
    )
    chosen = pl.concat([of_peak.head(AT_PEAK), largest]).unique(maintain_order=True).head(BLOCKS)
    shown = known.filter(pl.col("allocation").is_in(chosen.implode())).select(
        "address", "bytes", "role", "name", "op", "stack", "context", "pool", owner().alias("owner"),
        pl.col("line").replace({"": None}),
        pl.coalesce("ran_module", pl.col("module").replace({"": None})).alias("module"),
        *((pl.col(name) - began).cast(pl.Float64) for name in ("start_us", "end_us")),
    ).sort("start_us", "address", nulls_last=False)  # fmt: skip
    places = {number: place for place, number in enumerate(dict.fromkeys([0, *shown["stack"]]))}
    shown = shown.with_columns(pl.col("stack").replace_strict(places, return_dtype=pl.Int64))
    blocks = [_block(one.history.snapshot, block) for block in shown.iter_rows(named=True)]
    return blocks, [stack_lines(one.history.snapshot, number) for number in places]


def _block(snapshot: Snapshot, block: dict[str, Any]) -> document.MemoryBlock:
    metadata, compiling = snapshot.contexts[block.pop("context")]
    pool = snapshot.pools[block.pop("pool")]
    return document.MemoryBlock(
        **block,
        user_metadata=metadata or None,
        compile_context=compiling or None,
        pool=pool if any(pool) else None,
    )


def allocator_histories(run: LoadedRun) -> list[AllocatorEvents]:
    """The events of each history that has any; of a long one the last."""
    found = [_events(place, one) for place, one in enumerate(histories(run).found)]
    return [one for one in found if one]


def _events(place: int, one: RankHistory) -> AllocatorEvents | None:
    history, snapshot = one.history, one.history.snapshot
    entries = snapshot.entries.with_row_index("place").filter(pl.col("device") == history.device)
    shown = entries.tail(EVENTS)
    if shown.is_empty():
        return None
    first = int(shown["place"][0])
    there = alive(history.known, first - 1)
    stacks = _numbered(pl.concat([pl.Series([0], dtype=pl.Int32), shown["stack"], there["stack"]]))
    streams, actions, contexts = (_numbered(shown[name]) for name in ("stream", "action", "context"))
    frames: dict[str, int] = {}
    lines = [
        [frames.setdefault(line, len(frames)) for line in map(str, snapshot.stacks[number])]
        for number in stacks
    ]
    began = int(history.curve.table["time_us"][0])
    columns = {
        "action": _places(shown["action"], actions),
        "time": shown["time_us"] - began,
        "address": shown["address"],
        "bytes": shown["bytes"],
        "stream": _places(shown["stream"], streams),
        "stack": _places(shown["stack"], stacks),
        "context": _places(shown["context"], contexts),
    }
    is_freed = (snapshot.entries["action"] == FREED).any()
    return AllocatorEvents(
        peak=place,
        actions=[ACTIONS[action] for action in actions],
        released=ACTIONS[FREED if is_freed else FREE],
        streams=[str(stream) for stream in streams],
        contexts=[(one.metadata, one.compiling) for one in map(snapshot.contexts.__getitem__, contexts)],
        segments=[(address, size, str(stream)) for address, size, stream in before(history, first)],
        blocks=[
            (address, size, stacks[stack])
            for address, size, stack in there.select("address", "bytes", "stack").iter_rows()
        ],
        frames=list(frames),
        stacks=lines,
        columns=[
            packed(f"allocator {place} {name}", values.clip(0), deltas=name in ("time", "address"))
            for name, values in columns.items()
        ],
        settings={name: str(value) for name, value in snapshot.settings.items()},
        left_out=len(entries) - len(shown),
    )


def _numbered(values: pl.Series) -> dict[int, int]:
    """Each value's place among those that differ, in the order in which they come."""
    return {value: place for place, value in enumerate(values.unique(maintain_order=True))}


def _places(values: pl.Series, numbered: dict[int, int]) -> pl.Series:
    return values.replace_strict(numbered, return_dtype=pl.Int64)


def _notes(one: RankHistory) -> list[str]:
    history, held, notes = one.history, one.held, list[str]()
    entries = len(history.snapshot.entries)
    if held and held.entries and entries >= held.entries:
        notes.append(f"the history is a ring of {held.entries:,} entries, and holds the latest of them alone")
    if history.moment == "snapshot":
        notes.append("no history was kept: this is what was there at the snapshot")
    if len(history.snapshot.stacks) == 1:
        notes.append(
            "no stacks were recorded: owners are known by the program's account alone. `kinetoscope run "
            "--memory` records them, as does torch.cuda.memory._record_memory_history(stacks='python')"
        )
    young = history.at_peak.filter(pl.col("role").is_in(["activation", "input"]), pl.col("end").is_null())
    if len(young) and history.moment == "history":
        notes.append(
            f"{numbers.size(int(young['bytes'].sum()))} of activations and inputs were still there where the "
            "history ends, within a step of their allocation: only a longer one shows whether they are kept"
        )
    if history.snapshot.unknown:
        notes.append(f"{history.snapshot.unknown:,} entries of the history are of an unknown kind")
    failures = history.snapshot.entries.filter(pl.col("device") == history.device, pl.col("action") == OOM)
    if len(failures) and not history.failed_bytes and history.moment != "chosen":
        requested = numbers.size(int(failures["bytes"][-1]))
        notes.append(
            f"{numbers.count(len(failures), 'allocation')} failed, the last of {requested}; "
            "the program went on"
        )
    counters = history.counters
    if history.failed_bytes and (free := history.free_bytes or 0) > history.failed_bytes:
        notes.append(
            f"the device had {numbers.size(free)} free: the program may not take more of it "
            "(set_per_process_memory_fraction)"
        )
    if counters is None:
        return notes
    if counters.retries:
        notes.append(
            f"{numbers.count(counters.retries, 'allocation')} had room only once all that was cached was "
            "given back to the driver, which waits for the device"
        )
    if history.moment == "recorded steps" and counters.peak_requested_bytes > history.requested:
        most = numbers.size(counters.peak_requested_bytes)
        notes.append(f"the program has allocated more, {most}, but not in the recorded steps")
    end = history.curve.at(int(history.curve.table["place"][-1]))
    counted = counters.requested_bytes, counters.reserved_bytes
    if counters.reserved_bytes and end != counted:
        notes.append(
            f"at the snapshot the allocator counts {counted[0]:,} bytes allocated of {counted[1]:,} "
            f"reserved; its blocks sum to {end[0]:,} of {end[1]:,}"
        )
    return notes
