"""Much of the work is done in double precision.

What it finds
    Kernels that compute with numbers of 64 bits and none of fewer: products such as ``dgemm``, elementwise
    work, reductions and copies on ``double``.

Why it is slow
    NumPy makes doubles, and a tensor made of them, or a net after ``.double()``, has doubles until they are
    converted. They are twice the bytes, and have no products in TF32, of which an H100 does seven times as
    many. Consumers' devices do a sixty-fourth of the double-precision arithmetic that they do in single.

How it decides
    By the kernels' names; a tenth of the device's time or more. Products and attention take the part of their
    time that the device's peak rates of double and single precision say, and a fifth of that with TF32; all
    else half; of each kernel 3 µs stay. Where the program factorizes or solves in double precision, that
    seven digits are enough is the condition.

What to do
    ``torch.from_numpy(array).float()`` where the data come in, ``torch.set_default_dtype(torch.float32)``,
    constants and noise made with a ``dtype``; ``torch.set_float32_matmul_precision("high")`` for products in
    TF32. Keep doubles for the few sums or factorizations that need them.

Source
    PyTorch, "Type promotion"; PyTorch CUDA semantics, "TensorFloat-32 (TF32) on Ampere (and later) devices";
    NVIDIA's datasheets of devices (see ``hardware``).
"""

from kinetoscope.findings.rule import *
from kinetoscope.findings.rules.no_tensor_cores import GAIN, PRODUCTS
from kinetoscope.hardware import find as device_named

ROLE = "rounds"
DOUBLE = r"\bdouble\b|(?i:dgemm|_f64f64_|_d884|dsyrk|dtrsm)"
SHORTER = r"(?i)float|half|f32|f16"  # an argument alone is double, such as a learning rate
# Ops that need the digits more often than networks do.
SOLVES = (
    r"aten::(_?linalg_(cholesky|lu|ldl|qr|eig|svd|solve|inv|lstsq|det|slogdet)|cholesky|lu_|triangular_solve)"
)
WORTH = 0.1  # of the device's time


def find(view: RankView) -> Findings:
    spec = device_named(view.device.name) if view.device is not None else None
    work = view.work.filter(view.work["kind"] == "kernel")
    work = work.filter(matching(work, "name", DOUBLE) & ~matching(work, "name", SHORTER))
    if spec is None or work.is_empty() or view.us_of(work) < WORTH * view.busy_us:
        return
    double, single, rounded = (spec.peak(dtype) for dtype in ("fp64", "fp32", "tf32"))
    left = min(1.0, double / single) if double and single else 1.0
    if rounded and single and rounded > single:
        left *= 1 - GAIN
    share = pl.when(matching(work, "category", PRODUCTS)).then(1 - left).otherwise(0.5)
    work = work.with_columns(saved_ns=((pl.col("duration_ns") - FIXED_NS) * share).clip(0))
    work = work.sort("duration_ns", descending=True)
    basis = "products at the rate of single precision and TF32, half of what all others take"
    saving = savings.device(view, work.filter(pl.col("saved_ns") > 0), basis)
    if len(view.inside(view.host(SOLVES))):
        saving = savings.if_so(saving, "the seven digits of single precision are enough")
    yield Finding(
        title=f"{numbers.time(view.us_of(work))} of the device's work per {view.unit} is on double-precision "
        "numbers",
        affected_us=view.us_of(work),
        saving=saving,
        evidence=[evidence.of(view, short_name(str(work["name"][0])), work.head(8))],
        advice="Convert what comes from NumPy where it comes in, since doubles spread to all that is "
        "computed with them; let products use TF32.",
        snippet="x = torch.from_numpy(array).float()\n" + 'torch.set_float32_matmul_precision("high")',
        source=evidence.source(view, work["op"]),
    )
