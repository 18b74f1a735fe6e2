"""A library that plans anew in steps that have long settled."""

from __future__ import annotations

from pathlib import Path

import pytest

import traces
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.registry import find
from kinetoscope.findings.rules import new_shapes, rare_long_steps
from kinetoscope.recording.manifest import Manifest, RankRecord, StepTimings, TimedSteps
from kinetoscope.sources.run import LoadedRun, load

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
STEP_US = 10_000


def view(
    slow: dict[int, float],
    op: str = "aten::cudnn_convolution",
    on_device: bool = True,
    step_s: tuple[float, ...] = (),
    **arguments: object,
) -> RankView:
    """Four steps of eight calls of an op, 20 µs each; the first of some steps takes longer. Steps
    that were timed without the profiler took ``step_s``."""
    events: list[traces.Event] = []
    for step in range(4):
        events.append(traces.step(step, step * STEP_US, STEP_US))
        at = step * STEP_US + 10.0
        for call in range(8):
            number = 100 * step + call + 1
            took = slow.get(step, 20.0) if call == 0 else 20.0
            dims = {"Input Dims": [[8, 80, 400 + step]]} | arguments
            events.append(traces.host(op, at, took, **(dims if "Input Dims" in arguments else {})))
            if on_device:
                events.append(traces.call("cudaLaunchKernel", at + took - 8, 5, number))
                events.append(traces.kernel("conv", at + took + 10, 10, number))
            at += took + 15
    trace = traces.trace(*events)
    timed = TimedSteps(step_s=step_s, host_s=step_s) if step_s else None
    manifest = Manifest(ranks=(RankRecord(rank=0, steps=StepTimings(before=timed)),))
    return RankView(LoadedRun((trace,), manifest), trace)


def test_calls_that_plan_are_told_to_pad() -> None:
    (finding,) = new_shapes.find(view({0: 2000, 2: 2000, 3: 2000}))
    assert finding.title.startswith(
        "0.75 calls of aten::cudnn_convolution per step take the host 2.00 ms, the"
    )
    assert finding.saving.us == pytest.approx(0.75 * 1980, rel=0.05)
    assert "Pad to few lengths" in finding.advice


def test_plans_that_make_some_steps_long_are_promised_as_those_were_timed() -> None:
    """Of the recorded steps one is long, of the timed ones each fourth."""
    often = (0.01, 0.01, 0.01, 0.022) * 5
    (finding,) = new_shapes.find(view({1: 8000}, step_s=often))
    assert finding.title.startswith("0.25 calls of aten::cudnn_convolution per step take the host 8.00 ms")
    assert finding.saving.us == pytest.approx(12_000 / 4)
    assert not list(rare_long_steps.find(view({1: 8000}, step_s=often)))
    longer = (0.01, 0.01, 0.01, 0.5) * 5  # which such a call does not explain
    assert not list(new_shapes.find(view({1: 8000}, step_s=longer)))
    assert list(rare_long_steps.find(view({1: 8000}, step_s=longer)))


def test_attention_that_plans_is_left_to_kernels_without_plans() -> None:
    """Three words of a text written without a cache. Recorded with 79.6 ms a word, it took 5.4 ms without
    cuDNN's attention, the medians of twenty words."""
    run = load(FIXTURES / "h100_attention_plans.json.gz")
    finding, *others = (one for one in find(run) if one.rule == "new-shapes")
    assert finding.snippet == "torch.backends.cuda.enable_cudnn_sdp(False)"
    assert 0.67 <= finding.saving.us / (79_614 - 5_422) <= 1.5
    assert "aten::_cudnn_attention_forward" in finding.title
    assert not others


def test_planning_once_is_a_cold_start() -> None:
    assert not list(new_shapes.find(view({0: 5000})))


def test_what_takes_longer_in_other_ops_is_no_plan() -> None:
    assert not list(new_shapes.find(view({0: 2000, 2: 2000}, op="aten::index")))


def test_shapes_that_were_met_before_are_not_new() -> None:
    assert not list(new_shapes.find(view({1: 2000, 2: 2000, 3: 2000}, **{"Input Dims": [[8, 80, 400]]})))


def test_a_large_product_on_the_cpu_computes_and_plans_nothing() -> None:
    large = dict.fromkeys(range(4), 5000.0)
    assert list(new_shapes.find(view(large, op="aten::mm")))
    assert not list(new_shapes.find(view(large, op="aten::mm", on_device=False)))
