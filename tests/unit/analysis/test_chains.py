"""Runs of eager kernels that one kernel could do."""

from __future__ import annotations

from itertools import product

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


def named(*kernels: tuple[str, float]) -> pl.DataFrame:
    """Kernels after each other: the op that launched each, and its time in µs."""
    categories = {"sum": "reduction", "mean": "reduction", "copy_": "copy", "mm": "matmul"}
    ops = pl.Series([f"aten::{op}" for op, _ in kernels], dtype=pl.Categorical)
    times = pl.Series([round(1000 * us) for _, us in kernels])
    names = [f"{'FillFunctor' if op == 'fill_' else 'k'}{row}" for row, (op, _) in enumerate(kernels)]
    return work(*(categories.get(op, "elementwise") for op, _ in kernels)).with_columns(
        ops.alias("op_name"),
        times.alias("duration_ns"),
        (times.cum_sum() - times).alias("start_ns"),
        pl.Series("name", names, pl.Categorical),
    )


def test_filling_does_not_break_a_chain_and_a_softmax_at_its_end_reads_and_writes() -> None:
    table = named(("mul", 10), ("fill_", 5), ("where", 10), ("_softmax", 30))
    chains = elementwise_chains(table, table)
    assert chains.select("id", "saved_ns").rows() == [(0, 10_000), (2, 10_000), (3, 0)]


@pytest.mark.parametrize("reduced", [False, True])
def test_a_chain_through_softmaxes_costs_between_what_it_reads_once_and_what_it_reads_in_every_pass(
    reduced: bool,
) -> None:
    # A tensor is read, or written, in 10 µs: so long does a reduction take, and twice that each other kernel.
    for middle in (one for length in range(1, 6) for one in product(("mul", "_softmax"), repeat=length)):
        softmaxes = middle.count("_softmax")
        if not softmaxes or len(middle) + reduced < 2:
            continue
        table = named(*((op, 20) for op in middle), *[("sum", 10)] * reduced)
        chains = elementwise_chains(table, table)
        # Where its names repeat it may be three calls of one function: each reads and writes.
        calls, written = chains["chain"].n_unique(), 0 if reduced else 10
        left = (table["duration_ns"].sum() - chains["saved_ns"].sum()) / 1000
        assert 10 + written <= left, middle
        if calls == 1:
            # Each softmax has a pass of its own, which finds the sum of a row, and the last pass writes.
            assert left <= max(20, 10 * (softmaxes + 1) + written), middle


# An H200, torch 2.11: the times of the ops of a forward and a backward pass, µs, and of the kernels that
# Inductor made of them.
MEASURED = {
    "entropy of 8192 x 32000 in bfloat16": (
        "copy_ 745, _log_softmax 823, exp 490, mul 719, sum 250, mean 4, mul 773, mul 775, mul 719, "
        "add_ 719, _log_softmax_backward_data 1076, copy_ 357",
        651 + 398,
    ),
    "entropy of 65536 x 1000 in float32": (
        "_log_softmax 125, exp 124, mul 182, sum 78, mean 14, mul 199, mul 202, mul 180, add_ 182, "
        "_log_softmax_backward_data 183",
        89 + 121,
    ),
    "distances of 8192 x 8192 chances": (
        "div 127, _log_softmax 127, div 126, _softmax 128, mul 185, xlogy 126, sub 186, sum 73, neg 159, "
        "mul 187, _log_softmax_backward_data 190, div 125",
        239 + 207,
    ),
    "distances of 12288 x 32000 chances, and cross entropy": (
        "copy_ 1122, copy_ 1121, _log_softmax 1230, nll_loss_forward 20, div 735, _log_softmax 1232, "
        "div 737, _softmax 1224, mul 1080, xlogy 731, sub 1079, sum 367, neg 926, mul 1081, "
        "_log_softmax_backward_data 1607, div 731, fill_ 336, nll_loss_backward 12, "
        "_log_softmax_backward_data 1605, add_ 1079, copy_ 540",
        2399 + 1370,
    ),
    "attention of 192 x 1024 x 1024 in bfloat16": (
        "mul 189, add 491, copy_ 572, _softmax 415, copy_ 277, mm 400, copy_ 574, mul 554, "
        "_softmax_backward_data 553, copy_ 276, mul 188",
        211 + 400 + 279,
    ),
    "cross entropy of 8192 x 32000 in bfloat16": (
        "copy_ 746, _log_softmax 821, nll_loss_forward 19, fill_ 223, nll_loss_backward 11, "
        "_log_softmax_backward_data 1076, copy_ 358",
        367 + 10 + 326,
    ),
}


@pytest.mark.parametrize("name", MEASURED)
def test_what_a_compiler_made_of_chains_through_softmaxes_was_promised(name: str) -> None:
    text, compiled_us = MEASURED[name]
    kernels = [(op, float(us)) for op, us in (one.split() for one in text.split(", "))]
    table = named(*kernels)
    promised_us = elementwise_chains(table, table)["saved_ns"].sum() / 1000
    saved_us = sum(us for _, us in kernels) - compiled_us
    assert 0.9 < saved_us / promised_us < 1.4


def test_what_is_too_short_to_have_read_a_softmax_is_none_of_its_chain() -> None:
    table = named(("_softmax", 100), ("mul", 12))
    assert elementwise_chains(table, table).is_empty()
    loss = named(("_log_softmax", 100), ("nll_loss_forward", 2), ("_log_softmax_backward_data", 120))
    assert elementwise_chains(loss, loss)["saved_ns"].to_list() == [50_000, 1_000, 0]


def test_of_what_a_chain_gathers_the_reading_remains() -> None:
    table = work("embedding", "elementwise", "elementwise", "elementwise")
    ops = ["aten::gather", "aten::mul", "aten::add", "aten::neg"]
    table = table.with_columns(pl.Series("op_name", ops, pl.Categorical))
    assert elementwise_chains(table, table)["saved_ns"].to_list() == [5_000, 0, 10_000, 10_000]
    # Lookups alone are no chain.
    assert elementwise_chains(table.head(3), table.head(3)).is_empty()


def test_interpolating_is_a_lookup_and_its_backward_no_elementwise_work() -> None:
    forward = named(("upsample_bilinear2d", 10), ("mul", 10), ("add", 10), ("neg", 10))
    assert elementwise_chains(forward, forward)["saved_ns"].to_list() == [5_000, 0, 10_000, 10_000]
    backward = named(("mul", 10), ("neg", 10), ("upsample_bilinear2d_backward", 40), ("mul", 10))
    assert elementwise_chains(backward, backward).is_empty()


def test_a_reduction_too_short_to_have_read_it_is_none_of_a_chain() -> None:
    table = work("elementwise", "reduction").with_columns(pl.Series("duration_ns", [40_000, 7_000]))
    assert elementwise_chains(table, table).is_empty()
    alone = work("matmul", "reduction", "elementwise")
    assert elementwise_chains(alone, alone).is_empty()
