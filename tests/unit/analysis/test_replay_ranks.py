"""Ranks replayed together, against machines that meet in collectives and run event by event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traces
from kinetoscope.analysis.replay.change import ReplayChange, shorten, without_host
from kinetoscope.analysis.replay.engine import growth, matrix
from kinetoscope.analysis.replay.graph import NO_COLLECTIVES, RankSpans, ReplayGraph, build
from kinetoscope.analysis.replay.numbers import changed, recorded
from kinetoscope.analysis.replay.ranks import pace_ns
from kinetoscope.analysis.replay.replay import StepReplay
from kinetoscope.analysis.replay.spans import Spans, of_steps
from kinetoscope.trace.model import Trace
from replayed import CALL, LATENCY, Changes, Instruction, Launch, Machine, Run, Sync

EXAMPLES = settings(deadline=None, max_examples=5)
STEPS = 3


@dataclass(frozen=True)
class Meet:
    """A collective on stream 0: it begins when all ranks are there."""

    ns: int


Program = Sequence[Instruction | Meet]


class Rank(Machine):
    """A machine that stops before each collective: it yields when it is there."""

    def step(self, program: Program) -> Iterator[float]:
        for place, one in enumerate(program):
            if not isinstance(one, Meet):
                self._do(place, one)
                continue
            there = max(self.now + LATENCY, self.streams[0])
            yield there
            left = one.ns - self._changes.saved.get(place, 0.0)
            ended = self.met + left
            correlation = len(self.events) + 1
            name = f"ncclDevKernel_AllReduce {place}"
            self.events.append(
                traces.kernel(name, there / 1000, (ended - there) / 1000, correlation, stream=7)
            )
            self.streams[0] = ended
            self._call("cudaLaunchKernel", CALL)

    met = 0.0


def ran(
    programs: Sequence[Program], changes: Sequence[Changes], rounds: int
) -> tuple[list[Rank], list[float]]:
    """The ranks after so many rounds, and when the last of them was done with each."""
    ranks = [Rank(change) for change in changes]
    ends: list[float] = []
    for number in range(rounds):
        begun = [rank.now for rank in ranks]
        steps = [rank.step(program) for rank, program in zip(ranks, programs, strict=True)]
        while there := [at for step in steps if (at := next(step, None)) is not None]:
            for rank in ranks:
                rank.met = max(there)
        for rank, began in zip(ranks, begun, strict=True):
            rank.events.append(traces.step(number, began / 1000, (rank.now - began) / 1000))
        ends.append(max(rank.end_ns for rank in ranks))
    return ranks, ends


def a_round_ns(programs: Sequence[Program], changes: Sequence[Changes], rounds: int = 40) -> float:
    """What a round takes in the long run."""
    ends = ran(programs, changes, 2 * rounds)[1]
    return (ends[-1] - ends[rounds - 1]) / rounds


def recording(programs: Sequence[Program]) -> list[Trace]:
    ranks, _ = ran(programs, [Changes()] * len(programs), STEPS)
    return [traces.trace(*rank.events, rank=number) for number, rank in enumerate(ranks)]


def together(recorded: Sequence[Trace], programs: Sequence[Program]) -> tuple[ReplayGraph, Spans]:
    """The ranks' graph, and what of each is replayed."""
    within = [of_steps(trace, range(STEPS)) for trace in recorded]
    meetings: list[tuple[int, int, int, int]] = []
    for trace in recorded:
        places = place_of(trace)
        met = [row for row, place in enumerate(places) if isinstance(programs[trace.rank][place], Meet)]
        transfers = [one.ns for one in programs[trace.rank] if isinstance(one, Meet)] * STEPS
        meetings += [(n, trace.rank, row, transfers[n]) for n, row in enumerate(met)]
    table = pl.DataFrame(meetings, schema=NO_COLLECTIVES.schema, orient="row")
    parts = [RankSpans(trace, own) for trace, own in zip(recorded, within, strict=True)]
    return build(parts, table), within[0]


def place_of(trace: Trace) -> list[int]:
    """Of each device event the place of what launched it in its rank's program."""
    return [int(name.rsplit(" ", 1)[1]) for name in trace.device_events["name"].cast(pl.String)]


def as_change(trace: Trace, changes: Changes) -> ReplayChange:
    """The same changes in a trace's terms."""
    device, host = trace.device_events, trace.host_events
    saved = pl.Series([changes.saved.get(place, 0.0) for place in place_of(trace)], dtype=pl.Float64)
    change = shorten(device["id"], saved)
    for place, share in changes.shares.items():
        change |= without_host(host.filter(pl.col("name").cast(pl.String) == f"op {place}"), share)
    return change


def pieces() -> st.SearchStrategy[list[Instruction]]:
    one: st.SearchStrategy[Instruction] = st.one_of(
        st.builds(Run, st.just(1), st.integers(2_000, 60_000)),
        st.builds(Launch, st.just(0), st.integers(1_000, 80_000)),
        st.builds(Sync, st.just(True)),
    )
    return st.lists(one, max_size=4)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[Program], list[Changes]]:
    """Two or three ranks, each with its own ways into the same collectives, and what changes on each."""
    transfers = draw(st.lists(st.integers(5_000, 40_000), min_size=1, max_size=2))
    programs: list[Program] = []
    changes: list[Changes] = []
    for _ in range(draw(st.integers(2, 3))):
        program: list[Instruction | Meet] = []
        for ns in transfers:
            program += [Run(1, draw(st.integers(2_000, 90_000))), *draw(pieces()), Meet(ns)]
        program += [Run(1, 3_000), Launch(0, draw(st.integers(1_000, 50_000))), Sync(True)]
        share = st.sampled_from([0.0, 0.0, 0.5, 1.0])
        work = {n: draw(share) * one.ns for n, one in enumerate(program) if isinstance(one, Launch)}
        host = {n: draw(share) for n, one in enumerate(program) if isinstance(one, Run)}
        programs.append(program)
        changes.append(Changes(work, host))
    return programs, changes


@EXAMPLES
@given(jobs())
def test_a_job_takes_what_ranks_that_meet_need_a_round_in_the_long_run(
    drawn: tuple[list[Program], list[Changes]],
) -> None:
    programs, changes = drawn
    ranks = recording(programs)
    graph, within = together(ranks, programs)
    found = StepReplay(0, graph, within, ranks, repeats=True)
    made = {trace.rank: as_change(trace, own) for trace, own in zip(ranks, changes, strict=True)}
    ratio = found.after(made[0], made) / found.step_us
    expected = a_round_ns(programs, changes) / a_round_ns(programs, [Changes()] * len(programs))
    assert ratio == pytest.approx(expected, rel=1e-6)
    numbers = changed(recorded(graph), made).numbers
    assert pace_ns(graph, numbers) == pytest.approx(growth(matrix(graph, numbers)), abs=1)
