"""The table of a serving engine's steps, against sums by hand."""

from __future__ import annotations

from statistics import median

import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kinetoscope.analysis.serving.parts import parted
from kinetoscope.analysis.serving.rows import ServingRow
from kinetoscope.analysis.serving.table import replayed, serving
from kinetoscope.sources.run import LoadedRun
from serving_by_hand import figures
from serving_traces import Server
from traces import Event, call, copy, event, kernel, trace

# Microseconds from the annotation's start: the host is far ahead of the device, or waits for it.
Kernels = list[tuple[str, float, float]]  # name, start, duration
DECODE: Kernels = [("paged_attention", 300, 40), ("gemm", 340, 50), ("rms_norm_kernel", 400, 10)]


def engine(name: str, at: float, kernels: Kernels, number: int, *, graph: bool = True) -> list[Event]:
    """A step whose annotation ends before its work begins, as vLLM's does."""
    events = [event("user_annotation", name, at, 100)]
    for place, (kernel_name, start, duration) in enumerate(kernels):
        correlation = number * 100 + (0 if graph else place)
        if not graph or place == 0:
            made = "cudaGraphLaunch" if graph else "cudaLaunchKernel"
            events.append(call(made, at + 10 + place, 1, correlation))
        events.append(kernel(kernel_name, at + start, duration, correlation))
    return events


def rows_of(run: LoadedRun) -> list[ServingRow]:
    found = serving(run)
    return [] if found is None else found.steps


def run_of(*events: list[Event]) -> LoadedRun:
    return LoadedRun((trace(*[one for some in events for one in some]),))


def test_work_belongs_to_the_step_that_launched_it() -> None:
    starts = [0.0, 500.0, 1000.0, 1600.0]
    steps = [engine("step[DECODE bs=32]", at, DECODE, n + 1) for n, at in enumerate(starts)]
    (row,) = rows_of(run_of(*steps, [copy(450, 3)]))
    assert (row.engine, row.phase, row.batch, row.graph_mode) == ("sglang", "decode", 32, "full")
    assert (row.n, row.warmup, row.requests, row.kernels, row.launches) == (4, 0, 32, 3, 1)
    assert row.span_us == pytest.approx(110)  # 300 to 410
    assert row.busy_us == pytest.approx(100)
    assert row.period_us is not None
    assert row.period_us.median == pytest.approx(median([500, 500, 600]))
    assert row.between_us == pytest.approx(median([390, 390, 490]))
    assert row.tokens_per_s == pytest.approx(32 / 500e-6)
    assert {part.category: (part.us, part.launches) for part in row.exposed} == {
        "attention": (40, 1),
        "matmul": (50, 1),
        "normalization": (10, 1),
    }
    within = sum(one.idle_us for one in row.idle if not one.between)
    between = sum(one.idle_us for one in row.idle if one.between)
    assert within == pytest.approx(10)
    assert between == pytest.approx((390 - 3 + 390 + 490) / 4)


def test_phases_batches_and_graph_modes_are_rows_of_their_own() -> None:
    names = ["step[EXTEND bs=2 toks=3000]", "step[DECODE bs=3]", "step[DECODE bs=20]", "step[DECODE bs=4]"]
    steps = [engine(name, 1000.0 * n, DECODE, n + 1, graph=n != 0) for n, name in enumerate(names)]
    rows = rows_of(run_of(*steps))
    found = {(row.phase, row.batch, row.graph_mode, row.n) for row in rows}
    rates = {row.phase: (row.tokens_per_s, row.read_tokens_per_s) for row in rows if row.n == 1}
    assert rates["prefill"] == (None, pytest.approx(3000 / 1000e-6))
    assert rates["decode"][1] is None
    assert found == {("prefill", 4096, "eager", 1), ("decode", 4, "full", 2), ("decode", 32, "full", 1)}


def test_the_first_steps_of_a_kind_are_counted_apart_while_they_warm_up() -> None:
    slow = [("gemm", 300.0, 400.0)]
    steps = [engine("step[DECODE bs=8]", 0, slow, 1)]
    steps += [engine("step[DECODE bs=8]", 1000.0 * n, DECODE, n + 1) for n in range(1, 6)]
    (row,) = rows_of(run_of(*steps))
    assert (row.n, row.warmup, row.span_us) == (5, 1, pytest.approx(110))


def test_what_runs_on_two_streams_at_once_is_exposed_once() -> None:
    events = engine(
        "step[DECODE bs=8]", 0, [("gemm", 200, 100), ("paged_attention", 250, 100)], 1, graph=False
    )
    events[-1] |= {"tid": 8, "args": events[-1]["args"] | {"stream": 8}}
    (row,) = rows_of(run_of(events))
    parts = {part.category: (part.us, part.device_us) for part in row.exposed}
    assert parts == {"matmul": (50, 100), "attention": (50, 100)}
    assert row.busy_us == pytest.approx(150)


def test_other_programs_have_no_such_table() -> None:
    run = run_of([event("user_annotation", "ProfilerStep#1", 0, 100), call("cudaLaunchKernel", 1, 1, 5)])
    assert serving(run) is None
    assert replayed(run.traces[0]) == (0, 0, 0)


@st.composite
def decodes(draw: st.DrawFn) -> list[Event]:
    """Decode steps whose host waits for their tokens or runs ahead, with copies on another stream."""
    made = Server(
        layers=draw(st.integers(4, 6)),
        mode=draw(st.sampled_from(("full", "piecewise", "eager"))),
        waits=draw(st.booleans()),
        gemm_us=draw(st.floats(2, 60)),
    )
    for pause in draw(st.lists(st.floats(5, 300), min_size=2, max_size=7)):
        began = made.at
        made.step(pause=pause)
        number, at, us = next(made.numbers), began + draw(st.floats(4, 200)), draw(st.floats(1, 40))
        side = kernel("Memcpy DtoD (Device -> Device)", at, us, number, 0, 9) | {"cat": "gpu_memcpy"}
        made.events += [call("cudaMemcpyAsync", began + 2, 1, number), side]
    return made.events


@given(decodes())
@settings(deadline=None, max_examples=20)
def test_a_row_is_what_raw_events_say(events: list[Event]) -> None:
    run = trace(*events)
    rows = rows_of(LoadedRun((run,)))
    assume(len(rows) == 1 and not rows[0].warmup)
    (row,) = rows
    names = parted(run).select(pl.col("name").cast(pl.String), "part").unique()
    truth = figures(events, lambda one: dict(names.iter_rows())[one["name"]])
    assert (row.kernels, row.launches) == (truth.kernels, truth.launches)
    assert row.span_us == pytest.approx(truth.span_us, abs=0.01)
    assert row.busy_us == pytest.approx(truth.busy_us, abs=0.01)
    assert row.period_us is not None
    assert row.period_us.median == pytest.approx(truth.period_us, abs=0.01)
    assert row.between_us == pytest.approx(truth.between_us, abs=0.01)
    assert row.exposed_idle_us == pytest.approx(truth.idle_us, abs=0.05)
    assert {one.category: one.us for one in row.exposed} == pytest.approx(truth.exposed, abs=0.05)
