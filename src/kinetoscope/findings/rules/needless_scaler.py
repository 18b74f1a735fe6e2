"""A gradient scaler in a program that computes nothing in float16.

What it finds
    ``torch.amp.GradScaler`` with bfloat16.

Why it is slow
    The scaler checks every gradient for infinities, and the host waits for the result before each
    optimizer step: the device then has nothing to do until the step has been launched. It keeps float16's
    gradients from becoming zero; bfloat16 has float32's range.

How it decides
    ``_amp_foreach_non_finite_check_and_unscale_`` in a program whose kernels' names have bfloat16 and no
    float16. Gone are the scaler's ops, their kernels, and the wait of the last ``item()`` between the
    check and ``Optimizer.step``. The loss's scaling stays in the estimate.

What to do
    Leave the scaler out, or ``GradScaler(enabled=False)``: ``loss.backward()`` and ``optimizer.step()``.

Source
    PyTorch AMP documentation: gradient scaling helps gradients with small magnitudes in float16.
"""

from kinetoscope.analysis.events.torch_names import SCALER, SYNCHRONIZATION
from kinetoscope.findings.rule import *

CHECK = r"^aten::_amp_foreach_non_finite_check_and_unscale_$"
STEP = r"^Optimizer\.step#"
VALUE = r"^aten::_local_scalar_dense$"
BFLOAT16 = r"(?i)bfloat16|bf16|^nvjet(_sm\d+)?_t"
# cuDNN's attention calls its kernels for bfloat16 f16 as well: of these no name says more.
FLOAT16 = r"c10::Half|__half|(^|[^b])float16|(^|[^b])fp16|[^b]f16f|(^|_)h[a-z]*16|hgemm|^nvjet(_sm\d+)?_h"


def find(view: RankView) -> Findings:
    ops = view.inside(view.host(SCALER))
    if ops.is_empty() or view.kernels(BFLOAT16).is_empty() or len(view.kernels(FLOAT16)):
        return
    checks = len(ops.filter(matching(ops, "name", CHECK)))
    work = view.work.filter(view.work["op"].is_in(ops["id"].implode()).fill_null(False))
    freed = savings.device(view, work, "the check of all gradients", "duration_ns")
    host = savings.of(view, without_host(ops) | no_wait(_waits(view)), "the scaler's ops and waits")
    yield Finding(
        title=f"A gradient scaler checks gradients {numbers.count(round(view.per_step(checks)), 'time')} per "
        f"{view.unit}, and nothing is computed in float16",
        saving=savings.both(view, freed, host),
        evidence=[evidence.of(view, "the scaler's ops", ops)],
        advice="Leave the gradient scaler out: bfloat16 has the range of float32.",
        snippet='scaler = torch.amp.GradScaler("cuda", enabled=False)',
        at_least="info",
        source=evidence.source(view, ops["id"]),
    )


def _waits(view: RankView) -> pl.Series:
    """The synchronising calls of the last ``item()`` between each check and the optimizer's next step."""
    host = view.trace.host_events
    calls = view.host(SYNCHRONIZATION)
    read = matching(host, "name", VALUE).gather(calls["parent"]).fill_null(False)
    calls = calls.filter(read).select("lane", at="start_ns", wait="id").sort("at")
    checks = view.host(CHECK).select("lane", at="start_ns", checked="start_ns").sort("at")
    steps = view.host(STEP).select("lane", at="start_ns").sort("at")
    last = steps.join_asof(calls.with_columns(read="at"), on="at", by="lane", check_sortedness=False)
    last = last.join_asof(checks, on="at", by="lane", check_sortedness=False)
    return last.filter(pl.col("read") > pl.col("checked"))["wait"]
