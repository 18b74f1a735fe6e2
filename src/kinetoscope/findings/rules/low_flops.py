"""Kernels that are limited by arithmetic, and far from its speed.

What it finds
    Matrix products whose recorded shapes say that arithmetic bounds them, and which do it at less than 40 %
    of what the device can do in that type.

Why it is slow
    Too few tiles to fill the device (tall or small products), split sums, or a kernel that does not fit the
    shape.

How it decides
    FLOPs of the call over its device time, against the device's peak for its type (dense); calls of 10 µs or
    more. Kernels that misaligned sizes force on the library are ``misaligned-shapes``'. 70 % of the peak is
    what large products reach, and what counts as possible. Needs recorded shapes.

What to do
    Put several products into one (batch them, concatenate along rows; a gradient's follow their forward);
    in training make the batch larger. Where there are tiles enough for the device, try other kernels
    (max-autotune, TunableOp). Of convolutions: let the library measure its algorithms
    (``torch.backends.cudnn.benchmark``), channels_last where they are not grouped.

Source
    Roofline model (Williams, Waterman, Patterson, 2009); NVIDIA Deep Learning Performance Guide, "Tile
    quantization".
"""

from kinetoscope.analysis.cost.roofline import costed
from kinetoscope.analysis.kernels.occupancy import fitted
from kinetoscope.analysis.origins.attribution import attribution
from kinetoscope.findings.rule import *
from kinetoscope.findings.rules.misaligned_shapes import MISALIGNED

SHARE = 0.4
POSSIBLE = 0.7
LONG_NS = 10_000
BASIS = f"the same arithmetic at {100 * POSSIBLE:.0f} % of the device's peak"
FULL = 2  # tiles for each multiprocessor: more products would not fill the device better
ANOTHER = (
    "The device is full: try other kernels for these shapes (mode='max-autotune'), or a contiguous layout."
)
_OF_MAKERS = {
    "AMD": "The device is full: have the library's kernels for these shapes measured "
    "(PYTORCH_TUNABLEOP_ENABLED=1), or the tuned table of the serving engine made for them."
}
# Attention is bound by its softmax as well; its FLOPs alone mean little.
PRODUCTS = "^(matmul|convolution|template)$"


def find(view: RankView) -> Findings:
    products = view.work["id"].filter(matching(view.work, "category", PRODUCTS))
    costs = costed(view.trace)
    bound = costs.filter(
        pl.col("id").is_in(products.implode())
        & (pl.col("time_ns") >= LONG_NS)
        & (pl.col("flops") / pl.col("peak_flops") > pl.col("bytes") / pl.col("peak_bandwidth"))
        & ~matching(costs, "name", MISALIGNED)
    )
    share = pl.col("flops") / pl.col("time_ns") * 1e9 / pl.col("peak_flops")
    for slow, saving in slow_calls(view, bound, share, below=SHARE, possible=POSSIBLE, basis=BASIS):
        worst, (speed, reached) = slow.row(0, named=True), together(slow, "flops")
        calls = view.per_step(len(slow))
        remedy = _remedy(view, slow)
        yield finding_of_calls(
            view,
            slow,
            saving,
            title=f"{worst['op_name']} ({calls:,.0f} calls per {view.unit}) computes at {speed / 1000:.0f} "
            f"TFLOP/s, {reached:.0%} of the device's {worst['dtype']} peak",
            shown=f"inputs {worst['shapes']}",
            advice=remedy.advice,
            snippet=remedy.snippet,
            proof=commands.bench(view, worst["name"]),
        )


def _remedy(view: RankView, slow: pl.DataFrame) -> Remedy:
    work = view.work.filter(pl.col("id").is_in(slow["id"].implode()))
    if matching(work, "category", "^convolution$").any():
        larger = "; make the batch larger" if trains(view) else ""
        advice = f"Let the library measure its algorithms for these shapes{larger}."
        return Remedy(advice, "torch.backends.cudnn.benchmark = True")
    if attribution(view.trace)["forward_op"].gather(work["id"]).is_not_null().any():
        return Remedy("Batch the forward products or concatenate their rows: their gradients' follow.")
    device = view.device
    if device is not None and device.multiprocessors is not None:
        tiles = fitted(work, device).select(pl.median("blocks")).item()
        if tiles is not None and tiles >= FULL * device.multiprocessors:
            return Remedy(_OF_MAKERS.get(maker(view.trace) or "", ANOTHER))
    advice = "Batch the products or concatenate their rows; the device has room for more tiles."
    return Remedy(advice, "torch.cat(parts) @ w")
