"""Launches of two steps matched: each has exactly one place, and the plain cases come out as one says."""

from __future__ import annotations

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.comparison import matching
from kinetoscope.comparison.matching import Pair, Unmatched, match

Launch = tuple[str, str, str]  # op, kernel, shape


def table(*launches: Launch) -> pl.DataFrame:
    return pl.DataFrame(launches, dict.fromkeys(("op_name", "name", "shape"), pl.String), orient="row")


LAUNCHES = st.lists(
    st.tuples(st.sampled_from(["mm", "add"]), st.sampled_from("abc"), st.sampled_from("12")), max_size=12
)


@settings(deadline=None, max_examples=50)
@given(LAUNCHES, LAUNCHES)
def test_every_launch_is_in_one_pair_or_block(base: list[Launch], new: list[Launch]) -> None:
    pairs, blocks = match(table(*base), table(*new))
    assert sorted([pair.base for pair in pairs] + [row for b in blocks for row in b.base]) == [
        *range(len(base))
    ]
    assert sorted([pair.new for pair in pairs] + [row for b in blocks for row in b.new]) == [*range(len(new))]
    assert all(base[pair.base][1] == new[pair.new][1] for pair in pairs)
    assert all(block.base or block.new for block in blocks)


@settings(deadline=None, max_examples=50)
@given(LAUNCHES)
def test_a_step_matches_itself_in_place(launches: list[Launch]) -> None:
    pairs, blocks = match(table(*launches), table(*launches))
    assert sorted(pairs, key=lambda pair: pair.base) == [Pair(row, row) for row in range(len(launches))]
    assert not blocks


def test_another_kernel_for_the_same_op_replaces_it() -> None:
    base = table(("mm", "cutlass", "8"), ("add", "plus", "8"))
    new = table(("mm", "memset", "8"), ("mm", "nvjet", "8"), ("add", "plus", "8"))
    assert match(base, new) == ([Pair(1, 2)], [Unmatched((0,), (0, 1))])


def test_a_chain_between_the_same_products_becomes_one_kernel() -> None:
    chain = [("mul", "k1", ""), ("tanh", "k2", ""), ("add", "k3", "")]
    base = table(("mm", "gemm", "1"), *chain, ("mm", "gemm", "2"))
    new = table(("mm", "gemm", "1"), ("triton_0", "triton_0", ""), ("mm", "gemm", "2"))
    assert match(base, new) == ([Pair(0, 0), Pair(4, 2)], [Unmatched((1, 2, 3), (1,))])


def test_what_only_moved_is_the_same() -> None:
    base = table(("copy", "c", "1"), ("mm", "a", "1"), ("mm", "b", "1"))
    new = table(("mm", "a", "1"), ("mm", "b", "1"), ("copy", "c", "1"))
    pairs, blocks = match(base, new)
    assert Pair(0, 2) in pairs
    assert not blocks


def test_very_long_steps_keep_the_order(monkeypatch) -> None:
    monkeypatch.setattr(matching, "MOST_PAIRS", 1)
    base = table(("mm", "a", "1"), ("mm", "b", "1"), ("mm", "a", "1"))
    new = table(("mm", "b", "1"), ("mm", "a", "1"), ("mm", "a", "1"))
    pairs, _ = match(base, new)
    assert all(base.row(pair.base) == new.row(pair.new) for pair in pairs)
    assert len(pairs) == 3
