"""What steps are, and that unlike ones are kept apart."""

from __future__ import annotations

import pytest

from kinetoscope.analysis.origins.sums import kernels
from kinetoscope.analysis.step_outliers import step_distribution, step_outliers
from kinetoscope.analysis.time.phases import leading_of, parts, phase_rows, phases, similarity
from kinetoscope.sources.run import LoadedRun
from traces import Event, call, event, host, kernel, step, trace


class Loop:
    """Makes steps one after the other."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now, self.number, self.correlation = 100.0, 0, 0

    def launch(self, name: str, at: float, long: float) -> None:
        self.correlation += 1
        self.events += [
            call("cudaLaunchKernel", self.now + at, 1, self.correlation),
            kernel(name, self.now + at + 2, long, self.correlation),
        ]

    def step(self, length: float, *kernels: str, ops: tuple[str, ...] = ("aten::mm", "aten::mm")) -> None:
        for place, name in enumerate(kernels):
            self.launch(name, 5 + 10 * place, 5)
        self.events += [host(name, self.now + 1, 2) for name in ops]
        self.events.append(step(self.number, self.now, length))
        self.now, self.number = self.now + length, self.number + 1

    def run(self) -> LoadedRun:
        return LoadedRun((trace(*self.events),))


def found(run: LoadedRun) -> list[str]:
    return phases(run)["phase"].to_list()


BACKWARD = ("aten::mm", "autograd::engine::evaluate_function: MmBackward0")


def test_a_step_is_what_ran_in_it_and_what_it_is_marked_with() -> None:
    loop = Loop()
    loop.step(100, "k", ops=BACKWARD)
    loop.step(100, "k")
    loop.events.append(event("user_annotation", "evaluate", loop.now + 1, 90))
    loop.step(100, "k", ops=("aten::mm", "Optimizer.zero_grad#SGD.zero_grad"))
    loop.events.append(event("user_annotation", "prefill", loop.now + 1, 90))
    loop.step(100, "k")
    loop.step(100, "k", ops=("aten::mm", "Optimizer.step#SGD.step"))
    assert found(loop.run()) == ["train", "forward", "evaluate", "request", "train"]


def test_without_ops_nothing_says_what_a_step_was_for() -> None:
    loop = Loop()
    for _ in range(3):
        loop.step(100, "k", ops=())
    assert found(loop.run()) == ["step"] * 3


def test_steps_with_other_kernels_are_another_phase() -> None:
    loop = Loop()
    loop.step(100, "a", "b", "c")
    loop.step(90, "x", "y")
    loop.step(100, "a", "b", "c", "d")
    loop.step(90, "x", "y", "y")
    assert found(loop.run()) == ["forward A", "forward B"] * 2


def test_steps_that_take_other_times_are_another_phase() -> None:
    loop = Loop()
    for length in (100, 1000, 110, 1100, 100):
        loop.step(length, "k")
    run = loop.run()
    assert found(run) == ["forward B", "forward A", "forward B", "forward A", "forward B"]
    assert leading_of(run.traces[0])["step"].to_list() == [1, 3]
    row = step_distribution(run).row(0, named=True)
    assert (row["steps"], row["duration_median_ns"]) == (2, 1_050_000)
    assert step_outliers(run) == ()


def test_steps_that_wait_for_workers_in_turn_are_one_phase() -> None:
    loop = Loop()
    for length, waits in ((1000, 900), (100, 0), (1100, 990), (100, 0)):
        if waits:
            name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
            loop.events.append(event("user_annotation", name, loop.now + length - waits - 2, waits))
        loop.step(length, "k")
    assert found(loop.run()) == ["forward"] * 4


def test_one_long_step_is_an_outlier_and_no_phase() -> None:
    loop = Loop()
    for length in (100, 100, 1000, 100, 100):
        loop.step(length, "k")
    run = loop.run()
    assert found(run) == ["forward"] * 5
    (trace,) = run.traces
    assert [outlier.name for outlier in step_outliers(run)] == [trace.steps["name"][2]]


def test_a_request_has_its_parts_by_the_device_s_clock() -> None:
    loop = Loop()
    for _ in range(2):
        loop.launch("long", 10, 300)  # the host runs ahead: the tokens' work waits for the prompt's
        for token in range(3):
            loop.correlation += 1
            loop.events += [
                call("cudaLaunchKernel", loop.now + 60 + 10 * token, 1, loop.correlation),
                kernel("short", loop.now + 320 + 40 * token, 30, loop.correlation),
            ]
        for name, at in (("prefill", 5), ("decode", 55), ("decode", 65), ("decode", 75)):
            loop.events.append(event("user_annotation", name, loop.now + at, 10 if at > 5 else 50))
        loop.step(500)
    run = loop.run()
    table = parts(run.traces[0])
    assert table["phase"].to_list() == ["prefill", "decode", "decode", "decode"] * 2
    assert table["duration_ns"].to_list()[:4] == [308_000, 40_000, 40_000, 30_000]
    assert table["busy_ns"].to_list()[:4] == [300_000, 30_000, 30_000, 30_000]
    rows = phase_rows(run).select("phase", "of", "count", "per_step", "launches", "kernels").rows()
    assert [row[:5] for row in rows] == [
        ("request", "step", 2, 1.0, 4.0),
        ("prefill", "request", 2, 1.0, 1.0),
        ("decode", "request", 6, 3.0, 1.0),
    ]
    assert rows[2][5] == [{"name": "short", "device_time_ns": 180_000, "launches": 6}]


def test_parts_without_a_device_have_the_host_s_times() -> None:
    events = [step(0, 0, 100), host("aten::mm", 11, 5), host("aten::mm", 41, 5)]
    events += [event("user_annotation", "prefill", 10, 30), event("user_annotation", "decode", 40, 50)]
    table = parts(trace(*events))
    assert table["duration_ns"].to_list() == [30_000, 50_000]
    assert table["busy_ns"].to_list() == [0, 0]


def test_a_recording_without_steps_has_no_phases() -> None:
    run = LoadedRun((trace(host("aten::mm", 0, 1)),))
    assert phases(run).is_empty()
    assert phase_rows(run).is_empty()


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ({}, {}, 1.0),
        ({"a": 1}, {}, 0.0),
        ({"a": 3, "b": 1}, {"a": 1, "b": 1}, 0.5),
        ({"a": 1}, {"b": 1}, 0.0),
    ],
)
def test_similarity_is_that_of_launches(one: dict[str, int], other: dict[str, int], alike: float) -> None:
    assert similarity(one, other) == alike


def test_device_time_is_summed_by_phase_and_by_part() -> None:
    loop = Loop()
    loop.step(100, "a", "b", ops=BACKWARD)
    loop.events.append(event("user_annotation", "prefill", loop.now + 1, 12))
    loop.step(100, "a", "b")
    by_phase = kernels(loop.run(), "phase").select("phase", "launches").rows()
    assert sorted(by_phase) == [("prefill", 1), ("request", 1), ("train", 2)]
