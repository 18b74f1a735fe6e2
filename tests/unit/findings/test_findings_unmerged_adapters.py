"""Low-rank adapters that are computed next to their layers."""

from __future__ import annotations

import pytest

from eager import Eager
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules import unmerged_adapters

STEPS, LAYERS, US = 3, 12, 5.0
ADAPTER = ("mm", "mm", "mul", "add")


def adapted(adapter: tuple[str, ...] = ADAPTER, layers: int = LAYERS, trains: bool = False) -> RankView:
    """Steps of a net whose layers have an adapter each, of such ops."""
    program = Eager()
    for _ in range(STEPS):
        for _ in range(layers):
            program.run("aten::linear", "aten::addmm", kernel="gemm")
            for op in adapter:
                around = ("aten::linear",) if op in ("mm", "addmm") else ()
                program.run(*around, f"aten::{op}", kernel="gemm" if around else "elementwise_kernel", us=US)
        if trains:
            program.optimizer()
        program.step()
    return program.view("module")


def test_adapters_that_could_be_part_of_the_weights() -> None:
    view = adapted()
    (finding,) = unmerged_adapters.find(view)
    assert finding.title == "12 adapters per step are computed next to their layers, each by four kernels"
    assert finding.affected_us == pytest.approx(LAYERS * len(ADAPTER) * US)
    # The host's time in the ops: what is between them stays, a tenth of what the adapters take.
    assert finding.saving.us == pytest.approx(0.9 * (view.step_us - adapted(()).step_us), rel=0.02)
    assert finding.saving.condition == "all that comes uses the same adapters"


@pytest.mark.parametrize(
    "view",
    [
        adapted(layers=3),
        adapted(trains=True),
        adapted(("mm", "gelu", "mm", "add")),  # a net of its own
        adapted(("addmm", "addmm", "mul", "add")),  # layers with bias
    ],
)
def test_what_is_no_adapter(view: RankView) -> None:
    assert not list(unmerged_adapters.find(view))
