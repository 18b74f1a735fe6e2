"""FLOPs and bytes of matrix products, convolutions and attention.

The counts are those of ``torch.utils.flop_counter`` (a multiply-add is two operations; bias, scale and
softmax are not counted), except that causal attention counts the half that its kernels compute.
"""

from __future__ import annotations

from math import prod

from kinetoscope.analysis.cost.call import Call, Cost, numel


def mm(call: Call, a: int = 0, b: int = 1, added: int | None = None) -> Cost:
    """``[m, k] @ [k, n]``: 2·m·n·k. Reads both and what is added to the product, writes m·n."""
    (m, k), n = call.shape(a), call.shape(b)[1]
    return _product(call, 2 * m * n * k, m * n, a, b, added)


def bmm(call: Call, a: int = 0, b: int = 1, added: int | None = None) -> Cost:
    """``[s, m, k] @ [s, k, n]``: 2·s·m·n·k."""
    (s, m, k), n = call.shape(a), call.shape(b)[2]
    return _product(call, 2 * s * m * n * k, s * m * n, a, b, added)


def mv(call: Call, a: int = 0, added: int | None = None) -> Cost:
    """``[m, k] @ [k]``: 2·m·k."""
    m, k = call.shape(a)
    return _product(call, 2 * m * k, m, a, a + 1, added)


def dot(call: Call) -> Cost:
    """``[k] @ [k]``: 2·k."""
    return _product(call, 2 * numel(call.shape(0)), 1, 0, 1, None)


def scaled_mm(call: Call) -> Cost:
    """``[m, k] @ [k, n]`` in fp8 or fp4; the result is taken to be 16 bits wide, as it is by default."""
    (m, k), n = call.shape(0), call.shape(1)[1]
    packed = 2 if call.dtype(0) == "fp4" else 1  # two fp4 numbers an element
    flops = 2 * m * n * k * packed
    return Cost(flops, call.footprint(0) + call.footprint(1) + 2 * m * n, call.dtype(0), matrix=True)


def _product(call: Call, flops: int, results: int, a: int, b: int, added: int | None) -> Cost:
    read = call.footprint(a) + call.footprint(b)
    if added is not None and call.is_tensor(added):
        read += call.footprint(added)
    return Cost(flops, read + results * call.size(a), call.dtype(a), matrix=True)


def cudnn_convolution(call: Call) -> Cost | None:
    """(input, weight, padding, stride, dilation, groups, …)"""
    return _convolution(call, call.integers(2), call.integers(3), call.integers(4))


def miopen_convolution(call: Call) -> Cost | None:
    """(input, weight, bias, padding, stride, dilation, groups, …)"""
    return _convolution(call, call.integers(3), call.integers(4), call.integers(5))


def convolution(call: Call) -> Cost | None:
    """(input, weight, bias, stride, padding, dilation, transposed, output padding, groups)"""
    groups = int(call.values_at(8) or 1) if call.is_true(6) else None
    return _convolution(call, call.integers(4), call.integers(3), call.integers(5), groups)


def depthwise(call: Call) -> Cost | None:
    """(input, weight, kernel size, bias, stride, padding, dilation)"""
    return _convolution(call, call.integers(5), call.integers(4), call.integers(6))


def _convolution(
    call: Call,
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


def convolution_backward(call: Call) -> Cost | None:
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


def attention(call: Call, causal_at: int, heads_first: bool, backward: bool = False) -> Cost | None:
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
