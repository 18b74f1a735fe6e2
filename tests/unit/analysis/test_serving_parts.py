"""Layers, rates, what the host did and a client's times, against sums over raw events."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from statistics import median

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.analysis.serving.client import compared
from kinetoscope.analysis.serving.host import ACTIVITIES
from kinetoscope.analysis.serving.layers import Repeats, repeats
from kinetoscope.analysis.serving.parts import parts
from kinetoscope.analysis.serving.rows import ServingLayer, ServingRow
from kinetoscope.analysis.serving.table import serving, with_client
from kinetoscope.errors import InputError
from kinetoscope.sources import client
from kinetoscope.sources.run import LoadedRun, load
from serving_traces import Server
from traces import Event, event, trace


def rows_of(*events: Event) -> list[ServingRow]:
    found = serving(LoadedRun((trace(*events),)))
    return [] if found is None else found.steps


def whole(found: ServingLayer) -> float:
    return found.repeats * found.us + found.head_us + found.tail_us + found.elsewhere_us


# Layers.

LAYER = st.lists(st.sampled_from("abcd"), min_size=1, max_size=6)


@given(LAYER, st.integers(3, 9), st.lists(st.sampled_from("xyz")), st.lists(st.sampled_from("uvw")))
@settings(deadline=None)
def test_a_sequence_that_repeats_is_found_wherever_it_stands(
    layer: list[str], times: int, head: list[str], tail: list[str]
) -> None:
    names = [*head, *layer * times, *tail]
    found = repeats(names)
    assert found is not None
    assert found.times * found.length >= len(layer) * times
    part = names[found.first : found.first + found.length]
    assert names[found.first : found.first + found.length * found.times] == part * found.times


def test_what_does_not_follow_itself_three_times_is_no_layer() -> None:
    assert repeats(list("abcdef")) is None
    assert repeats(list("abxaby")) is None
    assert repeats([]) is None
    assert repeats(list("abababx")) == Repeats(0, 2, 3)


@pytest.mark.parametrize("mode", ["full", "piecewise", "eager"])
def test_a_layer_and_what_is_outside_of_it_sum_to_the_step(mode: str) -> None:
    made = Server(layers=6, mode=mode)  # type: ignore[arg-type]
    for _ in range(3):
        made.step()
    (row,) = rows_of(*made.events)
    found = row.layer
    assert found is not None
    assert (found.repeats, found.layers, len(found.kernels)) == (6, 1, 6)
    assert [one.part for one in found.kernels] == [
        "normalization", "matmul", "normalization", "KV cache writes", "attention", "matmul",
    ]  # fmt: skip
    assert sum(one.us for one in found.kernels) == pytest.approx(found.us)
    assert found.us == pytest.approx(3 + 20 + 2 + 2 + 15 + 20)
    on_device = [one["dur"] for one in made.events if one["cat"] in ("kernel", "gpu_memcpy")]
    assert whole(found) == pytest.approx(sum(on_device) / 3) == pytest.approx(found.device_us)


@pytest.mark.parametrize(
    ("name", "repeated", "layers", "kernels"), [("sglang_decode", 36, 1, 15), ("vllm_decode_full", 11, 2, 35)]
)
def test_layers_of_public_traces(
    shared_data: Path, name: str, repeated: int, layers: int, kernels: int
) -> None:
    folder = shared_data / "serving" / name
    if not folder.is_dir():
        pytest.skip("the traces of serving engines are not here")
    run = load(folder)
    found = serving(run)
    assert found is not None
    (row,) = found.steps
    assert row.layer is not None
    assert (row.layer.repeats, row.layer.layers, len(row.layer.kernels)) == (repeated, layers, kernels)
    assert whole(row.layer) == pytest.approx(row.layer.device_us, rel=1e-9)
    assert sum(part.device_us for part in row.exposed) == pytest.approx(row.layer.device_us, rel=1e-9)


def test_rates_are_of_weights_and_of_the_cache(shared_data: Path) -> None:
    """Qwen3-8B, 32 requests, 32,785 tokens in the cache: by the model's sizes, not by the code's formulas."""
    folder = shared_data / "serving" / "sglang_decode"
    if not folder.is_dir():
        pytest.skip("the traces of serving engines are not here")
    run = load(folder)
    found = serving(run)
    assert found is not None
    (row,) = found.steps
    moved = {part.category: part for part in row.exposed}
    weights = 2 * (36 * (4096 * 6144 + 4096 * 4096 + 4096 * 24576 + 12288 * 4096) + 4096 * 151_936)
    assert moved["matmul"].bytes == pytest.approx(weights, rel=0.02)  # activations in addition
    cache = 36 * 32_785 * 2 * 8 * 128 * 2
    assert moved["attention"].bytes == pytest.approx(cache, rel=0.01)
    seconds = moved["matmul"].device_us / 1e6
    assert moved["matmul"].memory_share == pytest.approx(weights / seconds / 5.3e12, rel=0.02)
    assert (row.kv_tokens, row.query_tokens, row.padded_to) == (32_785, 32, None)


# What the host did.


def test_idle_time_has_the_hosts_scope() -> None:
    made = Server(mode="full")
    scopes: list[Event] = []
    for _ in range(4):
        made.step(pause=200)
        scopes.append(event("user_annotation", "schedule: next batch", made.at - 190, 100))
        scopes.append(event("user_annotation", "detokenize", made.at - 80, 70))
    (row,) = rows_of(*made.events, *scopes)
    did = {one.activity for one in row.idle if one.between}
    between = {
        activity: sum(one.idle_us for one in row.idle if one.between and one.activity == activity)
        for activity in did
    }
    # Three of four steps are followed by another, and the table is of each step's mean.
    assert between["schedule"] == pytest.approx(100 * 3 / 4)
    assert between["detokenise"] == pytest.approx(70 * 3 / 4)
    assert sum(between.values()) == pytest.approx(3 / 4 * (row.between_us or 0.0))


@pytest.mark.parametrize(
    ("scope", "activity"),
    [
        ("gpu_model_runner: preprocess", "prepare inputs"),  # vLLM
        ("Preprocess", "prepare inputs"),  # as it wrote them before
        ("gpu_model_runner: bookkeep", "detokenise"),
        ("Bookkeep", "detokenise"),
        ("gpu_model_runner: sample", "sample"),
        ("schedule: allocate_slots", "schedule"),
        ("scheduler.get_next_batch_to_run", "schedule"),  # SGLang
        ("scheduler.process_batch_result_decode", "detokenise"),
        ("_fetch_new_requests", "schedule"),  # TensorRT-LLM
        ("_prepare_tp_inputs", "prepare inputs"),
        ("_sample_async", "sample"),
        ("_handle_responses", "detokenise"),
        ("cudaMemcpyAsync", "copies"),
        ("gpu_model_runner: forward", None),
        ("aten::mm", None),
    ],
)
def test_engines_scopes_say_what_the_host_does(scope: str, activity: str | None) -> None:
    found = [name for name, pattern in ACTIVITIES.items() if pl.Series([scope]).str.contains(pattern)[0]]
    assert (found[0] if found else None) == activity


def test_batches_that_were_padded_are_said() -> None:
    made = Server(mode="eager")
    for _ in range(3):
        made.step(batch=17)
    for one in made.events:
        if "gemm" in one["name"] and one["cat"] == "cpu_op":
            one["args"] |= {"Input Dims": [[32, 64], [64, 64]], "Input type": ["c10::Half", "c10::Half"]}
    (row,) = rows_of(*made.events)
    assert (row.requests, row.padded_to) == (17, 32)


# The table against brute force.


def test_the_table_is_what_raw_events_say() -> None:
    made = Server(mode="full")
    pauses = [80.0, 120.0, 300.0, 90.0, 100.0, 95.0]
    marks: list[tuple[float, float]] = []
    for pause in pauses:
        began = made.at
        made.step(batch=8, pause=pause)
        marks.append((began, made.at - pause))
    (row,) = rows_of(*made.events)
    launched = {one["args"]["correlation"]: one["ts"] for one in made.events if one["cat"] == "cuda_runtime"}
    device = [one for one in made.events if one["cat"] in ("kernel", "gpu_memcpy")]
    of_step = [
        [one for one in device if begin <= launched[one["args"]["correlation"]] < end] for begin, end in marks
    ]
    first = [min(one["ts"] for one in some) for some in of_step]
    last = [max(one["ts"] + one["dur"] for one in some) for some in of_step]
    periods = sorted(b - a for a, b in pairwise(first))
    assert row.period_us is not None
    assert row.period_us.median == pytest.approx(median(periods), abs=0.001)
    assert row.period_us.p90 == pytest.approx(periods[3] + 0.6 * (periods[4] - periods[3]), abs=0.001)
    assert row.span_us == pytest.approx(median(b - a for a, b in zip(first, last, strict=True)), abs=0.001)
    assert row.busy_us == pytest.approx(
        median(sum(one["dur"] for one in some) for some in of_step), abs=0.001
    )
    between = [b - a for a, b in zip(last, first[1:], strict=False)]
    assert row.between_us == pytest.approx(median(between), abs=0.001)
    idle = sum(between) + sum(b - a for a, b in zip(first, last, strict=True))
    idle -= sum(one["dur"] for one in device)
    assert row.exposed_idle_us == pytest.approx(idle / len(pauses), abs=0.001)
    assert row.kernels == median(map(len, of_step))
    assert row.launches == median(len({one["args"]["correlation"] for one in some}) for some in of_step)
    assert row.tokens_per_s == pytest.approx(8e6 / median(periods), rel=1e-6)
    run = trace(*made.events)
    table = parts(run)
    assert table["device_ns"].sum() == sum(round(1000 * one["dur"]) for one in device)
    assert table["exposed_ns"].sum() <= table["device_ns"].sum()


# A client.

VLLM = {
    "date": "20261122", "completed": 200, "duration": 41.5, "total_output_tokens": 9600,
    "request_rate": "inf", "max_concurrency": 8, "output_throughput": 231.0, "mean_ttft_ms": 90.0,
    "mean_tpot_ms": 1.0, "median_tpot_ms": 0.9, "std_tpot_ms": 0.1, "mean_itl_ms": 1.1,
}  # fmt: skip


def test_both_engines_benchmarks_are_read(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps(VLLM, indent=2))
    found = client.read(file)
    assert (found.token_us, found.requests, found.tokens_per_s) == (1000.0, 200, 231.0)
    lines = [
        {"backend": "sglang", "request_rate": float("inf"), "mean_tpot_ms": 2.0},
        {"backend": "sglang", "mean_tpot_ms": 3.0, "accept_length": None},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert client.read(file).token_us == 3000.0
    for result, found in (
        ({"median_itl_ms": 4.0, "median_ttft_ms": 9.0}, (4000.0, None)),  # SGLang 0.3
        ({"mean_tpot_ms": 2.0, "accept_length": 2.5}, (2000.0, 2.5)),
        ({"mean_tpot_ms": 2.0, "spec_decode_acceptance_length": 1.5}, (2000.0, 1.5)),
        ([{"mean_tpot_ms": 2.0}, {"mean_tpot_ms": 5.0}], (5000.0, None)),
    ):
        file.write_text(json.dumps(result))
        assert (client.read(file).token_us, client.read(file).tokens_per_step) == found


@pytest.mark.parametrize(("unit", "of_a_second"), [("ms", 1e3), ("s", 1.0), ("us", 1e6), ("ns", 1e9)])
def test_aiperfs_export_is_read_in_its_units(tmp_path: Path, unit: str, of_a_second: float) -> None:
    """``profile_export_aiperf.json``, and ``profile_export_genai_perf.json`` before it."""
    file = tmp_path / "profile_export_aiperf.json"
    told = {
        "schema_version": "1.1",
        "request_throughput": {"unit": "requests/sec", "avg": 0.82},
        "request_count": {"unit": "requests", "avg": 10.0},
        "time_to_first_token": {"unit": unit, "avg": 0.2 * of_a_second, "p50": 0.1 * of_a_second},
        "inter_token_latency": {"unit": unit, "avg": 0.03 * of_a_second, "p50": 0.02 * of_a_second},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 52.5},
    }
    file.write_text(json.dumps(told))
    found = client.read(file)
    assert found.token_us == pytest.approx(30_000)
    assert (found.requests, found.tokens_per_s) == (10, 52.5)


def test_a_step_that_accepts_several_tokens_is_so_many_of_the_clients() -> None:
    made = Server(marked=False)
    marks: list[Event] = []
    for _ in range(6):
        began = made.at
        made.step()
        name = "step[TARGET_VERIFY bs=8]"
        marks.append(event("user_annotation", name, began, made.at - began - 80))
    run = LoadedRun((trace(*made.events, *marks),))
    assert compared(run, client.ClientTimes(file="x", token_us=100.0)).recorded_token_us is None
    alone, several = (
        compared(run, client.ClientTimes(file="x", token_us=100.0, tokens_per_step=accepted))
        for accepted in (1.0, 2.5)
    )
    assert alone.recorded_token_us is not None
    assert several.recorded_token_us == pytest.approx(alone.recorded_token_us / 2.5)
    assert several.recorded_tokens_per_s == pytest.approx(2.5 * (alone.recorded_tokens_per_s or 0))
    assert sum(part.us for part in several.parts) == pytest.approx(100.0)


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", "not json", '{"mean_tpot_ms": NaN}', '{"mean_tpot_ms": "1"}', "[" * 9999]
)
def test_what_is_no_benchmark_says_so(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(InputError, match="time per token"):
        client.read(file)
    with pytest.raises(InputError, match="cannot be read"):
        client.read(tmp_path / "none.json")


@given(st.lists(st.tuples(st.booleans(), st.floats(40, 200)), min_size=4, max_size=10), st.floats(100, 5000))
@settings(max_examples=10)
def test_the_parts_of_a_token_sum_to_the_clients_time(
    steps: list[tuple[bool, float]], token_us: float
) -> None:
    made = Server(mode="full")
    for prefill, pause in [(False, 80.0), *steps, (False, 80.0)]:
        made.step(prefill=256 if prefill else 0, pause=pause)
    measured = client.ClientTimes(file="x", token_us=token_us)
    run = LoadedRun((trace(*made.events),))
    found = compared(run, measured)
    assert sum(part.us for part in found.parts) == pytest.approx(token_us)
    assert found.recorded_token_us is not None
    assert found.request_token_us is not None
    assert found.outside_us == pytest.approx(token_us - found.request_token_us)
    assert found.recorded_tokens_per_s == pytest.approx(8e6 / found.recorded_token_us)
    assert all(part.us >= -1e-6 for part in found.parts if part.part != "outside")
    table = with_client(run, measured)
    assert table is not None
    assert {row.client_token_us for row in table.steps if row.phase == "decode"} == {token_us}
    assert {row.client_token_us for row in table.steps if row.phase == "prefill"} <= {None}


@pytest.mark.parametrize(
    ("dims", "types"),
    [
        ([[10**30, 4], [4, 4]], ["c10::Half", "c10::Half"]),
        ([[-4, 4]], ["c10::Half"]),
        (["x", 3], [None, 3]),
        ([[]], []),
        ({"a": 1}, "c10::Half"),
    ],
)
def test_shapes_that_no_tensor_has_say_nothing(dims: object, types: object) -> None:
    made = Server(mode="eager")
    for _ in range(3):
        made.step(batch=10**25)
    for one in made.events:
        if one["cat"] == "cpu_op":
            one["args"] |= {"Input Dims": dims, "Input type": types}
    (row,) = rows_of(*made.events)
    assert (row.requests, row.padded_to) == (None, None)
    assert all(part.bytes == 0 for part in row.exposed)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.floats(40, 200)), min_size=4, max_size=12))
@settings(max_examples=20)
def test_a_request_waits_for_its_next_token_since_its_latest_one(
    steps: list[tuple[bool, int, float]],
) -> None:
    """Against requests one by one: each has its latest token where a step's work on the device ended."""
    made, latest, waits = Server(mode="full"), [0.0] * 4, [[0.0] * 4]
    for prefill, leave, pause in [(False, 0, 80.0), *steps, (False, 0, 80.0), (False, 0, 80.0)]:
        if not prefill:
            latest = latest[min(leave, len(waits[-1]), len(latest) - 1) :]  # those who have been decoded
        before = len(made.events)
        made.step(batch=len(latest), prefill=256 if prefill else 0, pause=pause)
        work = (one for one in made.events[before:] if one["cat"] in {"kernel", "gpu_memcpy"})
        ended = max(one["ts"] + one["dur"] for one in work)
        if prefill:
            latest.append(ended)
        else:
            waits.append([ended - at for at in latest])
            latest = [ended] * len(latest)
    found = compared(LoadedRun((trace(*made.events),)), client.ClientTimes(file="x", token_us=1.0))
    measured = [wait for step in waits[2:] for wait in step]
    assert found.request_token_us == pytest.approx(sum(measured) / len(measured))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=4, max_size=12))
@settings(max_examples=20)
def test_prompts_that_a_step_reads_with_those_that_generate_wait_for_no_token_yet(
    steps: list[tuple[int, int]],
) -> None:
    """As above, of steps of unlike length that read prompts too: what waits most is what is long."""
    made, marks, latest, waits = Server(mode="full", marked=False), [], [0.0] * 4, list[list[float]]()
    for read, leave in [(0, 0), *steps, (0, 0)]:
        latest = latest[min(leave, len(latest) - 1) :]
        before, began = len(made.events), made.at
        made.layers = 4 + read
        made.step()
        said = f"execute_context_{read}({32 * read})_generation_{len(latest)}({len(latest)})"
        marks.append(event("user_annotation", said, began, made.at - began - 80))
        work = (one for one in made.events[before:] if one["cat"] in {"kernel", "gpu_memcpy"})
        ended = max(one["ts"] + one["dur"] for one in work)
        waits.append([ended - at for at in latest])
        latest = [ended] * (len(latest) + read)
    found = compared(LoadedRun((trace(*made.events, *marks),)), client.ClientTimes(file="x", token_us=500.0))
    measured = [wait for step in waits[1:] for wait in step]
    assert found.request_token_us == pytest.approx(sum(measured) / len(measured))
    assert sum(part.us for part in found.parts) == pytest.approx(500.0)
    assert all(part.us >= -1e-6 for part in found.parts if part.part != "outside")


def test_the_most_likely_are_experts_before_the_last_product_and_tokens_behind_it() -> None:
    """As gpt-fast samples, of whose kernels all but one are called as those that choose experts."""
    made = Server(mode="eager", marked=False)
    marks: list[Event] = []
    for _ in range(3):
        began = made.at
        made.launch("aten::embedding", ("vectorized_gather_kernel", 3.0))
        for _ in range(4):
            made.launch("aten::topk", ("at::native::sbtopk::gatherTopK<float>", 5.0))
            made.launch("ops::experts", ("fused_moe_kernel", 40.0))
            made.launch("ops::attention", ("flash_fwd_kernel", 20.0))
        made.launch("aten::mm", ("lm_head_gemm", 30.0))
        made.launch("aten::topk", ("at::native::sbtopk::gatherTopK<float>", 7.0))
        made.at = max(made.at, made.free_at) + 50
        marks.append(event("user_annotation", "step[DECODE bs=8]", began, made.at - began - 40))
    (row,) = rows_of(*made.events, *marks)
    found = {part.category: part.device_us for part in row.exposed}
    assert (found["moe"], found["sampling"]) == (pytest.approx(4 * 45.0), pytest.approx(7.0))
