"""Matrix products in float32 on the ordinary cores.

What it finds
    GEMMs and convolutions of NVIDIA's libraries that use no tensor cores although the device has them:
    ``…sgemm…``, ``…_ffma_…``, ``…simt…``, and cuDNN's own engines on ``float``, ``dgrad_engine<float…``.

Why it is slow
    On an H200 float32 arithmetic reaches 67 TFLOP/s, TF32 on the tensor cores 495, bfloat16 990.

How it decides
    The kernel's name, at least 20 µs each, on a device of compute capability 8 or higher. Four fifths of
    their time count as saved: TF32 is seven times as fast in compute, less where memory limits.

What to do
    ``torch.set_float32_matmul_precision("high")`` (TF32: 10 bits of mantissa in the products, float32 sums),
    or train and serve in bfloat16 (autocast). Double precision and exact float32 have no such option.

Source
    PyTorch CUDA semantics, "TensorFloat-32 (TF32) on Ampere (and later) devices".
"""

from kinetoscope.findings.rule import *

ENGINES = r"\b[dw]grad\w*?(_engine|_alg\d_\d)<float,"  # old ones of cuDNN, which it still chooses for NCHW
PLAIN = r"(?i)sgemm|_ffma_|simt_s|_scudnn_|f32f32_f32f32_f32_|" + ENGINES
LONG_NS = 20_000
GAIN = 0.8


def find(view: RankView) -> Findings:
    capability = view.device.compute_capability if view.device else None
    if capability is None or capability[0] < 8:
        return
    kernels = view.kernels(PLAIN).filter(
        (pl.col("duration_ns") >= LONG_NS)
        & ~pl.col("name").cast(pl.String).str.contains("tensorop|s1688|tf32")
    )
    if kernels.is_empty():
        return
    saved = pl.col("duration_ns") * GAIN
    longest = kernels.sort("duration_ns", descending=True)
    yield Finding(
        title=f"{view.per_step(len(kernels)):.0f} float32 products per {view.unit} use no tensor cores",
        affected_us=view.us_of(kernels),
        saving=savings.device(view, kernels, "four fifths of the kernels' time", saved=saved),
        evidence=[evidence.of(view, short_name(str(longest["name"][0])), longest)],
        advice="Allow TF32, or use bfloat16.",
        snippet='torch.set_float32_matmul_precision("high")',
        source=evidence.source(view, longest["op"]),
        proof=commands.tune(view, matmul_precision="high"),
    )
