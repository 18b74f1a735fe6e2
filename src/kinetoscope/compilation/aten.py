"""What the ops of a graph do, in torch's words or a few of ours (``prims`` are Inductor's decompositions)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib import resources

import msgspec

FUSED = re.compile(r"^(?:triton_[a-z]{3}|cpp)_fused_(?P<ops>.+?)(?:_\d+)?$")

GLOSSARY = {
    "abs": "absolute value",
    "_adaptive_avg_pool2d": "mean over regions",
    "adaptive_avg_pool2d": "mean over regions",
    "add": "elementwise sum",
    "addcdiv": "x + c·(a/b), elementwise",
    "addcmul": "x + c·a·b, elementwise",
    "addmm": "matrix product plus a bias",
    "alias": "another name for the same tensor",
    "all": "are all values true, along dimensions",
    "amax": "largest value along dimensions",
    "amin": "smallest value along dimensions",
    "any": "is any value true, along dimensions",
    "arange": "evenly spaced numbers",
    "argmax": "index of the largest value",
    "argmin": "index of the smallest value",
    "as_strided": "view with given sizes and strides",
    "avg_pool2d": "mean over sliding windows",
    "avg_pool2d_backward": "gradient of average pooling",
    "baddbmm": "batched matrix product plus a bias",
    "bernoulli": "random zeros and ones",
    "bitwise_and": "bitwise and",
    "bitwise_not": "bitwise not",
    "bitwise_or": "bitwise or",
    "bmm": "batched matrix product",
    "bucketize": "which bucket a value falls in",
    "cat": "join tensors along a dimension",
    "ceil": "round up",
    "clamp": "limit values to a range",
    "clamp_min": "limit values from below",
    "clone": "copy",
    "constant_pad_nd": "pad with a constant",
    "convert_element_type": "change the dtype",
    "convolution": "convolution",
    "convolution_backward": "gradients of a convolution: of its input, weight and bias",
    "copy": "copy into another tensor",
    "copy_": "copy into this tensor, in place",
    "copysign": "one's size with the other's sign",
    "cos": "cosine",
    "cumprod": "running product along a dimension",
    "cumsum": "running sum along a dimension",
    "detach": "the same values, cut from autograd",
    "device_put": "move to another device",
    "div": "elementwise quotient",
    "elu": "exponential linear unit",
    "embedding": "look rows of a table up",
    "embedding_dense_backward": "gradient of an embedding table",
    "empty": "new tensor, not filled",
    "eq": "equal, elementwise",
    "erf": "error function (part of gelu)",
    "exp": "e to the power",
    "expand": "view repeated along dimensions of size one",
    "expm1": "e^x − 1",
    "fill": "fill with one value",
    "flip": "reverse along dimensions",
    "floor": "round down",
    "fma": "a·b + c in one rounding",
    "full": "new tensor filled with one value",
    "full_like": "the like, filled with one value",
    "_fused_rms_norm": "root-mean-square normalisation",
    "gather": "pick values by index along a dimension",
    "ge": "greater or equal, elementwise",
    "gelu": "Gaussian error linear unit",
    "gelu_backward": "gradient of gelu",
    "gt": "greater, elementwise",
    "hardtanh": "limit values to a range",
    "index": "pick by index tensors",
    "index_put": "write by index tensors",
    "index_select": "pick slices by index",
    "inductor_lookup_seed": "the seed of the kernel's random numbers",
    "inductor_random": "random numbers, generated inside the kernel",
    "inductor_seeds": "seeds for the kernels' random numbers",
    "iota": "0, 1, 2, …",
    "isinf": "is it infinite",
    "isnan": "is it not-a-number",
    "item": "the tensor's one number, on the host: waits for the device",
    "le": "less or equal, elementwise",
    "leaky_relu": "negative values are made small",
    "lift_fresh_copy": "a constant of the program",
    "log": "natural logarithm",
    "log1p": "log(1+x)",
    "log2": "binary logarithm",
    "_log_softmax": "logarithm of softmax",
    "_log_softmax_backward_data": "gradient of log-softmax",
    "logical_and": "and, elementwise",
    "logical_not": "not, elementwise",
    "logical_or": "or, elementwise",
    "logsumexp": "log of the sum of exponentials",
    "lt": "less, elementwise",
    "masked_fill": "write one value where a mask is true",
    "max": "largest value along a dimension",
    "max_pool2d_with_indices": "maximum over sliding windows, and where it was",
    "max_pool2d_with_indices_backward": "gradient of max pooling",
    "maximum": "larger of two, elementwise",
    "mean": "mean along dimensions",
    "min": "smallest value along a dimension",
    "minimum": "smaller of two, elementwise",
    "mm": "matrix product",
    "mse_loss": "mean squared error",
    "mse_loss_backward": "gradient of the mean squared error",
    "mul": "elementwise product",
    "native_batch_norm": "batch normalisation",
    "native_batch_norm_backward": "gradients of batch normalisation",
    "_native_batch_norm_legit_functional": "batch normalisation; returns the new running statistics",
    "_native_batch_norm_legit_no_training": "batch normalisation with fixed statistics",
    "native_dropout": "set random values to zero",
    "native_group_norm": "group normalisation",
    "native_layer_norm": "layer normalisation",
    "native_layer_norm_backward": "gradients of layer normalisation",
    "ne": "not equal, elementwise",
    "neg": "minus",
    "new_empty": "new tensor, not filled",
    "new_full": "new tensor filled with one value",
    "new_zeros": "new tensor of zeros",
    "nll_loss_backward": "gradient of the negative log likelihood",
    "nll_loss_forward": "negative log likelihood of the targets",
    "norm": "length of a vector",
    "permute": "view with dimensions in another order",
    "pow": "power",
    "prod": "product along dimensions",
    "rand": "random numbers, uniform",
    "randint": "random integers",
    "randn": "random numbers, normal",
    "reciprocal": "one over",
    "relu": "negative values become zero",
    "remainder": "remainder",
    "repeat": "copies along dimensions",
    "reshape": "view with another shape (a copy where it must be)",
    "rms_norm": "root-mean-square normalisation",
    "roll": "shift around along dimensions",
    "round": "round",
    "rsqrt": "one over the square root",
    "scalar_tensor": "a number as a tensor",
    "_scaled_dot_product_cudnn_attention": "attention by cuDNN",
    "_scaled_dot_product_efficient_attention": "attention, memory-efficient",
    "_scaled_dot_product_flash_attention": "flash attention",
    "_scaled_dot_product_flash_attention_for_cpu": "flash attention on the CPU",
    "scatter": "write values by index along a dimension",
    "scatter_add": "add values by index along a dimension",
    "select": "view of one slice along a dimension",
    "select_backward": "gradient of select",
    "select_scatter": "copy with one slice replaced",
    "sigmoid": "1/(1+e^-x)",
    "sigmoid_backward": "gradient of sigmoid",
    "sign": "sign",
    "silu": "x·sigmoid(x)",
    "silu_backward": "gradient of silu",
    "sin": "sine",
    "slice": "view of a range along a dimension",
    "slice_backward": "gradient of slice",
    "slice_scatter": "copy with a range replaced",
    "_softmax": "softmax",
    "_softmax_backward_data": "gradient of softmax",
    "softmax_backward_data": "gradient of softmax",
    "softplus": "log(1+e^x)",
    "sort": "sort along a dimension",
    "split": "views of equal parts",
    "split_with_sizes": "views of parts of given sizes",
    "sqrt": "square root",
    "square": "square",
    "squeeze": "view without dimensions of size one",
    "stack": "join along a new dimension",
    "std": "standard deviation along dimensions",
    "sub": "elementwise difference",
    "sum": "sum along dimensions",
    "sym_size": "a size, as a number",
    "t": "view of the transposed matrix",
    "tanh": "hyperbolic tangent",
    "tanh_backward": "gradient of tanh",
    "threshold_backward": "gradient of relu",
    "_to_copy": "copy to another dtype or device",
    "topk": "the largest values and where they are",
    "transpose": "view with two dimensions swapped",
    "tril": "lower triangle",
    "triu": "upper triangle",
    "unsafe_chunk": "parts of a tensor",
    "_unsafe_index": "pick by index tensors, unchecked",
    "_unsafe_view": "view with another shape",
    "unsqueeze": "view with a new dimension of size one",
    "upsample_nearest2d": "enlarge by repeating",
    "var": "variance along dimensions",
    "var_mean": "variance and mean along dimensions",
    "view": "view with another shape",
    "view_as_complex": "pairs of numbers as complex ones",
    "where": "choose elementwise by a condition",
    "xor_sum": "exclusive or along dimensions",
    "zeros": "new tensor of zeros",
    "zeros_like": "the like, filled with zeros",
}


class _Docs(msgspec.Struct, frozen=True):
    """``aten_docs.json``: torch's own words, made by ``scripts/aten_docs.py``."""

    source: str
    ops: dict[str, str]


@cache
def _docs() -> _Docs:
    text = resources.files("kinetoscope.compilation").joinpath("aten_docs.json").read_bytes()
    return msgspec.json.decode(text, type=_Docs)


def meaning(op: str) -> str | None:
    """What ``aten.mul``, ``aten.mul.Tensor`` or ``prims.fma`` does: the first sentence of torch's docstring,
    our own words for what torch does not describe; None for an op that neither knows."""
    name = _name(op)
    return _docs().ops.get(name) or GLOSSARY.get(name)


def in_short(op: str) -> str | None:
    """The same in a few words."""
    return GLOSSARY.get(_name(op)) or meaning(op)


def _name(op: str) -> str:
    parts = op.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def ops_in_name(kernel: str, known: Iterable[str]) -> tuple[str, ...]:
    """The ops that a fused kernel's name lists: ``cpp_fused_add_gelu_view_0`` is add, gelu and view.

    An op may itself hold underscores, so the name is read with the ops that are ``known`` and those of the
    glossary; a name that they do not explain whole gives nothing.
    """
    match = FUSED.match(kernel)
    vocabulary = GLOSSARY.keys() | {*known}
    # reading[i]: how the name can be read from word i on
    words = match["ops"].split("_") if match else []
    reading: list[tuple[str, ...] | None] = [None for _ in words]
    reading.append(())
    for start in reversed(range(len(words))):
        for end in range(len(words), start, -1):
            op, following = "_".join(words[start:end]), reading[end]
            if op in vocabulary and following is not None:
                reading[start] = (f"aten.{op}", *following)
                break
    return reading[0] or ()
