"""FLOPs and bytes of ops on lists of tensors: ``_foreach_*``, fused optimizers, ``cat`` and its kin.

Of a list torch records the shapes, unless it is longer than 30 tensors (``TENSOR_LIST_DISPLAY_LENGTH_LIMIT``
in torch's ``profiler/util.h``): then the elements are those of the parameters (``listed_elements``), or the
cost is null. The type is read off the kernel's name (``BinaryOpScalarFunctor<c10::BFloat16, 1, 1, 0>``,
``OpaqueType<2u>``).
"""

from __future__ import annotations

import re
from math import prod

import msgspec
import polars as pl

from kinetoscope.analysis.cost.call import DTYPES, Cost, OpCall, numel
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.events.torch_names import GRADIENT
from kinetoscope.analysis.memo import remembered
from kinetoscope.trace.model import Trace

LIST = "TensorList"
# The types of C++ that torch records by another name.
_RECORDED = {
    "short": "short int",
    "__half": "c10::Half",
    "__nv_bfloat16": "c10::BFloat16",
    "char": "signed char",
}
_SGD_WITH_MOMENTUM = re.compile(r"FusedSgdMathFunctor<[^,]+, 3\b")
_OPAQUE = re.compile(r"OpaqueType<(\d+)u?>")
_FUNCTOR = re.compile(r"Functor<([^,]+),")
_COPIES = re.compile(r"::Copy<[^,]+, ([^,>]+)>")
_CAT = re.compile(r"CatArray\w*<([^,]+),")
_CHUNK_CAT = re.compile(r"chunk_cat_cuda_kernel<([^,]+),")

# Operations an element; every other one takes one.
_OPERATIONS = {"addcmul": 3, "addcdiv": 3, "lerp": 3, "copy": 0, "zero": 0, "norm": 2, "sigmoid": 4}
FOREACH = re.compile(r"^aten::_foreach_(\w+?)_?$")


def foreach(call: OpCall) -> Cost:
    """Each tensor of every list is read once, and one of the first list's shape written. ``copy`` and
    ``zero`` do not read what they write; of a norm almost nothing is written. Scalars cost nothing."""
    name = FOREACH.sub(r"\1", call.name)
    width = _width(_FUNCTOR, call)
    lists = [_of_parameters(call, at) for at, kind in enumerate(call.types) if kind == LIST]
    read = sum(lists) * width
    if name == "zero":
        read = 0
    elif name == "copy":
        read = lists[1] * _width(_COPIES, call)
    written = 0 if name == "norm" else lists[0] * width
    return Cost(_OPERATIONS.get(name, 1) * lists[0], read + written, _computes_in(call))


def fused_adam(call: OpCall) -> Cost:
    """(parameters, gradients, means, mean squares, their maxima, steps, …): reads all of the first four, and
    the maxima where the kernel keeps them (``amsgrad``); writes all of those but the gradients. Thirteen
    operations an element: three for the mean, four for the mean square, six for the update
    (``fused_adam_utils.cuh``), not counting weight decay."""
    count = _of_parameters(call, 0)
    maxima = re.search(r"FusedAdamMathFunctor<[^()]*\([^)]*\)\d+, true>", call.kernel) is not None
    return Cost(13 * count, (7 + 2 * maxima) * count * _width(_FUNCTOR, call), _computes_in(call))


def fused_sgd(call: OpCall) -> Cost:
    """(parameters, gradients, momenta, …): reads and writes parameters and, where the kernel has a third list
    of them, momenta; reads gradients. Two operations an element for the update and two for the momentum."""
    count = _of_parameters(call, 0)
    momenta = count if _SGD_WITH_MOMENTUM.search(call.kernel) else 0
    return Cost(2 * (count + momenta), (3 * count + 2 * momenta) * _width(_FUNCTOR, call), _computes_in(call))


def concatenation(call: OpCall) -> Cost:
    """(tensors, dimension): reads every tensor (stride 0 once) and writes as much, of the kernel's type."""
    shapes: list[list[int]] = call.shapes[0]
    strides = call.strides[0] if call.strides and call.strides[0] else [[1] * len(shape) for shape in shapes]
    read = sum(
        numel([n for n, stride in zip(*one, strict=True) if stride])
        for one in zip(shapes, strides, strict=True)
    )
    return Cost(0, (read + _elements(call, 0)) * _width(_CAT, call), "fp32")


def chunk_concatenation(call: OpCall) -> Cost:
    """(tensors, dimension, chunks, result): reads the tensors, writes the (padded) result. The kernel's name
    has the tensors' type, or ``char`` where it is the result's."""
    width = call.size(3) if "<char, char>" in call.kernel else _width(_CHUNK_CAT, call)
    return Cost(0, _elements(call, 0) * width + call.footprint(3), "fp32")


def split_copy(call: OpCall) -> Cost | None:
    """(tensor, sizes, dimension, results): reads the tensor, writes as much. Null where it also casts."""
    return Cost(0, 2 * call.footprint(0), "fp32") if "no_cast" in call.kernel else None


def _elements(call: OpCall, at: int) -> int:
    """Elements of all tensors of a list. Raises LookupError where it is none, or was too long to record."""
    shapes: list[list[int]] = call.shapes[at]
    if call.types[at] != LIST or not shapes:
        raise LookupError(at)
    return sum(numel(shape) for shape in shapes)


def _of_parameters(call: OpCall, at: int) -> int:
    """Elements of all tensors of a list that may be that of all parameters. Raises LookupError where its
    shapes are not recorded, nor known from elsewhere."""
    if call.types[at] == LIST and not call.shapes[at] and call.listed and "multi_tensor_apply" in call.kernel:
        return call.listed
    return _elements(call, at)


def _width(pattern: re.Pattern[str], call: OpCall) -> int:
    """Bytes of an element of the type in the kernel's name. Raises LookupError where that is not known."""
    kind = _kind(pattern, call)
    opaque = _OPAQUE.search(kind)
    return int(opaque[1]) if opaque else DTYPES[_RECORDED.get(kind, kind)][1]


def _kind(pattern: re.Pattern[str], call: OpCall) -> str:
    found = pattern.search(call.kernel)
    if found is None:
        raise LookupError(call.kernel)
    return found[1]


def _computes_in(call: OpCall) -> str:
    """Vector units compute 16-bit numbers in fp32."""
    return "fp64" if "double" in _kind(_FUNCTOR, call) else "fp32"


LISTS = r"^aten::(_foreach_|_fused_(adam|sgd))"
# Elements that one block of multi_tensor_apply works on: kChunkSize, ATen/native/cuda/MultiTensorApply.cuh.
CHUNK = 65536


def listed_elements(trace: Trace, ops: pl.DataFrame) -> pl.Series:
    """For each row of ``ops`` (``op``, a row of ``host_events``, and its ``name``), the elements of its lists
    if they are those of the parameters; else null.

    Backward passes record the shape of each gradient that they accumulate; an op went over all parameters
    where the blocks of its launches are as many as the chunks of those shapes, to the last one.
    """
    of_lists = ops.filter(matching(ops, "name", LISTS))["op"]
    gradients = _gradients(trace) if len(of_lists) else {}
    found: dict[int, int] = {}
    if gradients:
        blocks = (
            trace.device_events.filter(pl.col("op").is_in(of_lists.implode()))
            .group_by("op")
            .agg(pl.col("grid").cast(pl.String).str.extract(r"^\[(\d+)").cast(pl.Int64, strict=False).sum())
        )
        known = {count: _elements_of_blocks(gradients, count) for count in blocks["grid"].unique()}
        found = {op: elements for op, count in blocks.iter_rows() if (elements := known[count]) is not None}
    return pl.Series("listed", [found.get(op) for op in ops["op"]] if found else [None] * len(ops), pl.Int64)


def _elements_of_blocks(gradients: dict[tuple[int, ...], int], blocks: int) -> int | None:
    """The elements of one pass, if the recording holds a whole number of passes of so many chunks each."""
    chunks = sum(count * -(-prod(shape) // CHUNK) for shape, count in gradients.items())
    passes, left = divmod(chunks, blocks) if blocks > 0 else (0, 1)
    if left or not passes or any(count % passes for count in gradients.values()):
        return None
    return sum(count * prod(shape) for shape, count in gradients.items()) // passes


@remembered
def _gradients(trace: Trace) -> dict[tuple[int, ...], int]:
    """The shapes of the gradients that were accumulated while the trace was recorded, with how often."""
    host = trace.host_events
    recorded = trace.argument("input_dims", matching(host, "name", GRADIENT).arg_true()).drop_nulls()
    gradients: dict[tuple[int, ...], int] = {}
    for text, count in recorded.cast(pl.String).value_counts().iter_rows():
        match msgspec.json.decode(text):
            case [[*shape], *_] if all(type(n) is int and n >= 0 for n in shape):
                gradients[tuple(shape)] = gradients.get(tuple(shape), 0) + count
            case _:
                return {}
    return gradients
