"""Runs of eager kernels that one kernel could do."""

from __future__ import annotations

import polars as pl
import pytest

from kinetoscope.analysis.kernels.chains import elementwise_chains, period


@pytest.mark.parametrize(
    ("names", "expected"), [("abab", 2), ("abcabc", 3), ("aaaa", 2), ("abc", 3), ("abca", 4), ("ab", 2)]
)
def test_a_repeated_chain_has_a_period(names: str, expected: int) -> None:
    assert period(tuple(names)) == expected


def work(*categories: str) -> pl.DataFrame:
    """Kernels of 10 µs after each other on one stream, each of another name."""
    rows = range(len(categories))
    return pl.DataFrame(
        {
            "id": rows,
            "event": rows,
            "kind": "kernel",
            "name": [f"k{row}" for row in rows],
            "category": categories,
            "device": 0,
            "stream": 7,
            "start_ns": [row * 10_000 for row in rows],
            "duration_ns": 10_000,
            "op": rows,
            "op_name": [f"aten::op{row}" for row in rows],
            "step": 0,
        }
    ).cast({"name": pl.Categorical, "category": pl.Categorical, "op_name": pl.Categorical})


def test_a_chain_shrinks_to_its_longest_kernel() -> None:
    table = work("elementwise", "copy", "random")
    chains = elementwise_chains(table, table)
    assert chains["chain"].n_unique() == 1
    assert chains["saved_ns"].sum() == pytest.approx(20_000)
    table = table.with_columns(pl.Series("duration_ns", [5_000, 30_000, 8_000]))
    assert elementwise_chains(table, table)["saved_ns"].to_list() == [5_000, 0, 8_000]


def test_other_work_between_breaks_a_chain() -> None:
    table = work("elementwise", "elementwise", "matmul", "elementwise", "elementwise")
    assert elementwise_chains(table, table).is_empty()


def test_what_is_no_candidate_breaks_a_chain_too() -> None:
    table = work(*["elementwise"] * 6)
    assert len(elementwise_chains(table, table.filter(pl.col("id") != 2))) == 3


def test_a_reduction_ends_a_chain_and_reads_what_is_not_written_any_more() -> None:
    table = work("elementwise", "reduction", "elementwise", "elementwise", "elementwise")
    table = table.with_columns(pl.Series("duration_ns", [26_000, 12_000, 5_000, 5_000, 5_000]))
    chains = elementwise_chains(table, table)
    assert chains.group_by("chain", maintain_order=True).len()["len"].to_list() == [2, 3]
    assert chains.head(2)["saved_ns"].sum() == pytest.approx(24_000)
    # A kernel as long after it may read the same.
    again = table.with_columns(pl.Series("duration_ns", [26_000, 12_000, 12_000, 5_000, 5_000]))
    assert elementwise_chains(again, again).head(2)["saved_ns"].sum() == pytest.approx(12_000)


def test_a_chain_before_a_reduction_costs_what_it_reads_from_outside() -> None:
    # A tensor passes in 10 µs: x[:, None] + y, a product times 2, their difference, its minimum. From outside
    # only the product is as large.
    table = work("elementwise", "elementwise", "elementwise", "reduction")
    tensors = {"written": [1, 1, 1, 0], "read": [0, 1, 2, 1]}
    took = [10_000 * sum(each) for each in zip(*tensors.values(), strict=True)]
    table = table.with_columns(pl.Series("duration_ns", took))
    assert elementwise_chains(table, table)["saved_ns"].sum() == pytest.approx(sum(took) - 10_000)
    # So it is where two reductions read it: each computes it anew.
    twice = pl.concat([table, table.tail(1).with_columns(pl.col("id", "event", "op") + 1)])
    assert elementwise_chains(twice, twice)["saved_ns"].sum() == pytest.approx(sum(took) - 10_000)
    # Where two more tensors are read from outside, they are.
    more = table.with_columns(pl.Series("duration_ns", [30_000, 20_000, 30_000, 10_000]))
    assert elementwise_chains(more, more)["saved_ns"].sum() == pytest.approx(90_000 - 30_000)


def test_a_softmax_ends_a_chain_and_filling_does_not_break_it() -> None:
    table = work("elementwise", "elementwise", "elementwise", "softmax").with_columns(
        pl.Series("name", ["k0", "FillFunctor", "k2", "k3"], pl.Categorical),
        pl.Series("duration_ns", [10_000, 5_000, 10_000, 30_000]),
        pl.Series("op_name", ["aten::mul", "aten::fill_", "aten::where", "aten::_softmax"], pl.Categorical),
    )
    chains = elementwise_chains(table, table)
    assert chains.select("id", "saved_ns").rows() == [(0, 10_000), (2, 10_000), (3, 0)]


def test_of_what_a_chain_gathers_the_reading_remains() -> None:
    table = work("embedding", "elementwise", "elementwise", "elementwise")
    ops = ["aten::gather", "aten::mul", "aten::add", "aten::neg"]
    table = table.with_columns(pl.Series("op_name", ops, pl.Categorical))
    assert elementwise_chains(table, table)["saved_ns"].to_list() == [5_000, 0, 10_000, 10_000]
    # Lookups alone are no chain.
    assert elementwise_chains(table.head(3), table.head(3)).is_empty()


def test_a_reduction_too_short_to_have_read_it_is_none_of_a_chain() -> None:
    table = work("elementwise", "reduction").with_columns(pl.Series("duration_ns", [40_000, 7_000]))
    assert elementwise_chains(table, table).is_empty()
    alone = work("matmul", "reduction", "elementwise")
    assert elementwise_chains(alone, alone).is_empty()
