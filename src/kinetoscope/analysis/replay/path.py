"""The critical path: of all that a step consists of, what its time is the sum of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.replay.engine import NEVER, Round, circle, from_one, matrix, once
from kinetoscope.analysis.replay.graph import Block, CollectiveSync, SyncPoint
from kinetoscope.analysis.replay.numbers import State

# Sums of some thousand doubles of nanoseconds agree to this.
EQUAL_NS = 0.5

HOST, ARRIVING, WORK, RETURN, TRANSFER, STARTING = (
    "host", "arriving", "work", "return", "transfer", "starting",
)  # fmt: skip


class Piece(NamedTuple):
    """A segment of the path, ``ns`` long: host time of a segment between its start and an instant of the
    recording (``until``), or what happened to rows of the graph's ``work``.
    """

    sort: str
    ns: float
    segment: int = -1
    until: int = 0
    rows: tuple[int, int] = (0, 0)  # from, and up to but not including
    call: tuple[int, int] | None = None


@dataclass(frozen=True)
class _Walk:
    """What is needed to go back through one round."""

    state: State
    round: Round
    blocks: dict[int, tuple[Block, int | None]]  # with the block before it on its stream
    syncs: dict[int, SyncPoint]  # by the segment that follows
    collectives: dict[int, tuple[CollectiveSync, float]]
    rows: dict[int, tuple[int, int, int]]  # of each block: from, up to, and whose launch it waits for longest


def repeated(state: State) -> tuple[list[Piece], int]:
    """The path of rounds that repeat, and of how many rounds it is."""
    around = circle(matrix(state.graph, state.numbers))
    pieces: list[Piece] = []
    for before, clock in zip([around[-1], *around], around, strict=False):
        pieces += _back(_walk(state, from_one(state.graph, state.numbers, before)), clock)
    return pieces, len(around)


def single(state: State, rank: int) -> list[Piece]:
    """The path of one round: to the last of a rank's clocks."""
    graph = state.graph
    walk = _walk(state, once(graph, state.numbers, graph.origin))
    own = [clock for clock, owner in enumerate(graph.ranks) if owner == rank]
    if not own:
        return []
    last = max(own, key=lambda clock: walk.round.clocks[clock])
    pieces = list(_back(walk, last))
    # A path that leads to another rank begins where that one's recording does.
    apart = walk.round.clocks[last] - graph.origin[last] - sum(piece.ns for piece in pieces)
    return [*pieces, Piece(STARTING, apart)] if apart > EQUAL_NS else pieces


def _walk(state: State, done: Round) -> _Walk:
    blocks: dict[int, tuple[Block, int | None]] = {}
    syncs: dict[int, SyncPoint] = {}
    collectives: dict[int, tuple[CollectiveSync, float]] = {}
    newest: dict[int, int] = {}
    transfers = iter(state.numbers.transfer)
    for instruction in state.graph.program:
        if isinstance(instruction, Block):
            blocks[instruction.block] = instruction, newest.get(instruction.stream)
            newest[instruction.stream] = instruction.block
        elif isinstance(instruction, SyncPoint):
            syncs[instruction.following] = instruction
        else:
            collectives |= dict.fromkeys(instruction.blocks, (instruction, next(transfers)))
    cost = pl.col("pause_ns") + pl.col("work_ns")
    late = pl.col("ready") + pl.col("work_ns") - cost.cum_sum()
    # Of launches that hold a block up as long as each other the last.
    each = state.work.group_by("block", maintain_order=True).agg(pl.len(), back=late.reverse().arg_max())
    rows = {
        block: (end - count, end, end - 1 - (count - 1 if back is None else back))
        for (block, count, back), end in zip(each.iter_rows(), each["len"].cum_sum(), strict=True)
    }
    return _Walk(state, done, blocks, syncs, collectives, rows)


def _back(walk: _Walk, clock: int) -> Iterator[Piece]:
    """The pieces of the path to a clock's end, last first."""
    threads = len(walk.state.graph.first)
    segment: int | None = None
    block: int | None = None
    if clock < threads:
        segment = walk.state.graph.last[clock]
    else:
        own = [b.block for b, _ in walk.blocks.values() if b.stream == clock - threads]
        block = own[-1] if own else None
    while segment is not None or block is not None:
        if segment is not None:
            pieces, segment, block = _before_segment(walk, segment)
        else:
            pieces, segment, block = _before_block(walk, block or 0)
        yield from pieces


Step = tuple[list[Piece], int | None, int | None]


def _before_segment(walk: _Walk, segment: int) -> Step:
    """What a segment's beginning came from: the segment before it, or work that its call waited for."""
    sync = walk.syncs.get(segment)
    if sync is None:
        return [], None, None
    ended, length = walk.round.ended, walk.state.numbers.host[sync.segment]
    pieces = [Piece(RETURN, sync.tail_ns, call=sync.call)] if sync.tail_ns else []
    latest = max(sync.targets, key=lambda block: ended[block], default=None)
    if (
        latest is not None
        and sync.call not in walk.state.numbers.free
        and ended[latest] > walk.round.begun[sync.segment] + length
    ):
        return pieces, None, latest
    until = int(walk.state.graph.segments["end_ns"][sync.segment])
    return [*pieces, Piece(HOST, length, sync.segment, until)], sync.segment, None


def _before_block(walk: _Walk, block: int) -> Step:
    """What a block's end came from: its launches, the work before it on its stream, or on another."""
    pieces: list[Piece] = []
    ended = walk.round.ended[block]
    if block in walk.collectives:
        collective, transfer = walk.collectives[block]
        block = max(collective.blocks, key=lambda other: walk.round.arrived[other])
        ended = walk.round.arrived[block]
        row = collective.rows[collective.blocks.index(block)]
        pieces.append(Piece(TRANSFER, transfer, rows=(row, row + 1)))
    instruction, previous = walk.blocks[block]
    first, after, launch = walk.rows[block]
    segment = instruction.segment
    begun = walk.round.begun[segment] if segment >= 0 else NEVER
    sources = [*instruction.sources, *([] if previous is None else [previous])]
    latest = max(sources, key=lambda source: walk.round.ended[source], default=None)
    by_launch = begun + walk.state.numbers.ends[block]
    if by_launch > NEVER and by_launch >= ended - EQUAL_NS:
        ready = float(walk.state.work["ready"][launch])
        latency = min(ready, float(walk.state.graph.work["latency_ns"][launch]))
        until = int(walk.state.graph.work["point_ns"][launch])
        pieces += [
            Piece(WORK, walk.state.numbers.ends[block] - ready, rows=(launch, after)),
            Piece(ARRIVING, latency, rows=(launch, launch + 1)),
            Piece(HOST, ready - latency, segment, until),
        ]
        return pieces, segment, None
    pieces.append(Piece(WORK, walk.state.numbers.block[block], rows=(first, after)))
    return pieces, None, latest
