"""FLOPs and bytes of an op call, from its recorded shapes and types. To teach an op, add it to a table.

Bytes are the least that has to cross the memory bus: every input once, every output once. What is no matrix
product counts one FLOP for each arithmetic operation on an element, as ``torch.autograd.profiler`` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from math import prod

from kinetoscope.analysis.cost import lists
from kinetoscope.analysis.cost.call import DTYPES, Cost, OpCall, broadcast, numel


def mm(call: OpCall, a: int = 0, b: int = 1, added: int | None = None) -> Cost:
    """``[m, k] @ [k, n]``: 2·m·n·k. Reads both and what is added to the product, writes m·n."""
    (m, k), n = call.shape(a), call.shape(b)[1]
    return _product(call, 2 * m * n * k, m * n, a, b, added)


def bmm(call: OpCall, a: int = 0, b: int = 1, added: int | None = None) -> Cost:
    """``[s, m, k] @ [s, k, n]``: 2·s·m·n·k."""
    (s, m, k), n = call.shape(a), call.shape(b)[2]
    return _product(call, 2 * s * m * n * k, s * m * n, a, b, added)


def mv(call: OpCall, a: int = 0, added: int | None = None) -> Cost:
    """``[m, k] @ [k]``: 2·m·k."""
    m, k = call.shape(a)
    return _product(call, 2 * m * k, m, a, a + 1, added)


def dot(call: OpCall) -> Cost:
    """``[k] @ [k]``: 2·k."""
    return _product(call, 2 * numel(call.shape(0)), 1, 0, 1, None)


def scaled_mm(call: OpCall) -> Cost:
    """``[m, k] @ [k, n]`` in fp8 or fp4; the result is taken to be 16 bits wide, as it is by default."""
    (m, k), n = call.shape(0), call.shape(1)[1]
    packed = 2 if call.dtype(0) == "fp4" else 1  # two fp4 numbers an element
    flops = 2 * m * n * k * packed
    return Cost(flops, call.footprint(0) + call.footprint(1) + 2 * m * n, call.dtype(0), matrix=True)


def _product(call: OpCall, flops: int, results: int, a: int, b: int, added: int | None) -> Cost:
    read = call.footprint(a) + call.footprint(b)
    if added is not None and call.is_tensor(added):
        read += call.footprint(added)
    return Cost(flops, read + results * call.size(a), call.dtype(a), matrix=True)


def cudnn_convolution(call: OpCall) -> Cost | None:
    """(input, weight, padding, stride, dilation, groups, …)"""
    return _convolution(call, call.integers(2), call.integers(3), call.integers(4))


def miopen_convolution(call: OpCall) -> Cost | None:
    """(input, weight, bias, padding, stride, dilation, groups, …)"""
    return _convolution(call, call.integers(3), call.integers(4), call.integers(5))


def convolution(call: OpCall) -> Cost | None:
    """(input, weight, bias, stride, padding, dilation, transposed, output padding, groups)"""
    groups = int(call.values_at(8) or 1) if call.is_true(6) else None
    return _convolution(call, call.integers(4), call.integers(3), call.integers(5), groups)


def depthwise(call: OpCall) -> Cost | None:
    """(input, weight, kernel size, bias, stride, padding, dilation)"""
    return _convolution(call, call.integers(5), call.integers(4), call.integers(6))


def _convolution(
    call: OpCall,
    padding: list[int] | None,
    stride: list[int] | None,
    dilation: list[int] | None,
    transposed_groups: int | None = None,
) -> Cost | None:
    """Input [n, c, …], weight [o, c/groups, k…]: every output takes 2·(c/groups)·∏k operations. Of a
    transposed convolution (weight [c, o/groups, k…]), every input does. Null where padding and stride were
    not recorded."""
    if padding is None or stride is None or dilation is None:
        return None
    source, weight = call.shape(0), call.shape(1)
    kernel = weight[2:]
    sides = range(len(kernel))

    def per_side(sizes: list[int]) -> list[int]:
        return sizes * len(kernel) if len(sizes) == 1 else sizes

    pad, step, spread = per_side(padding), per_side(stride), per_side(dilation)
    reach = [spread[i] * (kernel[i] - 1) for i in sides]
    if transposed_groups:
        target = [(source[2 + i] - 1) * step[i] - 2 * pad[i] + reach[i] + 1 for i in sides]
        flops, channels = 2 * numel(source) * prod(weight[1:]), weight[1] * transposed_groups
    else:
        target = [(source[2 + i] + 2 * pad[i] - reach[i] - 1) // step[i] + 1 for i in sides]
        flops, channels = 2 * source[0] * prod(target) * prod(weight), weight[0]
    written = source[0] * channels * prod(target) * call.size(0)
    return Cost(flops, call.footprint(0) + call.footprint(1) + written, call.dtype(0), matrix=True)


def convolution_backward(call: OpCall) -> Cost | None:
    """(gradient, input, weight, …, transposed at 7, …, output mask at 10): the gradients of input and of
    weight take as much as the forward pass each; the one of bias is not counted. Null where the mask was not
    recorded."""
    wanted, transposed = call.flags(10), call.is_true(7)
    if wanted is None or transposed is None:
        return None
    positions = call.shape(1) if transposed else call.shape(0)
    weight = call.shape(2)
    each = 2 * numel(positions) * prod(weight[1:])
    gradients = sum(call.footprint(at) for at, needed in zip((1, 2), wanted, strict=False) if needed)
    read = call.footprint(0) + sum(
        call.footprint(at) for at, needed in ((2, wanted[0]), (1, wanted[1])) if needed
    )
    return Cost(each * sum(wanted[:2]), read + gradients, call.dtype(0), matrix=True)


def attention(call: OpCall, causal_at: int, heads_first: bool, backward: bool = False) -> Cost | None:
    """Query [b, h, s, d] (heads first) or [b, s, h, d], key and value likewise: the forward pass is two
    matrix products of 2·b·h·s·t·d, the backward pass five (one computes the scores again). A causal mask
    leaves half; it is a boolean, or the memory-efficient kernels' kind of mask (0 none, 1 and 2 causal).
    Ragged batches (three dimensions) say no lengths: null."""
    first = 1 if backward else 0  # the gradient comes first
    query, key, value = (call.shape(first + i) for i in range(3))
    causal = {"True": True, "False": False, "0": False, "1": True, "2": True}.get(call.values_at(causal_at))
    if len(query) != 4 or causal is None:
        return None
    batch, heads, queries, width = query if heads_first else (query[0], query[2], query[1], query[3])
    keys = key[2] if heads_first else key[1]
    products = 3 * width + 2 * value[3] if backward else width + value[3]
    flops = 2 * batch * heads * queries * keys * products
    if causal and queries == keys:
        flops = flops * (queries + 1) // (2 * queries)
    tensors = sum(call.footprint(first + i) for i in range(3))
    result = batch * heads * queries * value[3] * call.size(first)
    # Backward reads the gradient and the result as well, and writes three gradients.
    traffic = 2 * tensors + 2 * result if backward else tensors + result
    return Cost(flops, traffic, call.dtype(first), matrix=True)


Formula = Callable[[OpCall], Cost | None]

ABSURD = 1 << 53  # no single op call computes or moves this much in a day; sums of smaller ones fit 64 bits


def cost(call: OpCall) -> Cost | None:
    """The least that the call costs; null where no formula knows the op or what it needs was not recorded."""
    formula = FORMULAS.get(call.name) or next(
        (f for pattern, f in PATTERNS if pattern.search(call.name)), None
    )
    if formula is None:
        return None
    try:
        found = formula(call)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None  # not the arguments that the formula is written for
    return found if found and 0 <= found.flops < ABSURD and 0 <= found.bytes < ABSURD else None


def _computes_in(call: OpCall, at: int = 0) -> str:
    """Vector units compute 16-bit numbers in fp32."""
    return "fp64" if call.dtype(at) == "fp64" else "fp32"


def _tensors(call: OpCall) -> list[int]:
    return [at for at in range(len(call.types)) if call.is_tensor(at)]


def elementwise(call: OpCall, operands: int = 1, flops: int = 1, out_bytes: int | None = None) -> Cost:
    """The first ``operands`` tensors are read (one that follows is where the result goes), one result of
    their common shape is written: of the widest type among them, or ``out_bytes`` an element. ``flops`` an
    element."""
    tensors = _tensors(call)[:operands]
    result = broadcast([call.shape(at) for at in tensors])
    width = out_bytes or max(call.size(at) for at in tensors if call.shape(at) or len(tensors) == 1)
    read = sum(call.footprint(at) for at in tensors)
    return Cost(flops * numel(result), read + numel(result) * width, _computes_in(call, tensors[0]))


def in_place(call: OpCall, operands: int = 1, flops: int = 1) -> Cost:
    """Like ``elementwise``; the result overwrites the first argument."""
    return elementwise(call, operands, flops, call.size(0))


def copy(call: OpCall) -> Cost:
    """(target, source): reads one, writes the other, whatever their types."""
    return Cost(0, numel(call.shape(0)) * call.size(0) + call.footprint(1), _computes_in(call))


def fill(call: OpCall) -> Cost:
    return Cost(0, numel(call.shape(0)) * call.size(0), _computes_in(call))


def reduction(call: OpCall) -> Cost:
    """(input, dimensions, …): reads the input, writes what the reduced ones leave (all, if none is named)."""
    shape = call.shape(0)
    reduced = call.integers(1)
    gone = {d % len(shape) for d in reduced} if reduced else set(range(len(shape)))
    left = numel([n for d, n in enumerate(shape) if d not in gone])
    return Cost(numel(shape), call.footprint(0) + left * call.size(0), _computes_in(call))


def softmax(call: OpCall) -> Cost:
    """Maximum, difference, exponential, sum, quotient: five operations an element; (2) an fp32 result."""
    width = 4 if call.is_true(2) else call.size(0)
    elements = numel(call.shape(0))
    return Cost(5 * elements, call.footprint(0) + elements * width, _computes_in(call))


def gradient_of_rows(call: OpCall, flops: int = 4) -> Cost:
    """The backward pass of a softmax or norm: reads two tensors of the input's shape, writes one."""
    elements = numel(call.shape(0))
    read = call.footprint(0) + call.footprint(1)
    return Cost(flops * elements, read + elements * call.size(0), _computes_in(call))


def normalization(call: OpCall) -> Cost:
    """Eight operations an element. Reads the input and the small tensors, writes the result."""
    read = sum(call.footprint(at) for at in _tensors(call))
    elements = numel(call.shape(0))
    return Cost(8 * elements, read + elements * call.size(0), _computes_in(call))


def lookup(call: OpCall, index: int = 1) -> Cost:
    """Reads the indices and as many rows as there are, writes the rows."""
    width = numel(call.shape(0)[1:]) * call.size(0)
    count = numel(call.shape(index))
    return Cost(0, call.footprint(index) + 2 * count * width, _computes_in(call))


def embedding_gradient(call: OpCall) -> Cost:
    """(gradient, indices, rows, …): reads both, writes the whole table's gradient."""
    rows, gradient = int(call.values_at(2)), call.shape(0)
    table = rows * gradient[-1] * call.size(0)
    return Cost(numel(gradient), call.footprint(0) + call.footprint(1) + table, _computes_in(call))


def pooling(call: OpCall, result: int) -> Cost:
    """Reads every tensor, writes one of the shape of argument ``result``."""
    written = numel(call.shape(result)) * call.size(result)
    return Cost(0, sum(call.footprint(at) for at in _tensors(call)) + written, _computes_in(call))


def max_pooling(call: OpCall) -> Cost | None:
    """(input, kernel, stride, padding, dilation, rounded up): reads the input, writes the maxima and their
    64-bit indices. Null where the kernel's size was not recorded."""
    kernel, stride, padding, dilation = (call.integers(at) for at in range(1, 5))
    up = call.is_true(5)
    if not kernel or padding is None or dilation is None or up is None:
        return None
    shape, written = call.shape(0), 1
    for i, side in enumerate(shape[-2:]):
        window, step, pad, spread = (
            (sizes or kernel)[i % len(sizes or kernel)] for sizes in (kernel, stride, padding, dilation)
        )
        reach = side + 2 * pad - spread * (window - 1) - 1
        places = (reach + step - 1) // step + 1 if up else reach // step + 1
        # The last window has to start inside of the input or its padding on the left.
        written *= places - (up and (places - 1) * step >= side + pad)
    written *= numel(shape[:-2])
    return Cost(0, call.footprint(0) + written * (call.size(0) + 8), _computes_in(call))


def gather(call: OpCall) -> Cost:
    """(source, dimension, indices): reads the indices and as many elements, writes them."""
    return Cost(0, call.footprint(2) + 2 * numel(call.shape(2)) * call.size(0), _computes_in(call))


def generated(call: OpCall) -> Cost | None:
    """A kernel that Inductor generated: its op records all of the kernel's tensors, read or written, once
    each. Where it may touch only a part of one (rows of a table, a slice), that says nothing: null."""
    if re.search(r"embedding|index|gather|scatter|slice|split|nll_loss", call.name):
        return None
    tensors = [at for at, name in enumerate(call.types) if name in DTYPES]
    return Cost(0, sum(call.footprint(at) for at in tensors), "fp32")


_REDUCTIONS = "sum mean amax amin prod norm linalg_vector_norm"
_UNARY = (
    "abs neg exp exp2 log log2 log1p sqrt rsqrt reciprocal sin cos tanh sigmoid relu silu gelu erf floor "
    "ceil round square clamp clamp_min clamp_max hardtanh leaky_relu softplus mish elu hardswish hardsigmoid "
    "sign bitwise_not"
)
_BINARY = (
    "add sub rsub mul div pow maximum minimum remainder atan2 bitwise_and bitwise_or logical_and logical_or"
)
_TESTS = {
    "isnan": 1,
    "isinf": 1,
    "isfinite": 1,
    "logical_not": 1,
    "eq": 2,
    "ne": 2,
    "lt": 2,
    "le": 2,
    "gt": 2,
    "ge": 2,
}
# (operands, operations an element)
_OTHERS = {
    "where": (3, 0), "masked_fill": (2, 0), "addcmul": (3, 3), "addcdiv": (3, 3), "lerp": (2, 3),
    "threshold_backward": (2, 1), "silu_backward": (2, 5), "gelu_backward": (2, 8),
    "sigmoid_backward": (2, 3), "tanh_backward": (2, 3), "mse_loss": (2, 2), "mse_loss_backward": (3, 3),
}  # fmt: skip

FORMULAS: dict[str, Formula] = {
    # Matrix products, convolutions, attention.
    "aten::mm": mm,
    "aten::_int_mm": mm,
    "aten::addmm": partial(mm, a=1, b=2, added=0),
    "aten::_addmm_activation": partial(mm, a=1, b=2, added=0),
    "aten::bmm": bmm,
    "aten::baddbmm": partial(bmm, a=1, b=2, added=0),
    "aten::mv": mv,
    "aten::addmv_": partial(mv, a=1, added=0),
    "aten::addmv": partial(mv, a=1, added=0),
    "aten::dot": dot,
    "aten::_scaled_mm": scaled_mm,
    "aten::cudnn_convolution": cudnn_convolution,
    "aten::miopen_convolution": miopen_convolution,
    "aten::miopen_depthwise_convolution": miopen_convolution,
    "aten::convolution": convolution,
    "aten::_convolution": convolution,
    "aten::_conv_depthwise2d": depthwise,
    "aten::convolution_backward": convolution_backward,
    "aten::_cudnn_attention_forward": partial(attention, causal_at=10, heads_first=True),
    "aten::_cudnn_attention_backward": partial(attention, causal_at=14, heads_first=True, backward=True),
    "aten::_scaled_dot_product_cudnn_attention": partial(attention, causal_at=6, heads_first=True),
    "aten::_flash_attention_forward": partial(attention, causal_at=8, heads_first=False),
    "aten::_flash_attention_backward": partial(attention, causal_at=11, heads_first=False, backward=True),
    "aten::_efficient_attention_forward": partial(attention, causal_at=9, heads_first=False),
    "aten::_efficient_attention_backward": partial(attention, causal_at=14, heads_first=False, backward=True),
    # Elementwise.
    **{f"aten::{name}": elementwise for name in _UNARY.split()},
    **{f"aten::{name}_": in_place for name in _UNARY.split()},
    **{f"aten::{name}": partial(elementwise, operands=2) for name in _BINARY.split()},
    **{f"aten::{name}_": partial(in_place, operands=2) for name in _BINARY.split()},
    **{f"aten::{name}": partial(elementwise, operands=n, out_bytes=1) for name, n in _TESTS.items()},
    **{f"aten::{name}": partial(elementwise, operands=n, flops=each) for name, (n, each) in _OTHERS.items()},
    **{f"aten::{name}_": partial(in_place, operands=n, flops=each) for name, (n, each) in _OTHERS.items()},
    "aten::copy_": copy,
    "aten::fill_": fill,
    "aten::zero_": fill,
    # Lists of tensors.
    "aten::cat": lists.concatenation,
    "aten::_chunk_cat": lists.chunk_concatenation,
    "aten::split_with_sizes_copy": lists.split_copy,
    "aten::_fused_adam_": lists.fused_adam,
    "aten::_fused_adamw_": lists.fused_adam,
    "aten::_fused_sgd_": lists.fused_sgd,
    # Along rows.
    **{f"aten::{name}": reduction for name in _REDUCTIONS.split()},
    "aten::_softmax": softmax,
    "aten::_log_softmax": softmax,
    "aten::_softmax_backward_data": gradient_of_rows,
    "aten::_log_softmax_backward_data": gradient_of_rows,
    "aten::native_layer_norm": normalization,
    "aten::_fused_rms_norm": normalization,
    "aten::native_group_norm": normalization,
    "aten::native_batch_norm": normalization,
    "aten::cudnn_batch_norm": normalization,
    "aten::miopen_batch_norm": normalization,
    "aten::native_layer_norm_backward": partial(gradient_of_rows, flops=12),
    "aten::native_group_norm_backward": partial(gradient_of_rows, flops=12),
    "aten::native_batch_norm_backward": partial(gradient_of_rows, flops=12),
    "aten::cudnn_batch_norm_backward": partial(gradient_of_rows, flops=12),
    "aten::miopen_batch_norm_backward": partial(gradient_of_rows, flops=12),
    # Tables.
    "aten::embedding": lookup,
    "aten::index_select": partial(lookup, index=2),
    "aten::embedding_dense_backward": embedding_gradient,
    "aten::gather": gather,
    "aten::max_pool2d_with_indices": max_pooling,
    "aten::max_pool2d_with_indices_backward": partial(pooling, result=1),
}

PATTERNS: tuple[tuple[re.Pattern[str], Formula], ...] = (
    (re.compile(r"^triton_(poi|per|red|for)_fused"), generated),
    (lists.FOREACH, lists.foreach),
)
