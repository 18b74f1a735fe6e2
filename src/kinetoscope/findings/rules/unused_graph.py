"""Autograd records a graph that no backward pass follows.

What it finds
    An evaluation or inference without ``torch.no_grad()``; in training the forward pass of a teacher, of
    fixed targets, or of a metric, whose result gets no gradient.

Why it is slow
    For each op the host makes a node and saves what its gradient would need; the memory stays taken until
    the result is gone. Often the result does not change from step to step either.

How it decides
    Forward ops whose sequence numbers no node of a backward pass has, where they make at least ten nodes a
    step and launch a twentieth of the device's work. Of their time on the host a fifth goes, of 10 µs at the
    most: on an H200 a tenth went in a DQN and a third in the rule's case, on a CPU a fifth to half.

What to do
    ``with torch.no_grad():`` or ``torch.inference_mode()``; ``detach()`` comes too late, the graph is there
    by then. Targets that stay the same are computed once, before the loop.

Source
    PyTorch, "Autograd mechanics", locally disabling gradient computation.
"""

from kinetoscope.analysis.events.backward import unused
from kinetoscope.analysis.events.enclosing import nearest
from kinetoscope.analysis.events.rows import END
from kinetoscope.findings.in_force import trains
from kinetoscope.findings.rule import *

COLUMNS = ["id", "event", "lane", "start_ns", "duration_ns", "sequence"]
NODES = 10  # per step: fewer are a metric's
WORTH = 0.05  # of the device's work
# Of the host's time for an op that launches: its node, and what that saves. An op that takes longer computes.
RECORDING, LONGEST_NS = 0.2, 50_000


def find(view: RankView) -> Findings:
    host = view.trace.host_events
    is_unused = unused(view.trace)
    if not is_unused.any():
        return
    ops = view.inside(host.select(*COLUMNS, END).filter(is_unused))
    ops = intervals.outermost(ops, ["lane"])
    nodes = ops["sequence"].n_unique()
    work = view.work.filter(nearest(host, is_unused).gather(view.work["launch"]).is_not_null())
    if nodes < NODES * view.steps or view.us_of(work) < WORTH * view.busy_us:
        return
    # Rounded: a replay looks at segments of each share by themselves.
    recording = (RECORDING * pl.min_horizontal("duration_ns", LONGEST_NS) / pl.col("duration_ns")).round(2)
    where = "that no backward pass follows" if trains(view) else "and no backward pass was recorded"
    yield Finding(
        title=f"Autograd records {view.counted(nodes, 'op')} per {view.unit} {where}",
        affected_us=view.us_of(work),
        saving=savings.host(
            view, ops.with_columns(share=recording), "a fifth of the host's time for these ops"
        ),
        at_least="info",
        at_most="low",
        evidence=[evidence.of(view, f"{len(ops)} ops that get no gradient", ops)],
        advice="Compute what needs no gradient under torch.no_grad(): it takes less of the host's time and "
        "less memory. What is the same in every step, such as fixed targets, compute once before the loop.",
        snippet="with torch.no_grad():\n    targets = model(inputs)",
        source=evidence.source(view, _of_most(view, ops)),
    )


def _of_most(view: RankView, ops: pl.DataFrame) -> pl.Series:
    """These ops, those of the line that records most of them first: an op without a node has the number of
    the next one, so that of many such ops there is one number."""
    if view.lines is None:
        return ops["id"]
    lines = ops.select("id", "sequence", line=view.lines.rows["line"][ops["id"]])
    lines = lines.with_columns(nodes=pl.n_unique("sequence").over("line"))
    lines = lines.sort(pl.col("line").is_null(), -pl.col("nodes").cast(pl.Int64), maintain_order=True)
    return lines["id"]
