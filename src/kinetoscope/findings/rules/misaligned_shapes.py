"""Matrix sizes that are not multiples of eight.

What it finds
    Tensor-core kernels whose name ends in ``align1``, ``align2`` or ``align4``: the operands' rows do not
    start on 16 bytes.

Why it is slow
    Tensor cores are fed by 16-byte loads and, on Hopper, by the tensor memory accelerator, which needs
    16-byte strides. Without, the library falls back to an older kernel that loads element by element.

How it decides
    The kernel's name (``cutlass_…_align1`` and the like); ``simt`` kernels, which are always ``align1``, and
    float32 ones, for which four elements are 16 bytes, are left out. How much is saved depends on the
    alignment: measured on an H200, a product with odd sizes (align1) takes 4.5 times as long as one padded to
    64.

What to do
    Pad to a multiple of 8 (bfloat16, float16) or 16 (8 bits), of 64 at best: a vocabulary of 50257 to 50304,
    heads, hidden sizes and sequence lengths too.

Source
    NVIDIA Deep Learning Performance Guide, "Tensor Core requirements"; nanoGPT's vocabulary of 50304.
"""

from kinetoscope.findings.rule import *

MISALIGNED = r"(bf16|f16|s16816|s161616|h16816|h1688|_i8|s8)\w*align[124]\b"
GAIN = {"1": 0.75, "2": 0.5, "4": 0.25}  # share of the kernel's time that padding saves
BASIS = "three quarters of align1, half of align2, a quarter of align4 kernels' time"


def find(view: RankView) -> Findings:
    kernels = view.kernels(MISALIGNED)
    if kernels.is_empty():
        return
    alignment = pl.col("name").cast(pl.String).str.extract(r"align([124])\b")
    saved = pl.col("duration_ns") * alignment.replace_strict(GAIN, return_dtype=pl.Float64)
    longest = kernels.sort("duration_ns", descending=True)
    dims = view.trace.argument("input_dims", longest["op"])
    shapes = dims.drop_nulls().unique(maintain_order=True)
    shown = short_name(str(longest["name"][0])) + (f", inputs {shapes[0]}" if len(shapes) else "")
    yield Finding(
        title=f"{view.per_step(len(kernels)):,.0f} products per {view.unit} have sizes that are not "
        "multiples of 8",
        affected_us=view.us_of(kernels),
        saving=savings.device(view, kernels, BASIS, saved=saved),
        evidence=[evidence.of(view, shown, longest)],
        advice="Pad the sizes to a multiple of 8, better of 64.",
        snippet="vocabulary = 64 * math.ceil(vocabulary / 64)",
        source=evidence.source(view, longest["op"]),
    )
