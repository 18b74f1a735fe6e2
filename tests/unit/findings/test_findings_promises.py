"""Nothing is promised of what no trace can tell, and more only of what it shows: by traces made by hand."""

from __future__ import annotations

from types import ModuleType

import polars as pl
import pytest
from msgspec.structs import replace

import traces
from kinetoscope.analysis.health.verdict import health
from kinetoscope.findings import in_force, savings
from kinetoscope.findings.ledger import settle
from kinetoscope.findings.model import Finding, Saving
from kinetoscope.findings.rank_view import RankView, views
from kinetoscope.findings.rules import (
    activity_buffer,
    cold_start_step,
    dropped_events,
    layout_conversion,
    low_occupancy,
    needless_scaler,
    new_shapes,
    rare_long_steps,
    small_grid,
)
from kinetoscope.recording.manifest import Manifest, RankRecord, StepTimings, TimedSteps
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import DeviceProperties

H200 = DeviceProperties(0, "NVIDIA H200", 140 << 30, (9, 0), 132)


def view(*events: traces.Event, timings: StepTimings | None = None) -> RankView:
    trace = replace(traces.trace(*events), devices=(H200,))
    manifest = None if timings is None else Manifest(ranks=(RankRecord(rank=0, steps=timings),))
    return RankView(LoadedRun((trace,), manifest), trace)


def launched(
    op: str,
    kernel: str,
    number: int,
    took_us: float,
    blocks: int = 1000,
    registers: int = 32,
    **shapes: object,
) -> list[traces.Event]:
    at = 100.0 * number
    grid = {"grid": [blocks, 1, 1], "block": [256, 1, 1], "registers per thread": registers}
    grid |= {"shared memory": 0}
    return [
        traces.host(op, at, 20, **shapes),
        traces.call("cudaLaunchKernel", at + 5, 5, number),
        traces.kernel(kernel, at + 30, took_us, number, **grid),
    ]


def only(found: object) -> Finding:
    (finding,) = found  # type: ignore[misc]
    return finding


# Layouts and grids.


def converting(*others: str, around: str = "aten::conv2d") -> RankView:
    events = [
        event for n in range(1, 6) for event in launched("aten::cudnn_convolution", "nchwToNhwcKernel", n, 40)
    ]
    events += [traces.host(name, 700 + 10 * n, 5) for n, name in enumerate(others)]
    return view(traces.step(0, 0, 800), traces.host(around, 90, 500), *events)


def test_the_layout_of_a_second_backward_pass_promises_nothing() -> None:
    once, twice = (
        only(layout_conversion.find(converting(*names))) for names in ([], ["ConvolutionBackwardBackward0"])
    )
    assert once.saving.us > 0
    assert twice.saving.us == 0
    assert twice.saving.most_us == once.saving.us
    assert twice.at_least == "info"


def test_tensors_of_one_dimension_have_no_channels_last() -> None:
    assert not list(layout_conversion.find(converting(around="aten::conv1d")))
    node = "autograd::engine::evaluate_function: ConvolutionBackward0"
    calls = [("aten::conv1d", 7), ("aten::conv2d", 8), (node, 7), (node, 8)]  # the forward ops of the nodes
    events = [
        one
        for n, (name, sequence) in enumerate(calls, 1)
        for one in (
            traces.host(name, 100 * n - 5, 60, **{"Sequence number": sequence}),
            *launched("aten::cudnn_convolution", "nchwToNhwcKernel", n, 40),
        )
    ]
    found = only(layout_conversion.find(view(traces.step(0, 0, 800), *events)))
    assert found.title.startswith("2 layout conversions")


@pytest.mark.parametrize(
    ("kernel", "is_promised"), [("scan_kernel", True), ("cutlass_tensorop_fprop", False)]
)
def test_how_a_library_divides_its_work_promises_nothing(kernel: str, is_promised: bool) -> None:
    finding = only(small_grid.find(view(*launched("aten::op", kernel, 1, 400, blocks=4))))
    assert (finding.saving.us > 0) == is_promised
    assert finding.saving.most_us > 0


@pytest.mark.parametrize(
    ("rule", "blocks", "registers", "part"),
    [(small_grid, 4, 32, 1 - 4 / 132), (low_occupancy, 100_000, 255, 0.5)],
)
def test_no_grid_and_no_occupancy_moves_bytes_faster_than_the_device_does(
    rule: ModuleType, blocks: int, registers: int, part: float
) -> None:
    def saves(took_us: float, elements: int) -> float:
        dims = {"Input Dims": [[elements], [elements]], "Input type": ["float", "float"]}
        event = launched("aten::add", "add_kernel", 1, took_us, blocks, registers, **dims)
        return only(rule.find(view(*event))).saving.us

    least_us = 3 * 4 * 10**8 / 4.8e12 * 1e6  # two tensors are read and one is written, at 4.8 TB/s
    assert saves(400, 1000) == pytest.approx(400 * part, rel=0.05)
    assert saves(400, 10**8) == pytest.approx(min(400 * part, 400 - least_us), rel=0.05)


# Algorithms that are tried.


def trying(steps: tuple[int, ...], waits: int = 12) -> RankView:
    """Steps of 10 ms whose convolution tries so many kernels of 100 µs, waits for each, and runs one."""
    events: list[traces.Event] = []
    for step in range(4):
        start, number = 10_000.0 * step, 100 * step + 1
        events.append(traces.step(step, start, 10_000))
        at = start + 10
        for trial in range(waits if step in steps else 0):
            events += [
                traces.call("cudaLaunchKernel", at, 5, number + trial),
                traces.kernel("tried", at + 10, 100, number + trial),
                traces.call("cudaEventSynchronize", at + 8, 110, 0),
            ]
            at += 130
        events += [
            traces.call("cudaLaunchKernel", at, 5, number + 90),
            traces.kernel("conv", at + 10, 50, number + 90),
        ]
        events.append(traces.host("aten::cudnn_convolution", start + 5, at + 10 - start))
    return view(*events)


def test_algorithms_that_are_tried_go_with_their_kernels_and_waits() -> None:
    loop = trying((0, 1, 2, 3))
    finding = only(new_shapes.find(loop))
    assert "try their algorithms, with 13 kernels" in finding.title
    assert finding.snippet == "torch.backends.cudnn.benchmark = False"
    names = loop.trace.device_events["name"].cast(pl.String).gather(finding.saving.change.device["id"])
    assert names.to_list() == ["tried"] * 48
    assert len(finding.saving.change.waits) == 48
    assert finding.saving.us == pytest.approx(12 * 130, rel=0.1)


def test_algorithms_that_are_tried_once_and_single_waits_are_no_finding() -> None:
    assert not list(new_shapes.find(trying((0,))))
    assert not list(new_shapes.find(trying((0, 1, 2, 3), waits=4)))


# Rare long steps.


def rare(data: float = 0.0, sync: float = 0.0, after: bool = False, workers: int | None = None) -> RankView:
    """One of 20 steps of 10 ms takes 210, with what it waits of it, in seconds; after the recording 20 usual
    ones."""
    none = (0.0,) * 20
    before = TimedSteps(
        step_s=(0.01,) * 19 + (0.21,), data_s=(0.0,) * 19 + (data,), sync_s=(0.0,) * 19 + (sync,), gc_s=none
    )
    usual = TimedSteps(step_s=(0.009,) * 20, data_s=none, sync_s=none, gc_s=none)
    timings = StepTimings(before=before, after=usual if after else None, loader_workers=workers)
    return view(*(traces.step(n, 10_000 * n, 10_000) for n in range(3)), timings=timings)


def test_what_waits_for_the_device_in_a_rare_step_is_the_device_s_work() -> None:
    finding = only(rare_long_steps.find(rare(sync=0.19)))
    assert "calls that wait for the device" in finding.title
    assert (finding.saving.us, finding.saving.most_us) == (0, pytest.approx(10_000))


def test_a_loader_that_starts_anew_takes_more_than_the_wait_for_it() -> None:
    saving = only(rare_long_steps.find(rare(data=0.1))).saving
    assert saving.us == pytest.approx((5_000 + 10_000) / 2)
    assert saving.most_us == pytest.approx(10_000)


def test_a_loader_without_workers_is_not_said_to_start_them() -> None:
    finding = only(rare_long_steps.find(rare(data=0.1, workers=0)))
    assert "no workers" in finding.advice
    assert "starts its workers" not in finding.advice
    assert "starts its workers" in only(rare_long_steps.find(rare(data=0.1, workers=2))).advice


def test_rare_steps_are_counted_among_all_that_were_timed() -> None:
    finding = only(rare_long_steps.find(rare(data=0.2, after=True)))
    assert finding.title.startswith("1 of 40 steps")
    assert finding.saving.us == pytest.approx(5_000, rel=0.02)


# What is not the program's, and what cannot be done.


def test_the_profiler_s_buffers_are_of_no_interest_where_the_program_s_own_step_is_known() -> None:
    events = traces.step(0, 0, 1000), traces.host("Activity Buffer Request", 10, 300, "overhead")
    assert list(activity_buffer.find(view(*events)))
    assert not list(activity_buffer.find(view(*events, timings=StepTimings(unprofiled_s=(1e-3,) * 9))))


def test_after_a_warm_up_a_longer_first_step_is_no_cold_start() -> None:
    steps = traces.step(0, 0, 9000), traces.step(1, 9000, 1000), traces.step(2, 10_000, 1000)
    assert list(cold_start_step.find(view(*steps)))
    assert not list(cold_start_step.find(view(*steps, timings=StepTimings(warmup_steps=8))))


def test_advice_on_start_up_is_for_what_recorded_it() -> None:
    steps = traces.step(0, 0, 9000), traces.step(1, 9000, 1000), traces.step(2, 10_000, 1000)
    of_a_profiler = only(cold_start_step.find(view(*steps)))
    assert of_a_profiler.title.startswith("ProfilerStep#0 takes")
    assert "profiler.schedule" in (of_a_profiler.snippet or "")
    cold = StepTimings(found_by="optimizer", cold=True, settled=False)
    ours = only(cold_start_step.find(view(*steps, timings=cold)))
    assert ours.title.startswith("The first step takes")
    assert (ours.snippet, ours.advice.partition(":")[0]) == (None, "Let the program make more steps")


def test_of_a_program_s_first_steps_no_time_of_its_host_is_promised() -> None:
    steps = traces.step(0, 0, 9000), traces.step(1, 9000, 1000), traces.step(2, 10_000, 1000)
    for found_by, promised in (("optimizer", False), ("whole", True)):  # what is a whole run is as it is
        cold = view(*steps, timings=StepTimings(found_by=found_by, cold=True, settled=False))
        saved = savings.host(cold, cold.trace.host_events.head(1), "")
        assert bool(only(cold_start_step.find(cold)).saving.us) is promised
        assert saved.basis.startswith("not predicted") is not promised


def test_no_graph_holds_a_step_of_training_that_often_waits() -> None:
    node = traces.host("autograd::engine::evaluate_function: MmBackward0", 690, 5)
    waits = [
        event
        for n in range(12)
        for event in (
            traces.host("aten::item", 200 + 40 * n, 30),
            traces.call("cudaStreamSynchronize", 205 + 40 * n, 20, 0),
        )
    ]
    training = view(traces.step(0, 0, 800), *launched("aten::mm", "gemm", 1, 9), *waits, node)
    assert (
        "not possible as it stands: 12 calls in it wait for the device"
        in in_force.fewer_launches(training).advice
    )
    served = view(traces.step(0, 0, 800), *launched("aten::mm", "gemm", 1, 9), *waits)
    assert "replay the whole step" in in_force.fewer_launches(served).advice


def test_what_the_scaler_does_between_reciprocal_and_check_goes_with_it() -> None:
    names = ("aten::mm", 20), ("aten::to", 15), ("aten::reciprocal", 15), ("aten::to", 15)
    ops = [traces.host(name, 100 + 100 * n, us) for n, (name, us) in enumerate(names)]
    check = traces.host("aten::_amp_foreach_non_finite_check_and_unscale_", 500, 30)
    step = traces.host("Optimizer.step#AdamW.step", 600, 100, "user_annotation")
    update = traces.host("aten::_amp_update_scale_", 760, 10)
    work = launched("aten::mm", "gemm_bf16", 1, 30)[1:]
    mark = traces.step(0, 0, 1000)
    change = only(needless_scaler.find(view(mark, *ops, check, step, update, *work))).saving.change
    spans = change.host.select("start_ns", "end_ns").rows()
    assert (200_000, 500_000) in spans
    assert (700_000, 760_000) in spans


# The order.


def test_what_keeps_all_results_stands_before_what_rounds_them_where_it_saves_half_as_much() -> None:
    events = [event for n in range(1, 8) for event in launched("aten::mm", f"k{n}", n, 90)]
    loop = view(traces.step(0, 0, 800), *events)
    run = loop.run
    work = next(iter(views(run))).work

    def finding(rule: str, kernels: int) -> Finding:
        saving: Saving = savings.device(loop, work.head(kernels), "", "duration_ns")
        return Finding(rule=rule, title="", saving=saving, evidence=[], advice="")

    for exact, order in ((3, ["exact", "rounded"]), (1, ["rounded", "exact"])):
        rounded = savings.device(loop, work.tail(4), "", "duration_ns")
        other = replace(finding("rounded", 1), saving=rounded)
        found = settle(run, [other, finding("exact", exact)], {"rounded": "rounds"})
        assert [one.rule for one in found] == order


def test_launches_without_work_are_counted_as_the_verdict_on_the_recording_counts_them() -> None:
    answered = [event for number in range(1, 13) for event in launched("aten::mm", "gemm", number, 5)]
    lost = [traces.call("cudaLaunchKernel", 2000 + 10 * number, 5, 100 + number) for number in range(8)]
    copies = [traces.call("cudaMemcpyAsync", 3000 + 10 * number, 5, 200 + number) for number in range(6)]
    copied = [traces.kernel("Memcpy HtoD", 3000 + 10 * number, 5, 200 + number) for number in range(6)]
    seen = view(*answered, *lost, *copies, *copied)
    (note,) = (note for note in health(seen.run).notes if note.code == "launches-without-kernel")
    assert note.text.startswith("8 of 20 kernel launches")
    assert "8 of 20 kernel launches" in only(dropped_events.find(seen)).title
