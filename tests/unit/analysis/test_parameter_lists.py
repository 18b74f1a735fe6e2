"""The elements of an optimizer's long lists: told by the gradients, if the blocks launched say the same."""

from __future__ import annotations

import json
from math import ceil, prod
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.analysis.cost.lists import CHUNK, listed_elements
from kinetoscope.analysis.cost.roofline import costed, roofline
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace
from kinetoscope.trace.read import read
from traces import Event, call, host, kernel, trace

MULTIPLY = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "TensorListMetadata<1>, at::native::(anonymous namespace)::BinaryOpScalarFunctor<c10::BFloat16, 1, 1, 0>"
    ", std::multiplies<float>, float>(at::native::(anonymous namespace)::TensorListMetadata<1>"
)
UNSAID = {"Input Dims": [[], []], "Input type": ["TensorList", "Scalar"], "Input Strides": [[], []]}


def gradient(at: float, shape: list[int]) -> Event:
    return host("torch::autograd::AccumulateGrad", at, 1, **{"Input Dims": [shape], "Input type": ["float"]})


def multiplied(at: float, correlation: int, *blocks: int) -> list[Event]:
    """``_foreach_mul_`` over a list that was too long to be recorded; a kernel for each number of blocks."""
    events = [host("aten::_foreach_mul_", at, 50, **UNSAID)]
    for i, count in enumerate(blocks):
        events.append(call("cudaLaunchKernel", at + 1 + i, 0.5, correlation + i))
        events.append(kernel(MULTIPLY, at + 20 + i, 0.5, correlation + i, grid=[count, 1, 1]))
    return events


def elements(found: Trace) -> list[int | None]:
    ops = found.host_events.filter(pl.col("name").cast(pl.String) == "aten::_foreach_mul_").select(
        "name", op="id"
    )
    return listed_elements(found, ops).to_list()


shapes = st.lists(st.lists(st.integers(1, 600), min_size=1, max_size=2), min_size=1, max_size=6)


@settings(max_examples=25, deadline=None)
@given(shapes, st.integers(1, 3), st.integers(1, 4))
def test_every_pass_had_the_parameters_once(parameters: list[list[int]], passes: int, limit: int) -> None:
    chunks = sum(ceil(prod(shape) / CHUNK) for shape in parameters)
    launches = [min(limit, chunks - done) for done in range(0, chunks, limit)]
    events: list[Event] = []
    for i in range(passes):
        events += [gradient(1000 * i + n, shape) for n, shape in enumerate(parameters)]
        events += multiplied(1000 * i + 500, 100 * i + 1, *launches)
    assert elements(trace(*events)) == [sum(map(prod, parameters))] * passes


def test_other_blocks_than_the_gradients_have_chunks_say_nothing() -> None:
    two = [gradient(0, [CHUNK, 3]), gradient(1, [10])]  # 3 + 1 chunks
    assert elements(trace(*two, *multiplied(100, 1, 4))) == [3 * CHUNK + 10]
    assert elements(trace(*two, *multiplied(100, 1, 3))) == [None]
    assert elements(trace(*two, *multiplied(100, 1, 2))) == [
        None
    ]  # would be two passes, but each shape is there once
    assert elements(trace(*two, *multiplied(100, 1, 0))) == [None]
    assert elements(trace(*multiplied(100, 1, 4))) == [None]


def test_the_cost_of_list_ops_follows_from_their_parameters() -> None:
    found = costed(trace(gradient(0, [CHUNK, 3]), gradient(1, [10]), *multiplied(100, 1, 3, 1)))
    numbers = 3 * CHUNK + 10
    assert found.select("flops", "bytes", "time_ns").row(0) == (numbers, 2 * 2 * numbers, 1000)


@pytest.mark.parametrize("dims", [[], [7], "x", [["a"]], [[-1]], [[2.5]]])
def test_absurd_shapes_give_no_number_of_elements(dims: Any) -> None:
    odd = host("torch::autograd::AccumulateGrad", 0, 1, **{"Input Dims": dims})
    assert elements(trace(odd, *multiplied(100, 1, 1))) == [None]


def test_the_allocator_says_the_same_of_a_real_step(shared_data: Path) -> None:
    """``_foreach_sqrt`` allocates what it writes: two bytes an element, and what the allocator does not split
    off."""
    found = read(shared_data / "h200/llama_train_eager.json.gz")
    sqrt = found.host_events.filter(pl.col("name").cast(pl.String) == "aten::_foreach_sqrt")
    assert len(sqrt) == 2
    counted = listed_elements(found, sqrt.select("name", op="id")).to_list()
    gradients = (
        found.table("host_events")
        .filter(pl.col("name").cast(pl.String) == "torch::autograd::AccumulateGrad")["input_dims"]
        .cast(pl.String)
    )
    assert sum(prod(json.loads(text)[0]) for text in gradients) == sum(counted)
    for elements_of, op in zip(counted, sqrt.iter_rows(named=True), strict=True):
        inside = pl.col("start_ns").is_between(op["start_ns"], op["start_ns"] + op["duration_ns"])
        allocated = found.memory.filter(inside & (pl.col("bytes") > 0) & (pl.col("device_type") == 1))[
            "bytes"
        ].sum()
        assert 1 <= allocated / (2 * elements_of) < 1.02
    shares = roofline(LoadedRun((found,))).filter(pl.col("op_name").cast(pl.String).str.contains("_foreach_"))
    assert len(shares) == 7
    assert not shares["refused"].any()
    assert shares["bandwidth_share"].min() > 0.4
