"""The steps of two runs, aligned: the step itself, and the calls of graphs that both make."""

from __future__ import annotations

from kinetoscope.analysis.run import Run
from kinetoscope.comparison.account import account
from kinetoscope.comparison.timelines import Alignment, timelines
from traces import Event, call, host, kernel, step, trace


def graph(compile_id: str, begin: float, number: int, *works: tuple[float, float]) -> list[Event]:
    """A compiled region that launches kernels with these (start, duration)."""
    calls = [
        [call("cudaLaunchKernel", begin + 2 + i, 0.5, number + i), kernel(f"k{number}", *work, number + i)]
        for i, work in enumerate(works)
    ]
    return [
        host(f"Torch-Compiled Region: {compile_id}", begin, 20),
        host(f"## Call CompiledFxGraph f{number} ##", begin + 1, 18, "user_annotation"),
        *(event for pair in calls for event in pair),
    ]


def drawn(base: list[Event], new: list[Event]) -> tuple[Alignment, ...]:
    before, after = (account(Run((trace(step(1, 1000, 400), *events),))) for events in (base, new))
    assert before is not None
    assert after is not None
    return timelines(before, after).alignments


EAGER = [call("cudaLaunchKernel", 1005, 2, 90), kernel("eager", 1010, 30, 90)]


def test_graphs_that_both_call_are_aligned_and_what_only_one_calls_is_not() -> None:
    base = [*EAGER, *graph("0/0", 1100, 10, (1120, 10), (1140, 5)), *graph("1/0", 1200, 20, (1230, 7))]
    added = graph("5/0", 1040, 30, (1060, 9))
    new = [*added, *graph("0/0", 1100, 40, (1150, 10)), *graph("1/0", 1200, 50, (1220, 4), (1250, 20))]
    assert drawn(base, new) == (
        Alignment("step", "step", (0, 0), (227, 210), (4, 4)),
        Alignment("graph", "0/0 inference", (110, 90), (25, 10), (2, 1)),
        Alignment("graph", "1/0 inference", (220, 160), (7, 50), (1, 2)),
    )


def test_each_call_of_a_graph_stands_for_itself() -> None:
    calls = [*graph("0/0", 1100, 10, (1120, 10)), *graph("0/0", 1200, 20, (1230, 7))]
    found = drawn(calls, [*EAGER, *calls])
    assert [one.start_us for one in found[1:]] == [(0, 110), (110, 220)]


def test_eager_steps_are_aligned_as_steps_alone() -> None:
    assert [one.by for one in drawn(EAGER, graph("0/0", 1100, 10, (1120, 10)))] == ["step"]


def test_a_run_without_work_on_a_device_aligns_with_nothing() -> None:
    assert drawn([host("aten::mm", 1010, 30)], [host("aten::mm", 1010, 30)]) == ()
