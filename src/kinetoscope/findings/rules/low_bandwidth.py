"""Kernels that are limited by memory, and far from its speed.

What it finds
    Op calls whose recorded shapes say that memory traffic bounds them, and which move it at less than half of
    the device's bandwidth.

Why it is slow
    Reads that are not contiguous fetch whole sectors and use a part of each; small or narrow work leaves the
    memory idle between requests.

How it decides
    Bytes of the call (each operand once) over its device time, against the device's peak bandwidth; calls of
    20 µs or more. 80 % of the peak is what good kernels reach, and what counts as possible. Needs recorded
    shapes. Attention, sorting, random numbers and others that something else than memory bounds by design are
    left alone. Products that compiled code leaves to the library untuned are ``autotune-overdue``'s.

What to do
    Make the tensor contiguous once (or keep the column you need as a tensor of its own), choose the layout in
    which the inner loop runs along memory, fuse with the neighbours. Of products of few rows: kernels tuned
    for these shapes.

Source
    Roofline model (Williams, Waterman, Patterson, 2009).
"""

from kinetoscope.analysis.cost.roofline import costed
from kinetoscope.findings.rule import *
from kinetoscope.findings.rules.autotune_overdue import slow_products, untuned

SHARE = 0.5
POSSIBLE = 0.8
LONG_NS = 20_000
# What is bound by something else by design: exponentials and products on chip, passes over the same keys, the
# generator of random numbers, one step after the other.
OTHERWISE_BOUND = "^(attention|sort|random|recurrent|FFT|linear algebra)$"
PRODUCT = (
    "A product of few rows reads its weights: try other kernels for these shapes, which read them in more "
    "blocks (split-K; mode='max-autotune'; of AMD PYTORCH_TUNABLEOP_ENABLED=1; the serving engine's tuned "
    "tables)."
)
BASIS = f"the same bytes at {100 * POSSIBLE:.0f} % of the device's bandwidth"


def find(view: RankView) -> Findings:
    work = view.known.filter(~matching(view.known, "category", OTHERWISE_BOUND))
    calls = costed(view.trace).filter(
        pl.col("id").is_in(work["id"].implode())
        & (pl.col("time_ns") >= LONG_NS)
        & (pl.col("bytes") / pl.col("peak_bandwidth") >= pl.col("flops") / pl.col("peak_flops"))
    )
    if untuned(view):
        calls = calls.join(slow_products(view), on="id", how="anti")
    share = pl.col("bytes") / pl.col("time_ns") * 1e9 / pl.col("peak_bandwidth")
    for slow, saving in slow_calls(view, calls, share, below=SHARE, possible=POSSIBLE, basis=BASIS):
        worst, (speed, reached) = slow.row(0, named=True), together(slow, "bytes")
        is_product = "matmul" in work.filter(id=worst["id"])["category"].cast(pl.String)
        yield finding_of_calls(
            view,
            slow,
            saving,
            title=f"{worst['op_name']} moves its bytes at {speed / 1000:.2f} TB/s, {reached:.0%} of the "
            "device's bandwidth",
            shown=f"{len(slow)} calls, inputs {worst['shapes']}",
            advice=PRODUCT
            if is_product
            else "Look at the strides of its inputs: contiguous memory is read several times as fast.",
            snippet=None if is_product else "column = x[:, 3].contiguous()  # once, outside of the loop",
            proof=commands.bench(view, worst["name"]),
        )
