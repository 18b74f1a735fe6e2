"""Prefill and decode of steps that nothing marks, by the shapes of what they compute."""

from __future__ import annotations

from typing import Any

import pytest

from kinetoscope.analysis.serving.shapes import _requests
from kinetoscope.analysis.serving.table import serving
from kinetoscope.document import Serving
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.captures import with_captures
from serving_traces import Server
from traces import call, event, host, trace

SDPA = "aten::_scaled_dot_product_flash_attention"
VARLEN = "flash_attn::_flash_attn_varlen_forward"


@pytest.mark.parametrize(
    ("name", "dims", "said"),
    [
        ("aten::embedding", "[[8000, 64], [4, 1], [], []]", (4, 1)),
        ("aten::embedding", "[[8000, 64], [1, 512], [], []]", (1, 512)),
        ("aten::embedding", "[[8000, 64], [12], [], []]", None),
        (SDPA, "[[8, 16, 1, 64], [8, 16, 256, 64], []]", (8, 1)),
        (SDPA, "[[1, 16, 300, 64], [1, 16, 300, 64]]", (1, 300)),
        ("aten::_flash_attention_forward", "[[8, 1, 16, 64], [8, 99, 2, 64], [], [], [], []]", (8, 1)),
        (VARLEN, "[[8, 16, 64], [900, 16, 64], [900, 16, 64], [9], [9]]", (8, 1)),
        (VARLEN, "[[700, 16, 64], [700, 16, 64], [700, 16, 64], [2], [2]]", (1, 700)),
        (VARLEN, "[[700, 16, 64], [700, 16, 64], [700, 16, 64], [9], [9]]", None),  # some of each, perhaps
        ("aten::_efficient_attention_forward", "[[1, 8, 4, 64], [1, 99, 4, 64], [], [], [9], [9]]", (8, 1)),
        (SDPA, "[[], [], []]", None),
        (SDPA, "[[-1, 0, 1e9, 3]]", None),
        (VARLEN, "[[8, 16, 64]]", None),
        (SDPA, "{", None),
        (SDPA, "7", None),
    ],
)
def test_shapes_say_the_requests_and_the_tokens_of_each(
    name: str, dims: str, said: tuple[int, int] | None
) -> None:
    assert _requests(name, dims) == said


def rows(found: Serving | None) -> dict[str, tuple[Any, ...]]:
    assert found is not None
    return {row.phase: (row.n, row.requests, row.batch, row.graph_mode) for row in found.steps}


def test_a_captured_graph_says_what_its_replays_compute() -> None:
    made = Server(mode="full", marked=False)
    for _ in range(5):
        made.step()
    capture = [call("cudaStreamBeginCapture", 1, 1, 0), call("cudaStreamEndCapture", 900, 1, 0)]
    for place in range(made.layers * len(made.layer())):
        op = host(SDPA, 10 + 20 * place, 9, **{"Input Dims": [[16, 4, 1, 64], [16, 4, 256, 64], []]})
        capture += [op, call("cudaLaunchKernel", 12 + 20 * place, 1, 9000 + place)]
    plain = trace(*made.events)
    unknown = serving(LoadedRun((plain,)))
    assert rows(unknown) == {"unknown": (5, None, None, "piecewise")}
    assert unknown is not None
    assert unknown.phases_by == ""
    found = serving(LoadedRun((with_captures(plain, [trace(*capture)]),)))
    assert rows(found) == {"decode": (5, None, 16, "piecewise")}  # some of the 16 may be padding
    assert found is not None
    assert (found.phases_by, found.steps[0].tokens_per_s) == ("shapes", None)


@pytest.mark.parametrize(
    ("attends", "dims", "said"),
    [
        (VARLEN, [[8, 16, 64], [900, 16, 64], [900, 16, 64], [9], [9]], ("decode", 8)),
        (VARLEN, [[8, 16, 64], [900, 16, 64], [900, 16, 64], [2], [2]], ("prefill", 1)),
        (VARLEN, [[8, 16, 64], [900, 16, 64], [900, 16, 64], [4], [4]], ("unknown", None)),
        (SDPA, [[1, 16, 8, 64], [1, 16, 900, 64], [1, 16, 900, 64]], ("unknown", None)),
    ],
)
def test_requests_in_one_row_are_those_that_attention_tells_apart(
    attends: str, dims: list[list[int]], said: tuple[str, int | None]
) -> None:
    """transformers' continuous batching looks up eight tokens in one row, whether of one prompt or of eight
    requests: of eight that decode it was said that a prompt is read."""
    made = Server(mode="eager", marked=False)
    for _ in range(5):
        made.step()
    for one in made.events:
        if one["name"] == "aten::embedding":
            one["args"]["Input Dims"] = [[8000, 64], [1, 8], [], []]
        elif one["name"] == "ops::flash_fwd_kernel":
            one |= {"name": attends}
            one["args"]["Input Dims"] = dims
    frame = "transformers/generation/continuous_batching/model_runner.py(195): _forward"
    frames = [event("python_function", frame, 0, 1)] if attends == SDPA else []
    found = serving(LoadedRun((trace(*made.events, *frames),)))
    assert found is not None
    assert [(row.phase, row.requests) for row in found.steps] == [said]


def test_a_pipeline_that_reads_a_prompt_and_makes_an_image_has_no_phase() -> None:
    """Of one with a text encoder it was said that 77 tokens are read, and that its image is padding."""
    made = Server(mode="eager", marked=False)
    for _ in range(5):
        made.step()
    for of_image, each in ((4096, None), (77, "prefill")):
        for one in made.events:
            if one["name"] == "aten::embedding":
                one["args"]["Input Dims"] = [[8000, 64], [1, 77], [], []]
            elif one["name"] in (SDPA, "ops::flash_fwd_kernel"):
                one |= {"name": SDPA}
                one["args"]["Input Dims"] = [[1, 16, of_image, 64]] * 3
        found = serving(LoadedRun((trace(*made.events),)))
        assert list(rows(found)) == [each or "unknown"]


def test_steps_of_the_programs_own_are_a_servers_where_shapes_say_that_it_decodes() -> None:
    made, own = Server(mode="eager", marked=False), []
    for number in range(4):
        began = made.at
        made.step(prefill=64 if number == 0 else 0)
        own.append(event("user_annotation", f"ProfilerStep#{number}", began, made.at - began - 1))
    assert serving(LoadedRun((trace(*made.events, *own),))) is None
    shapes = iter([[1, 64], *[[2, 1]] * 3])
    for one in made.events:
        if one["name"] == "aten::embedding":
            one["args"]["Input Dims"] = [[8000, 64], next(shapes), [], []]
    found = serving(LoadedRun((trace(*made.events, *own),)))
    assert rows(found) == {"prefill": (1, 1, 64, "eager"), "decode": (3, 2, 2, "eager")}
