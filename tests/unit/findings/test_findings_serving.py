"""Findings know a server's phases: each on a trace that shows it, and silent on one that does not."""

from __future__ import annotations

from typing import Any

import pytest

from kinetoscope.findings.in_force import fewer_launches
from kinetoscope.findings.model import Finding
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.registry import find as every
from kinetoscope.findings.registry import rules
from kinetoscope.findings.rules import (
    decode_gap,
    kernel_variance,
    kv_gather,
    padded_batch,
    prefill_stall,
    small_grid,
    sync_in_step,
    unfused_in_graph,
)
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import DeviceProperties
from serving_traces import Server
from traces import Event, event, host, kernel, trace


def run_of(*events: Event) -> LoadedRun:
    return LoadedRun((trace(*events),))


def view(*events: Event) -> RankView:
    run = run_of(*events)
    return RankView(run, run.traces[0])


def on_h200(*events: Event) -> RankView:
    from msgspec.structs import replace

    found = trace(*events)
    known = replace(found, devices=(DeviceProperties(0, "NVIDIA H200", 150_000_000_000, (9, 0), 132, {}),))
    run = LoadedRun((known,))
    return RankView(run, known)


def subjects(found: list[Finding]) -> set[str]:
    return {finding.subject for finding in found if finding.saving.share >= 0.01}


# Gaps between steps.


def server(pause: float, *, steps: int = 6, **settings: Any) -> Server:
    made = Server(**settings)
    for _ in range(steps):
        made.step(pause=pause)
    return made


def test_a_gap_between_decodes_has_what_the_host_does() -> None:
    made = Server()
    scopes: list[Event] = []
    for _ in range(6):
        made.step(pause=200)
        scopes.append(event("python_function", "engine/scheduler.py(9): schedule", made.at - 195, 120))
    found = list(decode_gap.find(view(*made.events, *scopes)))
    (finding,) = (one for one in found if one.subject == "schedule")
    # Five of six steps are followed by another.
    assert finding.saving.us == pytest.approx(120 * 5 / 6)
    assert "overlap-schedule" in finding.advice
    assert "vLLM" not in finding.advice
    assert finding.title.endswith("it schedules")
    assert not finding.saving.change.is_empty or finding.saving.unreplayed_us > 0


@pytest.mark.parametrize("waits", [True, False])
def test_python_that_was_not_recorded_is_a_gap_as_well(waits: bool) -> None:
    found = list(decode_gap.find(view(*server(5000, waits=waits).events)))
    assert sum(one.affected_us for one in found) == pytest.approx(5000 * 5 / 6, rel=0.05)


def test_a_host_that_is_hidden_leaves_no_gap() -> None:
    made = server(20, waits=False, gemm_us=60.0, layers=8)
    assert subjects(list(decode_gap.find(view(*made.events)))) == set()


def test_what_is_no_server_has_no_gap_between_decodes() -> None:
    made = server(200, marked=False)
    training = host("autograd::engine::evaluate_function: MmBackward0", made.at, 5)
    assert list(decode_gap.find(view(*made.events, training))) == []


def test_logits_that_go_to_the_host_are_sampled_there() -> None:
    made = Server()
    for _ in range(6):
        began = made.at
        made.launch("aten::mm", ("lm_head_gemm", 30.0))
        made.launch("aten::copy_", ("Memcpy DtoH (Device -> Pageable)", 20.0), copy=True)
        made.events[-1]["args"]["bytes"] = 8 * 32_000 * 4
        made.at = made.free_at + 150  # the host sorts
        made.launch("aten::copy_", ("Memcpy HtoD (Pageable -> Device)", 2.0), copy=True)
        made.events.append(event("user_annotation", "step[DECODE bs=8]", began - 1, made.at - began + 1))
        made.at = made.free_at + 30
    found = {one.subject: one for one in decode_gap.find(view(*made.events))}
    assert found["sample"].saving.us > 100
    assert "on the device" in found["sample"].advice


# Padding.


def padded(batch: int, rows: int, *, width: int = 64) -> list[Event]:
    made = Server(mode="eager")
    for _ in range(4):
        made.step(batch=batch)
    for one in made.events:
        if "gemm" in one["name"] and one["cat"] == "cpu_op":
            shapes = {"Input Dims": [[rows, width], [width, width]], "Input type": ["c10::Half"] * 2}
            one["args"] |= shapes
            one["name"] = "aten::mm"
    return made.events


def test_padding_saves_what_arithmetic_bounds() -> None:
    small = list(padded_batch.find(on_h200(*padded(17, 32))))
    assert [(one.saving.us, one.at_least) for one in small] == [(0.0, "info")]
    assert "47% of its rows" in small[0].title
    # 4096 × 4096 × 2048 rows in 80 µs: bound by arithmetic.
    events = padded(1100, 2048, width=4096)
    for one in events:
        if "gemm" in one["name"]:
            one["dur"] = 80.0
    (large,) = padded_batch.find(on_h200(*events))
    assert large.saving.freed_share > 0.2


@pytest.mark.parametrize(("batch", "rows"), [(32, 32), (30, 32), (8, 8)])
def test_a_batch_that_fits_its_graph_is_not_padded(batch: int, rows: int) -> None:
    assert list(padded_batch.find(on_h200(*padded(batch, rows)))) == []


# Prefills.


def test_a_prefill_that_stalls_decodes_is_said_and_promises_nothing() -> None:
    made = Server(layers=8)
    for number in range(12):
        made.step(prefill=2048 if number in (4, 8) else 0, pause=30)
    (finding,) = prefill_stall.find(view(*made.events))
    assert finding.title.startswith("2 of 9 tokens wait")
    assert finding.saving.us == 0


def test_prefills_before_the_first_token_stall_none() -> None:
    made = Server(layers=8)
    for number in range(8):
        made.step(prefill=2048 if number < 2 else 0)
    assert list(prefill_stall.find(view(*made.events))) == []
    short = Server(layers=8, mode="eager")
    for number in range(12):
        short.step(prefill=8 if number == 4 else 0, pause=4000)
    assert list(prefill_stall.find(view(*short.events))) == []


# The cache.


def with_gathers(op: str, shapes: list[Any], each: int = 2) -> list[Event]:
    made = Server(marked=False)
    for _ in range(4):
        began = made.at
        for _ in range(4):
            for _ in range(each):
                made.launch(op, ("gather_kernel", 30.0))
                made.events[-3]["args"]["Input Dims"] = shapes
            made.launch("aten::_flash_attention_forward", ("flash_fwd_kernel", 20.0))
            made.events[-3]["args"]["Input Dims"] = [[8, 1, 16, 64], [8, 512, 16, 64], [8, 512, 16, 64]]
            made.launch("aten::mm", ("gemm", 10.0))
        made.events.append(event("user_annotation", "step[DECODE bs=8]", began - 1, made.at - began + 1))
        made.at = made.free_at + 20
    return made.events


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        ("aten::index", [[64, 512, 16, 64], [[8]]]),
        ("aten::cat", [[[8, 16, 511, 64], [8, 16, 1, 64]], []]),
    ],
)
def test_copies_of_the_cache_before_attention_are_found(op: str, shapes: list[Any]) -> None:
    (finding,) = kv_gather.find(view(*with_gathers(op, shapes)))
    assert finding.saving.us == pytest.approx(4 * 2 * 30, rel=0.1)  # and their launches
    assert f"{op}, 8 times" in finding.title


def test_small_concatenations_are_not_the_caches() -> None:
    rotary = [[[8, 16, 1, 32], [8, 16, 1, 32]], []]
    assert list(kv_gather.find(view(*with_gathers("aten::cat", rotary)))) == []
    assert list(kv_gather.find(view(*with_gathers("aten::add", [[64, 512, 16, 64]])))) == []


# Small kernels in graphs.


def graphs_of(*layer: tuple[str, float], layers: int = 6) -> list[Event]:
    made = Server(marked=False)
    for _ in range(4):
        began = made.at
        made.launch("", *[one for _ in range(layers) for one in layer], graph=True)
        made.events.append(event("user_annotation", "step[DECODE bs=8]", began - 1, made.at - began + 1))
        made.at = made.free_at + 20
    return made.events


SMALL = [("pow_elementwise_kernel", 3.0), ("reduce_kernel_mean", 4.0), ("rsqrt_elementwise_kernel", 2.0),
         ("mul_elementwise_kernel", 3.0)]  # fmt: skip


def test_small_kernels_in_a_graph_could_be_one() -> None:
    (finding,) = unfused_in_graph.find(view(*graphs_of(*SMALL, ("gemm", 20.0))))
    assert finding.saving.us == pytest.approx(6 * (12 - 4), rel=0.15)  # and pauses
    assert "6 times 4 small kernels" in finding.title


def test_fused_kernels_and_few_of_them_are_left_alone() -> None:
    triton = [(f"triton_poi_fused_{n}", us) for n, (_, us) in enumerate(SMALL)]
    assert list(unfused_in_graph.find(view(*graphs_of(*triton, ("gemm", 20.0))))) == []
    assert list(unfused_in_graph.find(view(*graphs_of(*SMALL[:3], ("gemm", 20.0))))) == []
    assert list(unfused_in_graph.find(view(*graphs_of(*SMALL, ("gemm", 20.0), layers=2)))) == []


# What other rules say of servers.


def test_other_rules_know_phases() -> None:
    made = Server(layers=8)
    for number in range(12):
        made.step(prefill=2048 if number in (4, 8) else 0, pause=30)
    seen = view(*made.events)
    assert list(kernel_variance.find(seen)) == []
    waits = list(sync_in_step.find(seen))
    assert all("step[" not in one.title and one.snippet is None for one in waits)
    said = " ".join(one.advice for one in every(seen.run))
    assert "larger batch" not in said
    assert "reduce-overhead" not in said


def test_a_prefill_is_not_told_to_be_larger() -> None:
    made = Server(mode="eager")
    for _ in range(4):
        made.step(prefill=64)
    events = [
        one | {"dur": 400.0, "args": one["args"] | {"grid": [32, 1, 1], "block": [512, 1, 1]}}
        if "gemm" in one["name"] and one["cat"] == "kernel"
        else one
        for one in made.events
    ]
    found = list(small_grid.find(on_h200(*events)))
    assert all("larger batch" not in one.advice for one in found)


@pytest.mark.parametrize(
    ("mark", "prefill", "said"),
    [
        ("step[DECODE bs=8]", 0, "one for each batch size that is served (SGLang: without --disable-cuda-gr"),
        (
            "execute_context_0(0)_generation_8(8)",
            0,
            "(vLLM: without --enforce-eager; cudagraph_capture_sizes",
        ),
        (
            "execute_context_1(64)_generation_0(0)",
            64,
            "between two attentions (vLLM: without --enforce-eager",
        ),
    ],
)
def test_graphs_are_advised_in_the_engines_own_words(mark: str, prefill: int, said: str) -> None:
    made = Server(layers=12, mode="eager", gemm_us=2, attention_us=2, marked=False)
    marks: list[Event] = []
    for _ in range(6):
        began = made.at
        made.step(prefill=prefill, pause=60)
        marks.append(event("user_annotation", mark, began, made.at - began - 60))
    remedy = fewer_launches(view(*made.events, *marks))
    assert said in remedy.advice
    assert (remedy.snippet, remedy.mode) == (None, None)
    assert "torch.compile" in fewer_launches(view(*made.events)).advice


def test_a_trace_without_a_server_has_none_of_these() -> None:
    ours = {"decode-gap", "padded-batch", "prefill-stall", "kv-gather", "unfused-in-graph"}
    assert ours <= set(rules())
    plain = view(host("aten::mm", 0, 10), kernel("gemm", 5, 10))
    assert all(not list(rules()[slug].find(plain)) for slug in ours)
