"""Tensors are turned from NCHW to NHWC and back around convolutions.

What it finds
    cuDNN's and MIOpen's own layout kernels (``nchwToNhwcKernel``, ``nhwcToNchwKernel``,
    ``batched_transpose_…``), and Inductor's: pointwise kernels that fuse nothing with a convolution but
    slicing and splitting, and so only rearrange.

Why it is slow
    Tensor cores want channels last. Given NCHW tensors, the library transposes its inputs, convolves, and
    transposes the result back, at full memory traffic each time.

How it decides
    The kernel's name; what is saved is their device time. Those of grouped or depthwise convolutions are left
    out, since channels_last makes many of them slower, as are casts and convolutions of one dimension.
    Nothing is promised where gradients are differentiated: the second backward pass makes tensors that do not
    keep the layout.

What to do
    Keep the whole model in channels_last: ``model.to(memory_format=torch.channels_last)`` and the same for
    its input. Where single layers still convert, their input came from an op that lost the format.

Source
    PyTorch tutorial "Channels Last Memory Format"; NVIDIA Deep Learning Performance Guide, "Tensor Layouts".
"""

from kinetoscope.analysis.events.enclosing import nearest
from kinetoscope.analysis.events.torch_names import AUTOGRAD_NODE
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.origins.convolutions import convolutions
from kinetoscope.findings.rule import *
from kinetoscope.trace.model import Trace

MOVES = r"convolution(_backward)?|split_with_sizes|slice|permute|transpose|clone"
CONVERTS = (
    r"nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|^batched_transpose_\d"
    rf"|^triton_poi_fused_(({MOVES})_)*convolution(_backward)?(_({MOVES}))*(_\d+)?$"
)
NORMALIZES = r"batch_norm_(collect_statistics|transform_input|backward|elemt)"
GAIN_OF_NORMALIZATIONS = 0.5  # ResNet-50's in training on an H200: 14.8 ms per step, and 6.5 in channels_last
SECOND_BACKWARD = r"\bConvolutionBackwardBackward"
ON_AMD = "On AMD, MIOpen takes channels_last only with PYTORCH_MIOPEN_SUGGEST_NHWC=1 in the environment."


def find(view: RankView) -> Findings:
    kernels = conversions(view)
    if kernels.is_empty():
        return
    us = view.us_of(kernels)
    if us < LOW * view.step_us:
        return
    longest = kernels.sort("duration_ns", descending=True).head(8)
    remedy = _remedy(view, kernels)
    basis = "the conversions' own time, and half of the batch normalizations between them"
    saving = savings.device(view, _gains(view, kernels), basis)
    if matching(view.trace.host_events, "name", SECOND_BACKWARD).any():
        saving = savings.not_predicted(saving, "the backward pass of a backward pass keeps no layout")
    yield Finding(
        title=f"{view.per_step(len(kernels)):,.0f} layout conversions per {view.unit} around convolutions",
        affected_us=us,
        saving=saving,
        at_least="info",
        evidence=[evidence.of(view, "the longest conversions", longest)],
        advice=remedy.advice,
        snippet=remedy.snippet,
        source=evidence.source(view, kernels["op"]),
    )


def _gains(view: RankView, kernels: pl.DataFrame) -> pl.DataFrame:
    """The savings of channels_last: the conversions, and half of the batch normalizations in training."""
    normalizing = view.kernels(NORMALIZES)
    normalizing = normalizing.filter(~pl.col("name").cast(pl.String).str.contains("channels_last"))
    between = min(1.0, len(kernels) / max(1, len(normalizing)))
    parts = [
        table.select("id", saved_ns=pl.col("duration_ns") * share)
        for table, share in ((kernels, 1.0), (normalizing, GAIN_OF_NORMALIZATIONS * between))
    ]
    return pl.concat(parts)


@remembered
def conversions(view: RankView) -> pl.DataFrame:
    """The conversions that serve convolutions of one group and of two dimensions or three: others have no
    kernel to gain from the layout, or no such layout."""
    found = view.kernels(CONVERTS)
    if found.is_empty():
        return found
    served = _served(view, found)
    grouped = convolutions(view.trace).filter("is_grouped")["op"]
    without = served.is_in(grouped.implode()) | _of_one_dimension(view.trace)[served]
    return found.filter(~without.fill_null(False))


def _of_one_dimension(trace: Trace) -> pl.Series:
    """For each row of ``host_events`` whether it is part of a one-dimensional convolution, or of its node."""
    host = trace.host_events
    forward = nearest(host, matching(host, "name", r"^aten::conv(_transpose)?1d$")).is_not_null()
    sequences = host["sequence"].filter(forward).drop_nulls().unique()
    node = matching(host, "name", AUTOGRAD_NODE) & host["sequence"].is_in(sequences.implode())
    return forward | nearest(host, node.fill_null(False)).is_not_null()


def _served(view: RankView, found: pl.DataFrame) -> pl.Series:
    """The op that each conversion serves: the one that launched it; of a generated kernel, the op of the
    convolution that follows it in its stream."""
    key = ["device", "stream"]
    is_own = matching(view.work, "category", "^convolution$")
    following = (
        view.work.select("id", *key, "start_ns", own=pl.when(is_own).then("op"))
        .filter(is_own | pl.col("id").is_in(found["id"].implode()))
        .sort(*key, "start_ns")
        .with_columns(serves=pl.col("own").backward_fill().over(key))
    )
    return found.select("id").join(following.select("id", "serves"), on="id", maintain_order="left")["serves"]


def _remedy(view: RankView, kernels: pl.DataFrame) -> Remedy:
    """channels_last for all, unless the convolutions have it already."""
    known = convolutions(view.trace).filter(pl.col("op").is_in(_served(view, kernels).implode()))
    if len(known) and known["is_channels_last"].mean() == 1.0:
        return Remedy(
            "The inputs are channels_last already: the library has no such kernel for their shapes and type. "
            "Use a 16-bit type and channels that are multiples of 8."
        )
    advice = ["Keep model and input in channels_last.", *([ON_AMD] if maker(view.trace) == "AMD" else [])]
    return Remedy(
        " ".join(advice),
        "model = model.to(memory_format=torch.channels_last)\nx = x.to(memory_format=torch.channels_last)",
    )
