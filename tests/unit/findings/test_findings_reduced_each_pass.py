"""Gradients that ranks reduce after each accumulated batch."""

from __future__ import annotations

import pytest

from eager import Eager
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules import reduced_each_pass

STEPS, OPS, REDUCES_US = 3, 5, 1000


def accumulating(batches: int, reducing: range, updates: bool = False) -> RankView:
    """Steps that go forward and backward through some batches, each of which ``reducing`` names is reduced at
    the end of its backward pass; the optimizer steps after all of them, or after each (``updates``)."""
    program = Eager()
    for _ in range(STEPS):
        for batch in range(batches):
            first = program.number + 1
            for _ in range(OPS):
                program.run("aten::mul", sequence=program.number + 1)
            for sequence in reversed(range(first, first + OPS)):
                program.backward("MulBackward0", "aten::mul", sequence=sequence)
            if batch in reducing:
                program.backward(
                    "MulBackward0", "c10d::allreduce_", sequence=first, kernel="ncclDevKernel_AllReduce",
                    us=REDUCES_US,
                )  # fmt: skip
            if updates or batch == batches - 1:
                program.optimizer()
        program.step()
    return program.view()


def test_all_but_the_last_reduction_are_saved() -> None:
    view, once = (accumulating(4, reducing) for reducing in (range(4), range(3, 4)))
    (finding,) = reduced_each_pass.find(view)
    assert finding.title == (
        "Gradients of 4 batches are accumulated for an optimizer step, and ranks reduce them 4 times: "
        "3.00 ms per step for nothing"
    )
    assert finding.affected_us == pytest.approx(3 * REDUCES_US)
    assert finding.saving.us == pytest.approx(view.step_us - once.step_us, rel=0.1)


@pytest.mark.parametrize(
    "view",
    [
        accumulating(4, range(3, 4)),  # as no_sync() does it
        accumulating(1, range(1)),
        accumulating(4, range(4), updates=True),  # each is needed
        accumulating(4, range(0)),
    ],
)
def test_reductions_that_are_needed(view: RankView) -> None:
    assert not list(reduced_each_pass.find(view))
