"""Matrix products of compiled code that were never tuned.

What it finds
    Compiled code whose products go to cuBLAS as they come, with no Triton template in sight: small ones that
    move their operands at less than half of the device's bandwidth, or ones that a pointwise kernel follows,
    which reads and writes the result once more.

Why it is slow
    The library has few kernels for small products of a large batch. And a library product cannot do the
    arithmetic that follows it: in a template chosen by ``max-autotune`` it disappears into the product's last
    step.

How it decides
    In compiled regions, with no template kernel in the recording and no autotuning of products in the compile
    log. Products of 20 µs or more that memory bounds by their shapes, at less than half of the peak
    bandwidth: the saving is the same bytes at 60 % of the peak, a careful guess (on an H200 the template for
    8192 products of 32 × 32 reached 86 %, the library 36 %). For a pointwise kernel that directly follows a
    product (3 % of the step or more) none is claimed: two products followed by a GELU gained nothing there.

What to do
    ``torch.compile(model, mode="max-autotune-no-cudagraphs")``, and measure: ``kinetoscope tune`` does.

Source
    "Profiling in PyTorch", part 1: "Did we fuse the matmul and add kernels into one?"
"""

from kinetoscope.analysis.compiled.regions import compiled, regions
from kinetoscope.analysis.cost.roofline import costed
from kinetoscope.findings.rule import *

SHARE = 0.5
POSSIBLE = 0.6
LONG_NS = 20_000
BASIS = "a guess: a template that moves the same bytes at 60 % of the peak"
ADVICE = "Try max-autotune and measure."
MODE = "max-autotune-no-cudagraphs"
SNIPPET = f'torch.compile(model, mode="{MODE}")'


def find(view: RankView) -> Findings:
    if untuned(view):
        yield from _slow(view)
        yield from _followed(view)


def untuned(view: RankView) -> bool:
    """The view has compiled code and none of its products was tuned."""
    log = view.run.compilation
    tuned = log is not None and len(log.autotune)
    return not (tuned or regions(view.trace).is_empty() or len(view.kernels(r"^triton_tem_")))


def slow_products(view: RankView) -> pl.DataFrame:
    """The calls of library products in compiled code, bound by memory and far from its speed: rows of
    ``roofline.costed`` with ``share`` (of the peak bandwidth)."""
    products = view.work.filter(
        (pl.col("category").cast(pl.String) == "matmul")
        & pl.col("launch").is_in(compiled(view.trace).implode())
    )["id"]
    bandwidth = pl.col("bytes") / pl.col("peak_bandwidth")
    return (
        costed(view.trace)
        .filter(
            pl.col("id").is_in(products.implode())
            & (pl.col("time_ns") >= LONG_NS)
            & (bandwidth >= pl.col("flops") / pl.col("peak_flops"))
        )
        .with_columns(share=bandwidth / pl.col("time_ns") * 1e9)
        .filter(pl.col("share") < SHARE)
    )


def _slow(view: RankView) -> Findings:
    calls, share = slow_products(view), pl.col("share")
    for slow, saving in slow_calls(view, calls, share, below=SHARE, possible=POSSIBLE, basis=BASIS):
        worst, (_, reached) = slow.row(0, named=True), together(slow, "bytes")
        yield finding_of_calls(
            view,
            slow,
            saving,
            title=f"{view.per_step(len(slow)):,.0f} calls of {worst['op_name']} per {view.unit} go to a "
            f"library kernel at {reached:.0%} of the device's bandwidth, and no template was tried",
            shown=f"{short_name(worst['name'])}, inputs {worst['shapes']}",
            advice=ADVICE,
            snippet=SNIPPET,
            proof=commands.tune(view, MODE),
        )


def _followed(view: RankView) -> Findings:
    key = ["device", "stream"]
    following = (
        view.work.filter(pl.col("kind") == "kernel")
        .sort(*key, "start_ns")
        .with_columns(before=pl.col("category").shift(1).over(key))
        .filter(
            (pl.col("before").cast(pl.String) == "matmul")
            & (pl.col("category").cast(pl.String) == "pointwise")
            & pl.col("launch").is_in(compiled(view.trace).implode())
        )
    )
    us = view.us_of(following)
    if us < MEDIUM * view.step_us:
        return
    longest = following.sort("duration_ns", descending=True)
    yield Finding(
        title=f"{view.per_step(len(following)):,.0f} pointwise kernels per {view.unit} follow a library "
        "product: max-autotune may fold them in",
        affected_us=us,
        saving=Saving(0.0, "not known until it is measured; at most the pointwise kernels' time", True, 0.0),
        at_least="info",
        evidence=[evidence.of(view, "pointwise kernels after a product", longest)],
        advice=ADVICE,
        snippet=SNIPPET,
        proof=commands.tune(view, MODE),
    )
