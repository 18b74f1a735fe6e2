"""A gradient scaler in a program that computes nothing in float16.

What it finds
    ``torch.amp.GradScaler`` with bfloat16.

Why it is slow
    The scaler checks every gradient for infinities, and the host waits for the result before each
    optimizer step: the device then has nothing to do until the step has been launched. It keeps float16's
    gradients from becoming zero; bfloat16 has float32's range.

How it decides
    ``_amp_foreach_non_finite_check_and_unscale_`` in a program whose kernels' names have bfloat16 and no
    float16. Gone are the scaler's ops and their kernels, what the thread does from the reciprocal of the
    scale to the check and from ``Optimizer.step`` to the scale's update, and the last ``item()`` between the
    check and the optimizer, with its wait. The loss's scaling stays in the estimate.

What to do
    Leave the scaler out, or ``GradScaler(enabled=False)``: ``loss.backward()`` and ``optimizer.step()``.

Source
    PyTorch AMP documentation: gradient scaling helps gradients with small magnitudes in float16.
"""

from kinetoscope.analysis.events.torch_names import SCALER, SYNCHRONIZATION
from kinetoscope.findings.rule import *

CHECK = r"^aten::_amp_foreach_non_finite_check_and_unscale_$"
UPDATE, INVERSE = r"^aten::_amp_update_scale_$", r"^aten::reciprocal$"
NEAR_NS = 2_000_000  # longer is no part of the scaler's
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
    reads = _reads(view)
    change = without_host(pl.concat([_around(view), reads.select(SEGMENT)])) | no_wait(reads["wait"])
    basis = "the check of all gradients, the scaler's part of the thread, and its waits"
    yield Finding(
        title=f"A gradient scaler checks gradients {view.counted(checks, 'time')} per {view.unit}, and "
        "nothing is computed in float16",
        saving=savings.device(view, work, basis, "duration_ns", without_host(ops) | change),
        evidence=[evidence.of(view, "the scaler's ops", ops)],
        advice="Leave the gradient scaler out: bfloat16 has the range of float32.",
        snippet='scaler = torch.amp.GradScaler("cuda", enabled=False)',
        at_least="info",
        source=evidence.source(view, ops["id"]),
    )


def _around(view: RankView) -> pl.DataFrame:
    """The times of the thread that are the scaler's: from the op before the last reciprocal to each check,
    and from the end of the optimizer's step to the update of the scale after it."""
    called = view.called.with_columns(before_ns=pl.col("start_ns").shift(1).over("lane"))
    inverse = called.filter(matching(called, "name", INVERSE)).select("lane", "start_ns", began="before_ns")
    ends = view.host(STEP).select("lane", start_ns=pl.col("start_ns") + pl.col("duration_ns"))
    ends = ends.with_columns(began="start_ns")
    times = [
        view.host(scaler).sort("start_ns").join_asof(
            before.sort("start_ns"), on="start_ns", by="lane", check_sortedness=False
        )
        for scaler, before in ((CHECK, inverse), (UPDATE, ends))
    ]  # fmt: skip
    until = pl.col("start_ns") - pl.col("began")
    found = pl.concat(times).drop_nulls("began").filter(until < NEAR_NS)
    return found.select("lane", duration_ns=until, start_ns="began").select(SEGMENT)


def _reads(view: RankView) -> pl.DataFrame:
    """The last ``item()`` between each check and the optimizer's next step, with its call (``wait``)."""
    host = view.trace.host_events
    calls = view.host(SYNCHRONIZATION)
    calls = calls.filter(matching(host, "name", VALUE).gather(calls["parent"]).fill_null(False))
    ops = host.select("start_ns", "duration_ns")[calls["parent"]]
    calls = calls.select("lane", at="start_ns", wait="id").hstack(ops).sort("at")
    checks = view.host(CHECK).select("lane", at="start_ns", checked="start_ns").sort("at")
    steps = view.host(STEP).select("lane", at="start_ns").sort("at")
    last = steps.join_asof(calls.with_columns(read="at"), on="at", by="lane", check_sortedness=False)
    last = last.join_asof(checks, on="at", by="lane", check_sortedness=False)
    return last.filter(pl.col("read") > pl.col("checked"))
