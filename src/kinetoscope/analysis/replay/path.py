"""The critical path: of all that a step consists of, what its time is the sum of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.replay.engine import NEVER, Round, circle, from_one, matrix, once
from kinetoscope.analysis.replay.graph import Block, Joint, Meeting
from kinetoscope.analysis.replay.numbers import State

# Sums of some thousand doubles of nanoseconds agree to this.
EQUAL_NS = 0.5

HOST, ARRIVING, WORK, RETURN, TRANSFER, STARTING = (
    "host", "arriving", "work", "return", "transfer", "starting",
)  # fmt: skip


class Piece(NamedTuple):
    """A stretch of the path, ``ns`` long: host time of a stretch between its start and an instant of the
    recording (``until``), or what happened to rows of the graph's ``work``.
    """

    sort: str
    ns: float
    stretch: int = -1
    until: int = 0
    rows: tuple[int, int] = (0, 0)  # from, and up to but not including
    call: tuple[int, int] | None = None


@dataclass(frozen=True)
class _Walk:
    """What is needed to go back through one round."""

    state: State
    round: Round
    blocks: dict[int, tuple[Block, int | None]]  # with the block before it on its stream
    joints: dict[int, Joint]  # by the stretch that follows
    meetings: dict[int, tuple[Meeting, float]]
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
    joints: dict[int, Joint] = {}
    meetings: dict[int, tuple[Meeting, float]] = {}
    newest: dict[int, int] = {}
    transfers = iter(state.numbers.transfer)
    for instruction in state.graph.program:
        if isinstance(instruction, Block):
            blocks[instruction.block] = instruction, newest.get(instruction.stream)
            newest[instruction.stream] = instruction.block
        elif isinstance(instruction, Joint):
            joints[instruction.following] = instruction
        else:
            meetings |= dict.fromkeys(instruction.blocks, (instruction, next(transfers)))
    cost = pl.col("pause_ns") + pl.col("work_ns")
    late = pl.col("ready") + pl.col("work_ns") - cost.cum_sum()
    # Of launches that hold a block up as long as each other the last.
    each = state.work.group_by("block", maintain_order=True).agg(pl.len(), back=late.reverse().arg_max())
    rows = {
        block: (end - count, end, end - 1 - (count - 1 if back is None else back))
        for (block, count, back), end in zip(each.iter_rows(), each["len"].cum_sum(), strict=True)
    }
    return _Walk(state, done, blocks, joints, meetings, rows)


def _back(walk: _Walk, clock: int) -> Iterator[Piece]:
    """The pieces of the path to a clock's end, last first."""
    strands = len(walk.state.graph.first)
    stretch: int | None = None
    block: int | None = None
    if clock < strands:
        stretch = walk.state.graph.last[clock]
    else:
        own = [b.block for b, _ in walk.blocks.values() if b.stream == clock - strands]
        block = own[-1] if own else None
    while stretch is not None or block is not None:
        if stretch is not None:
            pieces, stretch, block = _before_stretch(walk, stretch)
        else:
            pieces, stretch, block = _before_block(walk, block or 0)
        yield from pieces


Step = tuple[list[Piece], int | None, int | None]


def _before_stretch(walk: _Walk, stretch: int) -> Step:
    """What a stretch's beginning came from: the stretch before it, or work that its call waited for."""
    joint = walk.joints.get(stretch)
    if joint is None:
        return [], None, None
    ended, length = walk.round.ended, walk.state.numbers.host[joint.stretch]
    pieces = [Piece(RETURN, joint.tail_ns, call=joint.call)] if joint.tail_ns else []
    latest = max(joint.targets, key=lambda block: ended[block], default=None)
    if (
        latest is not None
        and joint.call not in walk.state.numbers.free
        and ended[latest] > walk.round.begun[joint.stretch] + length
    ):
        return pieces, None, latest
    until = int(walk.state.graph.stretches["end_ns"][joint.stretch])
    return [*pieces, Piece(HOST, length, joint.stretch, until)], joint.stretch, None


def _before_block(walk: _Walk, block: int) -> Step:
    """What a block's end came from: its launches, the work before it on its stream, or on another."""
    pieces: list[Piece] = []
    ended = walk.round.ended[block]
    if block in walk.meetings:
        meeting, transfer = walk.meetings[block]
        block = max(meeting.blocks, key=lambda other: walk.round.arrived[other])
        ended = walk.round.arrived[block]
        row = meeting.rows[meeting.blocks.index(block)]
        pieces.append(Piece(TRANSFER, transfer, rows=(row, row + 1)))
    instruction, previous = walk.blocks[block]
    first, after, launch = walk.rows[block]
    stretch = instruction.stretch
    begun = walk.round.begun[stretch] if stretch >= 0 else NEVER
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
            Piece(HOST, ready - latency, stretch, until),
        ]
        return pieces, stretch, None
    pieces.append(Piece(WORK, walk.state.numbers.block[block], rows=(first, after)))
    return pieces, None, latest
