"""Steps of servers that mark none: as many, of the same work, as their marks would tell."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.analysis.serving.steps import PHASES, marks, own, steps
from kinetoscope.analysis.serving.table import serving
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules import prefill_stall
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace
from kinetoscope.trace.read import read
from serving_traces import Mode, Server, repeated
from traces import Event, event, host, kernel, trace

FIGURES = ["start_ns", "end_ns", "kernels", "launches", "graph", "busy_ns"]
ENGINE = re.compile(r"^(step\[|execute_)")


def without_marks(events: list[Event]) -> list[Event]:
    return [one for one in events if not ENGINE.match(one.get("name", ""))]


@st.composite
def servers(draw: st.DrawFn) -> Server:
    made = Server(
        layers=draw(st.integers(4, 7)),
        mode=draw(st.sampled_from(("full", "piecewise", "eager"))),
        waits=draw(st.booleans()),
        gemm_us=draw(st.floats(2, 60)),
    )
    # The longest pause between launches is the scheduler's: ours is 2 µs between two ops.
    pauses = draw(st.lists(st.floats(40, 400), min_size=4, max_size=9))
    prefills = draw(st.sets(st.integers(0, len(pauses) - 1), max_size=2))
    for number, pause in enumerate(pauses):
        made.step(prefill=512 if number in prefills else 0, pause=pause)
    return made


@given(servers())
@settings(deadline=None, max_examples=20)
def test_launches_tell_the_steps_that_marks_would(made: Server) -> None:
    marked, bare = trace(*made.events), trace(*without_marks(made.events))
    assert marks(marked).found_by == "annotation"
    assert marks(bare).found_by in ("graphs", "kernels")
    assert steps(bare).select(FIGURES).equals(steps(marked).select(FIGURES))


@pytest.mark.parametrize(("name", "apart_us"), [("vllm_decode_full", 20_000.0), ("sglang_decode", 600_000.0)])
@pytest.mark.parametrize("times", [1, 4])
def test_public_traces_without_their_marks(shared_data: Path, name: str, apart_us: float, times: int) -> None:
    folder = shared_data / "serving" / name
    if not folder.is_dir():
        pytest.skip("the traces of serving engines are not here")
    (file,) = folder.glob("*.json.gz")
    events = repeated(file, times, apart_us)
    marked, bare = trace(*events), trace(*without_marks(events))
    found, said = steps(bare), steps(marked)
    assert marks(bare).found_by == "graphs"
    assert len(found) == len(said) == times
    # The engine's mark may leave out what its step copies and samples: a hundredth of its time.
    for column in ("busy_ns", "span_ns", "kernels"):
        assert found[column].to_list() == pytest.approx(said[column].to_list(), rel=0.02)


def test_tokens_of_a_generation_are_steps(shared_data: Path) -> None:
    """16 tokens of an 8-layer Llama by transformers, eager, on an H200; nothing marks them."""
    run = read(shared_data / "h200" / "llama_generate_eager.json.gz")
    assert marks(run).found_by == "kernels"
    table = own(run)
    flash = table.filter(table["name"].cast(str).str.contains("flash_fprop"))
    assert flash.group_by("step").len()["len"].to_list() == [8] * 16


def test_calls_of_the_model_are_steps_where_they_were_recorded() -> None:
    made = Server(mode="eager", marked=False, layers=5)
    for _ in range(4):
        began = made.at
        made.step()
        made.events.append(event("python_function", "nn.Module: Llama_0", began + 12, made.at - began - 130))
        made.events.append(event("python_function", "nn.Module: Model_0", began + 13, made.at - began - 140))
    found = marks(trace(*made.events))
    assert (found.found_by, len(found.table)) == ("calls", 4)
    starts = [one["ts"] for one in made.events if one["name"] == "nn.Module: Llama_0"]
    assert found.table["start_ns"].to_list() == [round(1000 * start) for start in starts]


def test_shapes_of_tokens_tell_prefill_from_decode() -> None:
    made = Server(mode="eager", marked=False)
    made.step(prefill=64)
    for _ in range(4):
        made.step()
    shapes = iter([[2, 64], *[[2, 1]] * 4])
    for one in made.events:
        if one["name"] == "aten::embedding":
            one["args"]["Input Dims"] = [[8000, 64], next(shapes), [], [], []]
    found = serving(LoadedRun((trace(*made.events),)))
    assert found is not None
    assert found.engine == "unknown"
    rows = {row.phase: (row.n, row.requests, row.query_tokens) for row in found.steps}
    assert rows == {"prefill": (1, 2, 128), "decode": (4, 2, 2)}


@pytest.mark.parametrize(
    ("category", "prefill", "decode"),
    [
        ("user_annotation", "prefill", "decode"),
        ("user_annotation", "Prefill (1 request)", "decode_step_{}"),
        ("python_function", "serve.py(30): _prefill", "serve.py(40): decode_one_token"),
    ],
)
@pytest.mark.parametrize("mode", ["full", "eager"])
def test_what_a_program_calls_its_phases_they_are(
    category: str, prefill: str, decode: str, mode: Mode
) -> None:
    """Ranges of a server of one's own, or functions where their stacks were recorded; around a whole
    generation stands another, which is called after a phase too."""
    made = Server(mode=mode, marked=False)
    said: list[str] = []
    generation = made.at
    for number in range(10):
        began = made.at
        made.step(prefill=512 if number % 5 == 0 else 0)
        said.append("prefill" if number % 5 == 0 else "decode")
        name = (prefill if number % 5 == 0 else decode).format(number)
        made.events.append(event(category, name, began - 1, made.at - began - 50))
        if number % 5 == 4:
            whole = event(
                "python_function", "serve.py(9): decode_n", generation - 2, made.at - generation - 30
            )
            made.events.append(whole)
            generation = made.at
    found = marks(trace(*made.events))
    assert (found.found_by, found.phases_by) == ("calls", "names")
    assert found.table["phase"].to_list() == said
    table = serving(LoadedRun((trace(*made.events),)))
    assert table is not None
    assert {row.phase: row.n for row in table.steps} == {"prefill": 2, "decode": 8}


def denoising(*frames: str, lookup: str = "aten::conv2d") -> Server:
    """Passes of a model over 4,096 patches of an image each, and a decoder of images behind the last."""
    made = Server(mode="eager", marked=False)
    for _ in range(5):
        began = made.at
        made.step()
        made.events += [event("python_function", name, began - 1, made.at - began - 50) for name in frames]
    began = made.at
    made.launch("aten::scaled_dot_product_attention", ("flash_fwd_kernel", 9.0))
    made.events.append(event("python_function", "autoencoder_kl.py(9): decode", began - 1, 20))
    for one in made.events:
        if one["name"] == "aten::embedding":
            one["name"] = lookup
        if one["name"] == "ops::flash_fwd_kernel":
            one["name"] = "aten::scaled_dot_product_attention"
            one["args"]["Input Dims"] = [[2, 16, 4096, 64]] * 3
    return made


def test_passes_over_an_image_read_no_prompt() -> None:
    """Attention of many tokens was called prefill, and the pass before a decoder of images decode."""
    found = marks(trace(*denoising().events))
    assert set(found.table["phase"]) == {"unknown"}
    fused = denoising(lookup="triton_op")
    for one in fused.events:
        if one["name"] == "vectorized_gather_kernel":
            one["name"] = "triton_poi_fused_embedding_0"
    assert set(marks(trace(*fused.events)).table["phase"]) == {"prefill"}


def test_what_encodes_and_decodes_decodes_no_tokens() -> None:
    """As a model that segments images, whose one function holds all of it."""
    frame = "mmseg/models/segmentors/encoder_decoder.py(99): encode_decode"
    for name in (frame, frame.replace("encode_decode", "decode")):
        found = marks(trace(*denoising(name).events))
        assert set(found.table["phase"]) == {"unknown"}


def test_a_pipeline_of_diffusers_makes_images() -> None:
    made = denoising("diffusers/pipelines/flux/pipeline_flux.py(652): __call__")
    found = marks(trace(*made.events))
    assert set(found.table["phase"]) == {"diffusion"}
    assert set(found.table["engine"]) == {"diffusers"}
    assert found.phases_by == "names"


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("prefill", "prefill"),
        ("decode", "decode"),
        ("model: decode[3]", "decode"),
        ("decode_step_17", "decode"),
        ("decoding", "decode"),
        ("chunked prefill", "prefill"),
        ("engine.py(3): forward_decode", "decode"),
        ("engine.py(3): Prefill", "prefill"),
        ("engine/decode.py(3): run", None),
        ("tokenizers.py(3): decoder", None),
        ("undecoded", None),
        ("nn.Module: Decoder_0", None),
    ],
)
def test_names_that_say_a_phase(name: str, phase: str | None) -> None:
    assert [one for one, pattern in PHASES.items() if re.search(pattern, name)] == ([phase] if phase else [])


def nothing(run: Trace) -> bool:
    return marks(run).found_by == "" and steps(run).is_empty() and serving(LoadedRun((run,))) is None


def test_other_programs_have_no_steps_of_a_server() -> None:
    made = Server(mode="eager", marked=False)
    for _ in range(4):
        made.step()
    assert marks(trace(*made.events)).found_by == "kernels"
    training = [*made.events, host("autograd::engine::evaluate_function: MmBackward0", made.at, 5)]
    assert nothing(trace(*training))
    backward = [*made.events, kernel("flash_bwd_kernel", made.at + 9, 5, 2)]
    assert nothing(trace(*backward))
    convolutions = [one | {"name": one["name"].replace("flash", "conv")} for one in made.events]
    assert nothing(trace(*convolutions))
    steps_of_its_own = [
        event("user_annotation", f"ProfilerStep#{n}", made.at * n / 4, made.at / 4) for n in range(4)
    ]
    assert nothing(trace(*made.events, *steps_of_its_own))


def test_work_of_an_earlier_step_is_left_out() -> None:
    made = Server(marked=False)
    made.launch("aten::arange", ("elementwise_kernel_with_index", 4.0))
    made.at += 100_000
    made.step()
    (step,) = steps(trace(*made.events)).iter_rows(named=True)
    assert step["span_ns"] < 1_000_000


_MODES: tuple[Mode, ...] = ("full", "piecewise", "eager")


@pytest.mark.parametrize("mode", _MODES)
def test_steps_cut_off_at_the_ends_are_left_out(mode: Mode) -> None:
    made = Server(mode=mode, marked=False)
    for _ in range(5):
        made.step()
    late = [one for one in made.events if one["ts"] > 60 and one.get("args", {}).get("correlation") != 3]
    whole = steps(trace(*made.events))
    assert len(whole) == 5
    assert len(steps(trace(*late))) in (4, 5)


def test_a_marked_step_in_which_the_recording_ended_is_left_out() -> None:
    made = Server()
    for _ in range(4):
        made.step()
    began = made.at
    made.launch("aten::copy_", ("Memcpy HtoD (Pinned -> Device)", 1.5), copy=True)
    stop = event("cuda_runtime", "cudaDeviceSynchronize", made.at, 30)
    broken_off = event("user_annotation", "step[DECODE bs=8]", began, made.at + 40 - began)
    assert len(marks(trace(*made.events)).table) == 4
    assert len(marks(trace(*made.events, broken_off, stop)).table) == 4
    # One that ended before the profiler was stopped is whole.
    whole = broken_off | {"dur": made.at - began}
    assert len(marks(trace(*made.events, whole, stop)).table) == 5


def test_drafting_is_a_phase_of_its_own() -> None:
    """Speculative decoding: the model that drafts runs several small steps of its own, within the draft."""
    made = Server(layers=8, marked=False)
    marks_of: list[Event] = []
    for _ in range(5):
        began = made.at
        made.step(4, kind="eager", pause=5)
        nested = event("user_annotation", "step[DECODE bs=4]", began + 2, made.at - began - 10)
        marks_of += [event("user_annotation", "draft", began, made.at - began - 5), nested]
        began = made.at
        made.step(4, pause=100)
        marks_of.append(event("user_annotation", "step[TARGET_VERIFY bs=4]", began, made.at - began - 100))
    run = trace(*made.events, *marks_of)
    found = serving(LoadedRun((run,)))
    assert found is not None
    assert {(row.phase, row.n, row.graph_mode) for row in found.steps} == {
        ("verify", 5, "full"),
        ("draft", 5, "eager"),
    }
    assert all(row.tokens_per_s is None for row in found.steps)
    assert len(own(run)) == len(run.device_events)
    assert list(prefill_stall.find(RankView(LoadedRun((run,)), run))) == []
