"""Clocks moved through a program, and how fast they run if the program is repeated for ever.

All that a program does to its clocks is adding and taking the latest: it is a linear map over (max, +). The
time that one round takes once it repeats is the map's eigenvalue, the largest mean weight of a circle of
clocks (Baccelli, Cohen, Olsder, Quadrat: Synchronization and Linearity, 1992); Karp (1978) says how it is
found.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

from msgspec import Struct

from kinetoscope.analysis.replay.graph import ReplayGraph, SyncPoint, WorkBlock

NEVER = float("-inf")
Weights = Sequence[Sequence[float]]


class Numbers(Struct, frozen=True):
    """The numbers of a graph, as recorded or after a change, in ns: by ``block`` its work with its pauses
    (D), and the latest end (``ends``) that its launches would have, from the start of their segment (M); by
    segment its length (``host``); by number of the collective its own time (``transfer``); and the calls
    (rank, row) that no longer wait (``free``)."""

    block: Sequence[float]
    ends: Sequence[float]
    host: Sequence[float]
    transfer: Sequence[float]
    free: frozenset[tuple[int, int]] = frozenset()


class Round(Struct, frozen=True):
    """One round: when each segment began and each block ended, when the blocks of collectives could have
    begun had no rank been waited for, and the clocks (threads, then streams) at the end."""

    begun: list[float]
    ended: list[float]
    arrived: dict[int, float]
    clocks: list[float]


def once(graph: ReplayGraph, numbers: Numbers, clocks: Sequence[float]) -> Round:
    threads = len(graph.first)
    begun = [NEVER] * len(graph.segments)
    for thread, segment in enumerate(graph.first):
        begun[segment] = clocks[thread]
    stream = list(clocks[threads:])
    ended = [NEVER] * len(numbers.block)
    arrived: dict[int, float] = {}
    work, ends, host = numbers.block, numbers.ends, numbers.host
    transfers = iter(numbers.transfer)
    for instruction in graph.program:
        if isinstance(instruction, WorkBlock):
            block, at, segment, sources = instruction
            clock = stream[at]
            for source in sources:
                if ended[source] > clock:
                    clock = ended[source]
            clock += work[block]
            if segment >= 0 and begun[segment] + ends[block] > clock:
                clock = begun[segment] + ends[block]
            stream[at] = ended[block] = clock
        elif isinstance(instruction, SyncPoint):
            segment, following, call, targets, tail, batch = instruction
            clock = begun[segment] + host[segment]
            if call not in numbers.free:
                clock += batch
                for target in targets:
                    if ended[target] > clock:
                        clock = ended[target]
            begun[following] = clock + tail
        else:
            transfer = next(transfers)
            together = max(ended[block] for block in instruction.blocks) + transfer
            for block, at in zip(instruction.blocks, instruction.streams, strict=True):
                arrived[block] = ended[block]
                stream[at] = ended[block] = together
    return Round(begun, ended, arrived, [begun[segment] for segment in graph.last] + stream)


def from_one(graph: ReplayGraph, numbers: Numbers, clock: int) -> Round:
    """One round that began with this clock alone: nothing else holds it up."""
    size = len(graph.first) + graph.streams
    return once(graph, numbers, [0.0 if other == clock else NEVER for other in range(size)])


def matrix(graph: ReplayGraph, numbers: Numbers) -> Weights:
    """``matrix[i][j]``: how much later clock i ends than clock j began."""
    size = len(graph.first) + graph.streams
    columns = [from_one(graph, numbers, clock).clocks for clock in range(size)]
    return [[column[row] for column in columns] for row in range(size)]


def growth(weights: Weights) -> float:
    """The largest mean weight of a circle (Karp); 0 where there is none."""
    size = len(weights)
    walks = [[0.0] * size]
    for _ in range(size):
        walks.append([max(map(add, row, walks[-1])) for row in weights])
    means = [
        min((walks[size][node] - walks[k][node]) / (size - k) for k in range(size) if walks[k][node] > NEVER)
        for node in range(size)
        if walks[size][node] > NEVER
    ]
    return max(means, default=0.0)


def circle(weights: Weights) -> list[int]:
    """The clocks of a circle whose mean weight is ``growth``, each after the one that it waits for."""
    size, mean = len(weights), growth(weights)
    # Longest walks between any two clocks (Floyd, Warshall), with the clock that each walk begins with.
    best = [[weight - mean for weight in row] for row in weights]
    via = [list(range(size)) for _ in range(size)]
    for middle in range(size):
        for own, through in zip(best, via, strict=True):
            if own[middle] > NEVER:
                for start, before in enumerate(best[middle]):
                    if own[middle] + before > own[start] + 1e-6:
                        own[start] = own[middle] + before
                        through[start] = through[middle]
    start = max(range(size), key=lambda clock: best[clock][clock], default=0)
    found = [start]
    while size and (before := via[found[-1]][start]) != start and len(found) <= size:
        found.append(before)
    return found[::-1]
