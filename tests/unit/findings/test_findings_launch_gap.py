"""The host falls behind in most steps, or only in the first recorded one."""

from __future__ import annotations

import pytest

import traces
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules import launch_gap
from kinetoscope.sources.run import LoadedRun

STEP, KERNEL = 1000.0, 70.0


def view(late: list[bool], *others: traces.Event) -> RankView:
    """Steps of ten kernels each, launched ahead of the device; in the late ones, when it has run dry."""
    events: list[traces.Event] = [*others]
    for number, is_late in enumerate(late):
        began = STEP * number
        events.append(traces.step(number, began, STEP))
        for place in range(10):
            starts = began + 20 + 95 * place
            launch = starts - 8 if is_late else began + 2 + place
            correlation = 100 * number + place + 1
            events.append(traces.host("aten::mm", launch - 0.5, 1.5))
            events.append(traces.call("cudaLaunchKernel", launch, 0.8, correlation))
            length = KERNEL if is_late else 93.5 + 50 * (place == 9)
            events.append(traces.kernel("gemm", starts, length, correlation))
    trace = traces.trace(*events)
    return RankView(LoadedRun((trace,)), trace)


@pytest.mark.parametrize(
    ("late", "times"),
    [([True] * 4, 10), ([True, False, False, False], None), ([False, False, True, False], None)],
)
def test_a_gap_that_most_steps_do_not_have_is_an_accident(late: list[bool], times: int | None) -> None:
    found = list(launch_gap.find(view(late)))
    assert [one.title.split(" times")[0] for one in found] == ([] if times is None else [str(times)])


def test_a_first_step_with_far_more_than_the_others_is_left_out() -> None:
    seen = view([True, False, False, False])
    gaps = seen.gaps
    causes = gaps["cause"].value_counts().rows()
    assert {"between-kernels", "launch-bound"} <= dict(causes).keys()
    late, often = launch_gap._usual(seen, gaps.filter(gaps["cause"] == "launch-bound"))
    assert late.filter(late["start_ns"] < STEP * 1000).is_empty()
    assert often < launch_gap.LEAST_TIMES


def test_a_promise_says_whether_a_graph_is_part_of_it() -> None:
    """A step of training that waits in itself is in no graph as it is: its launches only come earlier."""
    trains = traces.host("Optimizer.step#SGD.step", 1995, 2)
    waits = traces.host("aten::item", 1990, 4), traces.call("cudaStreamSynchronize", 1991, 2, 9000)
    (whole,) = launch_gap.find(view([True] * 4))
    (waiting,) = launch_gap.find(view([True] * 4, trains, *waits))
    assert "in a CUDA graph" in whole.saving.basis
    assert "in a CUDA graph" not in waiting.saving.basis
    assert 0 < waiting.saving.us <= whole.saving.us
