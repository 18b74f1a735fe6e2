"""Rows of a product that nothing reads."""

from __future__ import annotations

from typing import Any

import pytest

from eager import Eager
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules import discarded_rows

STEPS, TEXTS, WORDS, WIDE, VOCABULARY = 3, 4, 64, 32, 1000
HIDDEN, LOGITS, PICKED = [TEXTS, WORDS, WIDE], [TEXTS, WORDS, VOCABULARY], [TEXTS, VOCABULARY]
LAST = ("aten::slice", LOGITS), ("aten::select", LOGITS), ("aten::argmax", PICKED)
Ops = tuple[tuple[str, list[Any]], ...]


def program(*reads: tuple[str, list[Any]], learns: bool = True, sized: bool = True) -> RankView:
    """Steps whose last layer takes 400 µs, a change of type 100 and the layer's backward pass 800; of the
    logits some ops read something."""
    eager = Eager()
    node = {"sequence": 7} if learns else {}
    for _ in range(STEPS):
        eager.run("aten::relu", us=200, sequence=6 if learns else None)
        dims = [HIDDEN, [VOCABULARY, WIDE], []] if sized else None
        eager.run("aten::linear", "aten::mm", kernel="gemm", us=400, dims=dims, **node)
        eager.run("aten::to", us=100, dims=[LOGITS, []] if sized else None)
        for op, size in reads:
            eager.run(op, us=1, dims=[size, []] if sized else None)
        if learns:
            eager.backward("MmBackward0", "aten::mm", sequence=7, kernel="gemm", us=800)
            eager.backward("ReluBackward0", "aten::mul", sequence=6, us=200)
            eager.optimizer()
        eager.step()
    return eager.view()


@pytest.mark.parametrize(("learns", "us"), [(True, 400 + 100 + 2 + 800), (False, 400 + 100 + 2)])
def test_the_rows_of_words_that_are_not_the_last_go(learns: bool, us: float) -> None:
    (finding,) = discarded_rows.find(program(*LAST, learns=learns))
    assert finding.title == "aten::linear computes 256 rows of which 4 are read"
    assert finding.affected_us == pytest.approx(us)
    assert finding.saving.us == pytest.approx((1 - 1 / WORDS) * us, rel=0.05)


@pytest.mark.parametrize(
    "reads",
    [
        [("aten::_softmax_backward", LOGITS), *LAST],  # what reads all of it
        [*LAST, ("aten::cross_entropy_loss", LOGITS)],
        [("aten::slice", LOGITS), ("aten::reshape", [TEXTS, WORDS - 1, VOCABULARY])],  # all but the first
        [("aten::argmax", LOGITS)],
        [("aten::select", LOGITS), ("aten::sum", [TEXTS, WORDS])],  # a column
    ],
)
def test_rows_that_are_read_stay(reads: Ops) -> None:
    assert not list(discarded_rows.find(program(*reads)))


def test_without_sizes_nothing_is_known() -> None:
    assert not list(discarded_rows.find(program(*LAST, sized=False)))


def test_several_picks_are_counted_together() -> None:
    (finding,) = discarded_rows.find(program(*LAST, *LAST))
    assert finding.title.endswith("256 rows of which 8 are read")
