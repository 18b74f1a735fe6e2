"""Rows of a product that nothing reads."""

from __future__ import annotations

from typing import Any

import pytest

from eager import Eager
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules import discarded_rows

STEPS, TEXTS, WORDS, WIDE, VOCABULARY = 3, 4, 64, 32, 1000
HIDDEN, LOGITS, PICKED = [TEXTS, WORDS, WIDE], [TEXTS, WORDS, VOCABULARY], [TEXTS, VOCABULARY]
ALL = ["", "0", "0", "9223372036854775807", "1"]
LAST = ("aten::slice", LOGITS, ALL), ("aten::select", LOGITS, ["", "1", "-1"]), ("aten::argmax", PICKED)
INDEXED = ("aten::index", LOGITS), ("aten::argmax", PICKED)
Op = tuple[str, list[Any]] | tuple[str, list[Any], list[str]]


def part(begins: int, ends: int) -> list[Op]:
    """Words from one to another of all texts are read."""
    picked = [TEXTS, ends - begins, VOCABULARY]
    return [("aten::slice", LOGITS, ["", "1", str(begins), str(ends), "1"]), ("aten::sum", picked)]


def program(*reads: Op, learns: bool = True, sized: bool = True) -> RankView:
    """Steps whose last layer takes 400 µs, a change of type 100 and the layer's backward pass 800; of the
    logits some ops read something."""
    eager = Eager()
    node = {"sequence": 7} if learns else {}
    for _ in range(STEPS):
        eager.run("aten::relu", us=200, sequence=6 if learns else None)
        dims = [HIDDEN, [VOCABULARY, WIDE], []] if sized else None
        eager.run("aten::linear", "aten::mm", kernel="gemm", us=400, dims=dims, **node)
        eager.run("aten::to", us=100, dims=[LOGITS, []] if sized else None)
        for op, size, *values in reads:
            known = values[0] if values else None
            eager.run(op, us=1, dims=[size, []] if sized else None, values=known)
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
        part(1, WORDS),
        [one for begins in range(0, WORDS, 16) for one in part(begins, begins + 16)],
        [*(part(begins, begins + 16)[0] for begins in range(0, WORDS, 16)), part(0, 16)[1]],  # all at first
        [("aten::argmax", LOGITS)],
        [("aten::softmax", LOGITS), *LAST],  # it may be over all words of a text
        [("aten::select", LOGITS, ["", "2", "7"]), ("aten::sum", [TEXTS, WORDS])],  # a column
        [("aten::select", LOGITS), ("aten::argmax", PICKED)],  # which row is not recorded
    ],
)
def test_rows_that_are_read_stay(reads: list[Op]) -> None:
    assert not list(discarded_rows.find(program(*reads)))


def test_without_sizes_nothing_is_known() -> None:
    assert not list(discarded_rows.find(program(*LAST, sized=False)))


@pytest.mark.parametrize(("reads", "rows"), [((*LAST, *LAST), 8), (INDEXED, 4), (part(0, 16), 64)])
def test_picks_are_counted_together(reads: tuple[Op, ...], rows: int) -> None:
    (finding,) = discarded_rows.find(program(*reads))
    assert finding.title.endswith(f"256 rows of which {rows} are read")
