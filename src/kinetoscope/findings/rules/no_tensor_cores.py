"""Matrix products in float32 on the ordinary cores.

What it finds
    GEMMs and convolutions of NVIDIA's libraries that use no tensor cores although the device has them:
    ``…sgemm…``, ``…_ffma_…``, ``…simt…``, and cuDNN's own engines on ``float``, ``dgrad_engine<float…``.

Why it is slow
    On an H200 float32 arithmetic reaches 67 TFLOP/s, TF32 on the tensor cores 495, bfloat16 990.

How it decides
    The kernel's name, at least 20 µs each, on a device of compute capability 8 or higher. TF32 saves four
    fifths of these kernels' time. bfloat16, where nothing is of 16 bits yet and products take a tenth of the
    device's time, saves nine tenths of it, seven tenths of attention's in float32, half of other products'
    and of copies', and of other kernels half without a backward pass, a third or nothing under autocast,
    which leaves norms, softmax and losses in float32. Of each kernel 3 µs stay. It is a finding of its own
    where it saves a quarter more than TF32.

What to do
    Train in ``torch.autocast("cuda", torch.bfloat16)``, serve in ``model.bfloat16()``, if its 8 bits of
    mantissa do. ``torch.set_float32_matmul_precision("high")`` is one line and changes no tensor's type
    (TF32: 10 bits of mantissa in the products, float32 sums). Double precision and exact float32 have no
    such option.

Source
    PyTorch CUDA semantics, "TensorFloat-32 (TF32) on Ampere (and later) devices"; PyTorch, torch.amp,
    "Ops that autocast to float32".
"""

from kinetoscope.findings.in_force import trains
from kinetoscope.findings.rule import *

ROLE = "rounds"
ENGINES = r"\b[dw]grad\w*?(_engine|_alg\d_\d)<float,"  # old ones of cuDNN, which it still chooses for NCHW
PLAIN = r"(?i)sgemm|_ffma_|simt_s|_scudnn_|f32f32_f32f32_f32_|" + ENGINES
ROUNDED = r"(?i)tensorop|s1688|tf32"
SIXTEEN_BITS = r"(?i)bf16|bfloat16|c10::Half|__half|(^|_)f16|f16f16|nvjet(_sm\d+)?_[th]"
FLOAT32 = r"(?i)f32|sgemm|s1688|simt_s|scudnn|float"
NOT_FLOAT32 = SIXTEEN_BITS + r"|double|long|int>|bool|unsigned char"
LONG_NS = 20_000
GAIN = 0.8
# By category, the share of its time that a kernel in float32 saves in bfloat16: without a backward pass, and
# in training under autocast.
BFLOAT16 = {
    "attention": (0.7, 0.7),
    "convolution": (0.5, 0.5),
    "matmul": (0.5, 0.5),
    "copy": (0.5, 0.5),
    "random": (0.5, 0.5),
    "pooling": (0.5, 0.5),
    "elementwise": (0.5, 1 / 3),
    "reduction": (0.5, 1 / 3),
    "normalization": (0.5, 0.0),
    "softmax": (0.5, 0.0),
}
PRODUCTS = "^(attention|convolution|matmul)$"
PRODUCT = 0.9  # of one without tensor cores
PART = 0.1  # of the device's time that products take: with less, the program is about something else
MORE = 1.25  # times as much as TF32: below that, the one line is the better advice


def find(view: RankView) -> Findings:
    capability = view.device.compute_capability if view.device else None
    if capability is None or capability[0] < 8:
        return
    kernels = view.kernels(PLAIN).filter(pl.col("duration_ns") >= LONG_NS)
    kernels = kernels.filter(~matching(kernels, "name", ROUNDED)).sort("duration_ns", descending=True)
    basis = "four fifths of the kernels' time"
    rounded = savings.device(view, kernels, basis, saved=pl.col("duration_ns") * GAIN)
    yield from _in_bfloat16(view, kernels, rounded)
    if kernels.is_empty():
        return
    number = view.counted(len(kernels), "float32 product")
    yield Finding(
        subject="TF32",
        title=f"{number} per {view.unit} {'uses' if number.startswith('1 ') else 'use'} no tensor cores",
        affected_us=view.us_of(kernels),
        saving=rounded,
        evidence=[evidence.of(view, short_name(str(kernels["name"][0])), kernels)],
        advice="Allow TF32.",
        snippet='torch.set_float32_matmul_precision("high")',
        source=evidence.source(view, kernels["op"]),
        proof=commands.tune(view, matmul_precision="high"),
    )


def _in_bfloat16(view: RankView, plain: pl.DataFrame, rounded: Saving) -> Findings:
    """The finding on a program that computes all in float32, where bfloat16 saves more than TF32 does."""
    known = view.known
    is_kernel = known["kind"] == "kernel"
    if (is_kernel & matching(known, "name", SIXTEEN_BITS)).any():
        return
    is_kernel &= ~matching(known, "name", NOT_FLOAT32)
    is_product = matching(known, "category", PRODUCTS) & matching(known, "name", FLOAT32)
    products = known.filter(is_kernel & is_product)
    if view.us_of(products) < PART * view.busy_us:
        return
    work = known.select("id", "category", "duration_ns").filter(is_kernel)
    training = trains(view)
    shares = {category: both[training] for category, both in BFLOAT16.items()}
    share = pl.col("category").cast(pl.String).replace_strict(shares, default=0.0)
    saved = pl.when(pl.col("id").is_in(plain["id"].implode())).then(PRODUCT).otherwise(share)
    saved *= pl.col("duration_ns") - FIXED_NS
    work = work.with_columns(saved_ns=saved.clip(0)).filter(pl.col("saved_ns") > 0)
    saving = savings.device(view, work, "nine tenths of float32 products' time, a part of other kernels'")
    if saving.us <= MORE * rounded.us:
        return
    longest, us = products.sort("duration_ns", descending=True), view.us_of(plain)
    tf32 = f" TF32, which changes no tensor's type, saves {numbers.time(rounded.us)} of it."
    yield Finding(
        subject="bfloat16",
        title=f"Everything is computed in float32: {numbers.time(view.us_of(products))} of products per "
        f"{view.unit}" + (f", {numbers.time(us)} of them without tensor cores" if us else ""),
        saving=saving,
        evidence=[evidence.of(view, "the longest products", longest.head(8))],
        advice="Use bfloat16: its products are twice as fast as TF32's, and what memory limits moves half of "
        "the bytes." + (tf32 if rounded.us else ""),
        snippet='with torch.autocast("cuda", torch.bfloat16):' if training else "model.bfloat16()",
        source=evidence.source(view, longest["op"]),
    )
