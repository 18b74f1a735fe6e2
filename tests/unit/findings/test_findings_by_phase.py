"""What findings save of a server's steps, by phase: by the raw events of traces whose answer is known."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pytest

from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.replay.change import no_wait, shorten
from kinetoscope.analysis.serving.table import serving
from kinetoscope.findings import savings
from kinetoscope.findings.by_phase import NO_STEP, phased, rows_of
from kinetoscope.findings.in_force import fewer_launches
from kinetoscope.findings.ledger import settle
from kinetoscope.findings.model import Finding, Saving
from kinetoscope.findings.rank_view import RankView, views
from kinetoscope.findings.registry import find
from kinetoscope.sources.run import LoadedRun
from serving_by_hand import steps_of
from serving_traces import Server
from traces import Event, event, host, kernel, trace

PREFILLS = (2, 5)
STEPS = 8


def served(pause: float = 5.0) -> list[Event]:
    """Eight steps in turn with the device, of which two read prompts."""
    made = Server(layers=8)
    for number in range(STEPS):
        made.step(prefill=512 if number in PREFILLS else 0, pause=pause)
    return made.events


def seen(events: Sequence[Event]) -> RankView:
    (view,) = views(LoadedRun((trace(*events),)))
    return view


def settled(view: RankView, saving: Saving) -> Finding:
    made = Finding(rule="rule", title="", saving=saving, evidence=[], advice="")
    (found,) = settle(view.run, [made])
    return phased(view, found)


def test_shorter_kernels_save_what_each_phase_has_of_them() -> None:
    events = served()
    view = seen(events)
    gemms = view.kernels("gemm")
    found = settled(view, savings.device(view, gemms, "", saved=pl.col("duration_ns") * 0.5))
    by_phase = {one.phase: one for one in found.phases}
    each = [sum(one["dur"] for one in step.work if "gemm" in one["name"]) / 2 for step in steps_of(events)]
    prefill = [each[number] for number in PREFILLS]
    decode = [us for number, us in enumerate(each) if number not in PREFILLS]
    assert {phase: one.steps for phase, one in by_phase.items()} == {"decode": 6, "prefill": 2}
    assert by_phase["prefill"].saving_us == pytest.approx(sum(prefill) / 2, rel=0.02)
    assert by_phase["decode"].saving_us == pytest.approx(sum(decode) / 6, rel=0.02)


def test_phases_sum_to_the_finding() -> None:
    events = served()
    view = seen(events)
    found = settled(view, savings.device(view, view.kernels("gemm|flash"), "", saved="duration_ns"))
    total = sum(one.saving_us * one.steps for one in found.phases)
    assert total == pytest.approx(found.remaining.saving_us * STEPS)
    steps = steps_of(events)
    second = 1e6 * total / (steps[-1].last - steps[0].first)
    assert sum(one.saving_us_per_s for one in found.phases) == pytest.approx(second, rel=1e-3)
    assert sum(one.share for one in found.phases) == pytest.approx(1)


def test_what_no_step_waits_for_is_no_phases() -> None:
    """Kernels of decode are hidden behind the host, those of prefill are what it waits for."""
    made = Server(layers=8, mode="eager", gemm_us=2.0, attention_us=2.0)
    for number in range(STEPS):
        made.gemm_us, made.attention_us = (200.0, 100.0) if number in PREFILLS else (2.0, 2.0)
        made.step(prefill=512 if number in PREFILLS else 0, pause=5)
    view = seen(made.events)
    gemms = view.kernels("gemm").filter(pl.col("name").cast(pl.String) != "lm_head_gemm")
    found = settled(view, savings.device(view, gemms, "", saved=pl.col("duration_ns") * 0.5))
    shares = {one.phase: one.share for one in found.phases}
    assert shares["prefill"] > 0.99


def test_waits_and_the_host_are_of_the_step_in_which_they_begin() -> None:
    view = seen(served())
    host_events = view.trace.host_events
    waits = host_events.filter(matching(host_events, "name", "Synchronize"))["id"]
    found = settled(view, savings.of(view, no_wait(waits.gather([PREFILLS[0]])), ""))
    assert [(one.phase, one.steps) for one in found.phases] == [("prefill", 2)]
    slow = host_events.filter(matching(host_events, "name", "rms_norm"))  # prefill alone launches them so
    assert {one.phase for one in settled(view, savings.host(view, slow, "")).phases} == {"prefill"}


def test_work_outside_of_steps_is_of_none() -> None:
    made = Server(layers=8)
    made.launch("aten::mm", ("setup_gemm", 500.0))
    made.at = made.free_at + 10
    for _ in range(4):
        made.step()
    view = seen(made.events)
    device = view.trace.device_events
    ids = device.filter(matching(device, "name", "setup_gemm"))["id"]
    change = shorten(ids, pl.Series([1.0] * len(ids)))
    made_up = Finding(title="", saving=Saving(0.0, "", True, 0.0, change=change), evidence=[], advice="")
    assert [one.phase for one in phased(view, made_up).phases] == [NO_STEP]


def test_a_finding_inside_a_graph_is_decodes_alone() -> None:
    """The table of what to change has a row a phase and finding, in the order of the table of steps."""
    small = [(f"elementwise_kernel_{n}", 3.0) for n in range(5)]
    made = Server(layers=8)
    made.layer = lambda: [*small, ("flash_fwd_kernel", 15.0), ("gemm", 20.0)]  # type: ignore[method-assign]
    for number in range(STEPS):
        made.step(prefill=512 if number in PREFILLS else 0, pause=5)
    run = LoadedRun((trace(*made.events),))
    table = serving(run)
    assert table is not None
    rows = [one for one in rows_of(table, find(run)) if one.rule == "unfused-in-graph"]
    assert [one.phase for one in rows] == ["decode"]
    # Of five kernels of 3 µs in each of eight layers one is left.
    assert rows[0].saving_us == pytest.approx(8 * 4 * 3.0, rel=0.05)
    order = [row.phase for row in table.steps]
    shown = [one.phase for one in rows_of(table, find(run))]
    assert shown == sorted(shown, key=order.index)


def test_gaps_between_decodes_are_decodes_and_prefill_that_stalls_is_prefills() -> None:
    run = LoadedRun((trace(*served(pause=300.0)),))
    found = {one.rule: one for one in find(run)}
    assert {one.phase for one in found["decode-gap"].phases} == {"decode"}
    (gap,) = found["decode-gap"].phases
    assert gap.saving_us * gap.steps == pytest.approx(found["decode-gap"].remaining.saving_us * STEPS)
    stalls = Server(layers=8)
    for number in range(12):
        stalls.step(prefill=2048 if number in (4, 8) else 0, pause=30)
    run = LoadedRun((trace(*stalls.events),))
    assert [one.phase for one in {f.rule: f for f in find(run)}["prefill-stall"].phases] == ["prefill"]


def test_what_is_no_server_has_no_phases() -> None:
    events = [host("aten::mm", 0, 10), host("autograd::engine::evaluate_function: MmBackward0", 20, 5)]
    launched = [event("cuda_runtime", "cudaLaunchKernel", 1, 2, correlation=1), kernel("gemm", 5, 100, 1)]
    assert all(not one.phases for one in find(LoadedRun((trace(*events, *launched),))))


def test_graphs_are_advised_where_they_are_not() -> None:
    """Decode replays a graph a step: what is launched one by one are the prompts."""
    said = fewer_launches(seen(served())).advice
    assert "Steps that generate are replayed as CUDA graphs already" in said
    assert "--enable-piecewise-cuda-graph" in said
    eager = Server(layers=8, mode="eager")
    for _ in range(4):
        eager.step()
    assert "one for each batch size" in fewer_launches(seen(eager.events)).advice
