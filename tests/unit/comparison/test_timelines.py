"""Two steps drawn one above the other, by the step's begin and by the calls of graphs that both make."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from kinetoscope.comparison.account import account
from kinetoscope.comparison.timelines import CallEdge, DrawnWork, _aligned, timelines  # pyright: ignore[reportPrivateUsage]
from kinetoscope.sources.run import load

BREAKS = Path(__file__).parents[2] / "fixtures" / "h200_breaks"


@cache
def drawn() -> tuple[list[DrawnWork], list[DrawnWork]]:
    """Three graphs with eager code between, as kernels and as CUDA graphs that first copy their inputs."""
    accounts = [account(load(BREAKS / f"{name}.json.gz")) for name in ("breaks", "breaks-graphs")]
    assert accounts[0] is not None
    assert accounts[1] is not None
    return timelines(accounts[0], accounts[1])


def test_calls_that_both_make_begin_and_end_at_one_place() -> None:
    firsts: list[dict[str | None, float]] = []
    ends: list[dict[str | None, float]] = []
    for side in drawn():
        first: dict[str | None, float] = {}
        end: dict[str | None, float] = {}
        for piece in side:
            assert piece.aligned_us is not None
            first.setdefault(piece.call, piece.aligned_us)
            end[piece.call] = piece.aligned_us + piece.duration_us
        firsts.append(first)
        ends.append(end)
    calls = [f"{number}/0 inference, call 1" for number in range(3)]
    assert list(firsts[0]) == [calls[0], calls[1], None, calls[2]]
    assert firsts[0] == pytest.approx(firsts[1])
    for before, after in pairwise(calls):  # the next waits for the slower of the two
        assert firsts[0][after] >= max(side[before] for side in ends)


def test_within_a_call_nothing_moves_and_nothing_is_drawn_earlier() -> None:
    for side in drawn():
        for one, other in pairwise(side):
            assert one.aligned_us is not None
            assert other.aligned_us is not None
            assert other.aligned_us >= other.start_us - 1e-6
            apart = other.start_us - one.start_us
            assert other.aligned_us - one.aligned_us >= apart - 1e-6
            if one.call == other.call:
                assert other.aligned_us - one.aligned_us == pytest.approx(apart)


def test_calls_that_one_timeline_alone_has_are_passed_over() -> None:
    a, b, c = (("a", False), ("b", False), ("c", False))
    base = [CallEdge(5.0, a), CallEdge(7.0, b), CallEdge(20.0, c)]
    new = [CallEdge(2.0, a), CallEdge(30.0, c)]
    assert _aligned(base, new) == ([(5.0, 0.0), (20.0, 13.0)], [(2.0, 3.0), (30.0, 3.0)])
    assert _aligned(base, [CallEdge(1.0, ("d", False))]) == ([], [])
