"""Products with rows of zeros and a one."""

from __future__ import annotations

from typing import Any

import pytest

from eager import Eager
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules import one_hot_products

STEPS, ROWS, COLUMNS, WIDE = 3, 512, 20_000, 128
BANDWIDTH = 4.8e12  # of an H200, bytes/s
ITEMS, HOT, TABLE, FOUND = [ROWS], [ROWS, COLUMNS], [WIDE, COLUMNS], [ROWS, WIDE]
Op = tuple[str, list[Any], list[str]]
TO: Op = "aten::to", [HOT, []], ["", "6"]
LINEAR: Op = "aten::linear", [HOT, TABLE, []], ["", "", ""]
MATMUL: Op = "aten::matmul", [HOT, [COLUMNS, WIDE]], ["", ""]
ENCODED: list[Op] = [("aten::one_hot", [ITEMS, []], ["", str(COLUMNS)])]
WRITTEN: list[Op] = [
    ("aten::zeros", [[], []], [f"[{ROWS}, {COLUMNS}]", "6"]),
    ("aten::scatter_", [HOT, [], [ROWS, 1], []], ["", "1", "", "1"]),
]
LOGITS: Op = "aten::linear", [FOUND, [COLUMNS, WIDE], []], ["", "", ""]
TIMES = {"aten::one_hot": 300, "aten::zeros": 300, "aten::scatter_": 10, "aten::to": 600, "aten::linear": 200}


def program(*ops: Op, learns: bool = True, sized: bool = True) -> RankView:
    """Steps with these ops, of whose products the gradient takes 250 µs, after another op of 2 ms."""
    eager = Eager()
    for _ in range(STEPS):
        eager.run("aten::relu", us=2000)
        for number, (name, dims, values) in enumerate(ops):
            product = name in ("aten::linear", "aten::matmul")
            node: dict[str, Any] = {"sequence": 7 + number} if learns and product else {}
            kernel = {"kernel": "sm90_xmma_gemm"} if product else {}
            known: dict[str, Any] = {"dims": dims, "values": values} if sized else {}
            eager.run(name, *["aten::mm"] * product, us=TIMES.get(name, 200), **kernel, **known, **node)
        for number, (name, *_) in reversed(list(enumerate(ops))):
            if learns and name in ("aten::linear", "aten::matmul"):
                own = {"kernel": "sm90_xmma_gemm", "sequence": 7 + number}
                eager.backward("MmBackward0", "aten::mm", us=250, **own)
        eager.optimizer()
        eager.step()
    return eager.view()


def lookup_us(learns: bool) -> float:
    """The bytes of a lookup and of its gradient, and what they take beyond."""
    rows = 2 * ROWS * WIDE * 4
    backward = rows + 4 * COLUMNS * WIDE + 128 * ROWS
    return 3 + rows / BANDWIDTH * 1e6 + (100 + backward / BANDWIDTH * 1e6 if learns else 0)


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("made", [ENCODED, WRITTEN])
def test_a_lookup_takes_the_place_of_a_product(made: list[Op], learns: bool) -> None:
    (finding,) = one_hot_products.find(program(*made, TO, LINEAR, learns=learns))
    assert (
        finding.title == "512 rows of zeros and a one are multiplied by a table of 20,000 rows (aten::linear)"
    )
    us = sum(TIMES[name] for name, *_ in (*made, TO, LINEAR)) + 250 * learns
    assert finding.affected_us == pytest.approx(us)
    assert finding.saving.us == pytest.approx(us - lookup_us(learns), rel=0.02)


@pytest.mark.parametrize(
    ("rows", "learns", "stays"), [(ROWS, True, False), (ROWS - 1, True, True), (ROWS - 1, False, False)]
)
def test_sorting_many_rows_for_their_gradient_takes_the_host_as_much_time(
    monkeypatch: pytest.MonkeyPatch, rows: int, learns: bool, stays: bool
) -> None:
    """On an H200 4,096 rows of 20,000, whose products go, made steps that wait for the host no shorter."""
    monkeypatch.setattr(one_hot_products, "ONE_KERNEL", rows)
    (finding,) = one_hot_products.find(program(*ENCODED, TO, LINEAR, learns=learns))
    assert finding.saving.change is not None
    assert finding.saving.change.host.is_empty() == stays


def test_what_else_gets_the_rows_keeps_them() -> None:
    mean: Op = "aten::mean", [HOT, []], ["", "0"]
    (finding,) = one_hot_products.find(program(*ENCODED, TO, MATMUL, mean))
    assert finding.affected_us == pytest.approx(200 + 250)


def test_logits_of_the_size_of_the_rows_are_others() -> None:
    loss: Op = "aten::cross_entropy_loss", [HOT, ITEMS], ["", ""]
    (finding,) = one_hot_products.find(program(*ENCODED, TO, LINEAR, LOGITS, loss))
    assert finding.affected_us == pytest.approx(300 + 600 + 200 + 250)


def test_two_products_with_the_same_rows_both_go() -> None:
    (finding,) = one_hot_products.find(program(*ENCODED, TO, LINEAR, MATMUL))
    assert finding.affected_us == pytest.approx(300 + 600 + 2 * (200 + 250))
    assert finding.title.endswith("(aten::linear, aten::matmul)")


@pytest.mark.parametrize(
    "ops",
    [
        [*ENCODED, TO, LOGITS, ("aten::mul", [HOT, HOT], ["", ""])],  # the target of a loss
        [*ENCODED, TO, ("aten::cross_entropy_loss", [HOT, HOT], ["", ""])],
        [*ENCODED, ("aten::mul", [HOT, HOT], ["", ""]), LINEAR],  # a mask
        [
            *ENCODED,
            TO,
            ("aten::matmul", [[WIDE, ROWS], HOT], ["", ""]),
        ],  # which adds up, and looks nothing up
        [WRITTEN[1], TO, LINEAR],  # into what holds something
        [WRITTEN[0], ("aten::scatter_", [HOT, [], [ROWS, 1], []], ["", "1", "", "2"]), LINEAR],
        [
            WRITTEN[0],
            ("aten::scatter_", [HOT, [], [ROWS, 3], []], ["", "1", "", "1"]),
            LINEAR,
        ],  # several ones
        # One column alone, and some rows alone.
        [WRITTEN[0], ("aten::scatter_", [HOT, [], [ROWS, 1], []], ["", "0", "", "1"]), LINEAR],
        [WRITTEN[0], ("aten::scatter_", [HOT, [], [ROWS - 1, 1], []], ["", "1", "", "1"]), LINEAR],
        [("aten::one_hot", [ITEMS, []], ["", "32"]), ("aten::linear", [[ROWS, 32], [WIDE, 32], []], [])],
    ],
)
def test_no_lookup_would_do(ops: list[Op]) -> None:
    assert not list(one_hot_products.find(program(*ops)))


def test_without_sizes_nothing_is_known() -> None:
    assert not list(one_hot_products.find(program(*ENCODED, TO, LINEAR, sized=False)))
