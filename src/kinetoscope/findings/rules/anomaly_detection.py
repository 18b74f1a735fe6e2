"""Autograd's anomaly detection is on: every gradient is looked through for NaNs.

What it finds
    ``torch.autograd.set_detect_anomaly(True)``, ``detect_anomaly()`` and what stands for them: Lightning's
    ``Trainer(detect_anomaly=True)``.

Why it is slow
    After each node of the backward pass its gradients are checked by three kernels, and the host waits for
    the answer, so that nothing is launched ahead. In the forward pass each op keeps a traceback of Python.

How it decides
    ``aten::isnan``, ``aten::_is_any_true`` and ``aten::item`` called by the backward pass's own engine. Gone
    are these ops, their kernels and waits, and of each op of the forward pass what it takes before its own
    work beyond what ops of the backward pass take, at the median: that is the traceback.

What to do
    Switch it off once the NaN is found; to look for one again, do so for a few steps.

Source
    PyTorch documentation, "Anomaly detection": "This mode should be enabled only for debugging as the
    different tests will slow down your program execution."
"""

from kinetoscope.analysis.events.enclosing import nearest
from kinetoscope.analysis.events.rows import constant
from kinetoscope.analysis.events.torch_names import AUTOGRAD_NODE, SYNCHRONIZATION
from kinetoscope.analysis.memo import remembered
from kinetoscope.findings.rule import *
from kinetoscope.trace.model import Trace

ASKS = r"^aten::_is_any_true$"
CHECKS = rf"{ASKS}|^aten::(isnan|item)$"


def find(view: RankView) -> Findings:
    host = view.trace.host_events
    asked = view.inside(host.filter(checks(view.trace) & matching(host, "name", ASKS)))
    if asked.is_empty():
        return
    inside = in_checks(view.trace)
    ops = view.inside(host.filter(checks(view.trace)))
    waits = host["id"].filter(inside & matching(host, "name", SYNCHRONIZATION))
    change = without_host(pl.concat([ops.select(SEGMENT), _tracebacks(view)])) | no_wait(waits)
    kernels = view.work.filter(inside.gather(view.work["launch"]).fill_null(False))
    basis = "the checks, their waits, and the tracebacks that forward ops keep"
    yield Finding(
        title=f"Anomaly detection is on: the gradients of {view.per_step(len(asked)):,.0f} nodes per "
        f"{view.unit} are checked for NaNs, and the host waits for each answer",
        affected_us=view.us_of(kernels),
        saving=savings.device(view, kernels, basis, "duration_ns", change),
        at_least="medium",
        evidence=[evidence.of(view, numbers.count(len(asked), "check"), asked)],
        advice="Switch it off once the NaN is found.",
        snippet="torch.autograd.set_detect_anomaly(False)",
    )


@remembered
def checks(trace: Trace) -> pl.Series:
    """For each row of ``host_events`` whether it is an op of a check for NaNs."""
    host = trace.host_events
    if not matching(host, "name", ASKS).any():
        return constant(False, len(host), pl.Boolean)
    by_engine = matching(host, "name", AUTOGRAD_NODE).gather(host["parent"]).fill_null(False)
    return by_engine & matching(host, "name", CHECKS)


@remembered
def in_checks(trace: Trace) -> pl.Series:
    """For each row of ``host_events`` whether it is a part of such an op."""
    return nearest(trace.host_events, checks(trace)).is_not_null()


def _tracebacks(view: RankView) -> pl.DataFrame:
    """The time before the first part or launch of each forward op that the backward pass has a node of,
    beyond that of the backward pass's own ops at the median."""
    host = view.trace.host_events
    in_backward = view.around(AUTOGRAD_NODE).is_not_null()
    ops = host.select("id", "sequence", "lane", "start_ns", "duration_ns", in_backward=in_backward)
    ops = view.inside(ops.filter(matching(host, "name", "^aten::")))
    parts = host.select(id="parent", begins="start_ns").drop_nulls("id").group_by("id").agg(pl.min("begins"))
    ahead = pl.coalesce(pl.col("begins") - pl.col("start_ns"), "duration_ns")
    ops = ops.join(parts, on="id", how="left").with_columns(ahead_ns=ahead)
    usual_ns = ops.filter("in_backward")["ahead_ns"].median()
    kept = ops.filter(~pl.col("in_backward"), pl.col("sequence").is_not_null(), pl.col("ahead_ns") > usual_ns)
    return kept.with_columns(duration_ns=(pl.col("ahead_ns") - usual_ns).cast(pl.Int64)).select(SEGMENT)
