"""Costs of ops on lists of tensors, against a count element by element; types are read off real kernels'
names."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.analysis.cost.call import Cost, OpCall
from kinetoscope.analysis.cost.formulas import cost
from kinetoscope.analysis.cost.roofline import costed, roofline
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.read import read

Shapes = list[list[int]]
NATIVE = "at::native::(anonymous namespace)::"
LIST = "TensorList"


def multi(functor: str, *more: str, metadata: str = "TensorListMetadata<1>") -> str:
    """A kernel's name as Kineto writes it."""
    functors = ", ".join([NATIVE + functor, *more])
    return f"void {NATIVE}multi_tensor_apply_kernel<{NATIVE}{metadata}, {functors}>({NATIVE}"


def call(name: str, kernel: str, *arguments: tuple[Any, str], strides: Any = None) -> OpCall:
    return OpCall(
        f"aten::{name}", [shape for shape, _ in arguments], [kind for _, kind in arguments], strides or [],
        [""] * len(arguments), kernel,
    )  # fmt: skip


def touched(*lists: Shapes) -> int:
    """Elements, counted one by one."""
    return sum(1 for one in lists for shape in one for _ in product(*map(range, shape)))


shapes = st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=5)


@given(shapes)
def test_foreach_reads_every_list_and_writes_the_first(one: Shapes) -> None:
    n = touched(one)
    kernel = multi("BinaryOpScalarFunctor<c10::BFloat16, 1, 1, 0>", "std::multiplies<float>", "float")
    assert cost(call("_foreach_mul_", kernel, (one, LIST), ([], "Scalar"))) == Cost(n, 2 * 2 * n, "fp32")
    kernel = multi("TernaryOpScalarFunctor<float, 2, 2, 0>", "at::native::LerpFunctor<float>", "float")
    assert cost(call("_foreach_lerp_", kernel, (one, LIST), (one, LIST), ([], "Scalar"))) == Cost(
        3 * n, 4 * (2 * n + n), "fp32"
    )
    kernel = multi("PointwiseOpScalarListFunctor<double, 3, 3, 0>", "std::divides<double> ")
    found = cost(call("_foreach_addcdiv_", kernel, (one, LIST), (one, LIST), (one, LIST), ([], "")))
    assert found == Cost(3 * n, 8 * 4 * n, "fp64")
    kernel = multi("UnaryOpFunctor<c10::Half, 2, 1, 1>", "at::native::Sqrt<float> ")
    assert cost(call("_foreach_sqrt", kernel, (one, LIST))) == Cost(n, 2 * 2 * n, "fp32")
    kernel = multi("ZeroFunctor<float, 1, 1, 0>")
    assert cost(call("_foreach_zero_", kernel, (one, LIST))) == Cost(0, 4 * n, "fp32")
    kernel = multi("LpNormFunctor<float, (at::native::NormType)1, float, 1, 1, 0>")
    assert cost(call("_foreach_norm", kernel, (one, LIST), ([], "Scalar"))) == Cost(2 * n, 4 * n, "fp32")


@given(shapes)
def test_copies_between_lists_of_two_types(one: Shapes) -> None:
    n = touched(one)
    arguments = [(one, LIST), (one, LIST), ([], "Scalar")]
    kernel = multi("CopyFunctor<int, long, 2, 1, 1>", "at::native::Copy<int, long> ")
    assert cost(call("_foreach_copy_", kernel, *arguments)) == Cost(0, (4 + 8) * n, "fp32")
    kernel = multi(
        "UnaryOpFunctor<c10::BFloat16, 2, 1, 1>", "at::native::Copy<c10::BFloat16, c10::BFloat16> "
    )
    assert cost(call("_foreach_copy_", kernel, *arguments)) == Cost(0, 4 * n, "fp32")


@given(shapes, st.booleans())
def test_fused_optimizers(one: Shapes, amsgrad: bool) -> None:
    n = touched(one)
    functor = f"FusedAdamMathFunctor<float, {4 + amsgrad}, (at::native::ADAM_MODE)1, {str(amsgrad).lower()}>"
    kernel = multi(functor, "float const*", "double", metadata="FusedOptimizerTensorListMetadata<4>")
    maxima = one if amsgrad else []
    lists = [(part, LIST) for part in (one, one, one, one, maxima, [[]] * len(one))]
    found = cost(call("_fused_adamw_", kernel, *lists, ([], "Scalar")))
    # Parameter, mean, mean square (and maximum) are read and written, the gradient is read.
    assert found == Cost(
        13 * n, 4 * (touched(one, one, one, one, maxima) + touched(one, one, one, maxima)), "fp32"
    )
    kernel = multi("FusedSgdMathFunctor<float, 3>", "double")
    found = cost(call("_fused_sgd_", kernel, *lists[:3], ([], "Scalar")))
    assert found == Cost(4 * n, 4 * 5 * n, "fp32")


@given(shapes)
def test_concatenation(one: Shapes) -> None:
    n = touched(one)
    opaque = f"{NATIVE}OpaqueType<2u>"
    kernel = f"void {NATIVE}CatArrayBatchedCopy<{opaque}, unsigned int, 4, 64, 64>({opaque}*"
    assert cost(call("cat", kernel, (one, LIST), ([], "Scalar"))) == Cost(0, 2 * 2 * n, "fp32")
    old = f"void {NATIVE}CatArrayBatchedCopy<float, unsigned int, 2, 64, 64>(float*, {NATIVE}"
    assert cost(call("cat", old, (one, LIST), ([], "Scalar"))) == Cost(0, 2 * 4 * n, "fp32")


def test_what_is_expanded_is_read_once() -> None:
    kernel = f"void {NATIVE}CatArrayBatchedCopy_vectorized<{NATIVE}OpaqueType<4u>, unsigned int, 4, 64, 64>("
    found = cost(
        call("cat", kernel, ([[8, 3], [8, 3]], LIST), ([], "Scalar"), strides=[[[3, 1], [0, 1]], []])
    )
    assert found == Cost(0, 4 * (24 + 3 + 48), "fp32")


def test_fsdps_copies() -> None:
    kernel = "void at::native::detail::chunk_cat_cuda_kernel<char, char>(char**, char*, long*"
    arguments = [([[5, 4], [3]], LIST), ([], "Scalar"), ([], "Scalar"), ([2, 14], "c10::BFloat16")]
    assert cost(call("_chunk_cat", kernel, *arguments)) == Cost(0, 2 * (23 + 28), "fp32")
    cast = kernel.replace("<char, char>", "<c10::BFloat16, float>")
    wider = [*arguments[:3], ([2, 14], "float")]
    assert cost(call("_chunk_cat", cast, *wider)) == Cost(0, 2 * 23 + 4 * 28, "fp32")
    kernel = "at::native::detail::split_with_sizes_copy_out_contiguous_no_cast_kernel(char**, char**, long*"
    arguments = [([2, 14], "c10::BFloat16"), ([], "ScalarList"), ([], "Scalar"), ([[2, 10], [2, 4]], LIST)]
    assert cost(call("split_with_sizes_copy", kernel, *arguments)) == Cost(0, 2 * 2 * 28, "fp32")
    assert cost(call("split_with_sizes_copy", kernel.replace("no_cast_", ""), *arguments)) is None


@pytest.mark.parametrize(
    ("kernel", "lengths"),
    [
        (multi("BinaryOpScalarFunctor<float, 1, 1, 0>"), []),  # over thirty tensors: torch wrote no shapes
        ("", [[8]]),
        (multi("BinaryOpScalarFunctor<mystery_t, 1, 1, 0>"), [[8]]),
    ],
)
def test_without_shapes_or_a_type_nothing_is_known(kernel: str, lengths: Shapes) -> None:
    assert cost(call("_foreach_add_", kernel, (lengths, LIST), ([], "Scalar"))) is None
    assert cost(call("_fused_adam_", kernel, *[(lengths, LIST)] * 6)) is None
    assert cost(call("cat", kernel.replace("Functor", ""), (lengths, LIST), ([], "Scalar"))) is None


def test_lists_of_a_real_fsdp_run(shared_data: Path) -> None:
    """What a rank unpacks after a gather is what was gathered, read and written, in 16 bits."""
    trace = read(shared_data / "h200-dist/fsdp_rank0.json.gz")
    of = trace.device_events.with_columns(
        trace.host_events["name"].gather(trace.device_events["op"]).cast(pl.String).alias("op_name")
    )
    texts = of.filter(pl.col("name").cast(pl.String).str.contains("AllGather"))["collective"].cast(pl.String)
    gathers = texts.str.json_path_match('$["Out msg nelems"]')
    table = costed(trace).with_columns(pl.col("op_name").cast(pl.String))
    unpacked = table.filter(pl.col("op_name") == "aten::split_with_sizes_copy")
    assert sorted(unpacked["bytes"]) == sorted(2 * 2 * int(n) for n in gathers)
    shares = roofline(LoadedRun((trace,))).filter(
        pl.col("op_name").cast(pl.String).str.contains("_foreach_copy_|split_with|_chunk_cat|::cat")
    )
    assert not shares["refused"].any()
    assert shares["bandwidth_share"].max() > 0.5
