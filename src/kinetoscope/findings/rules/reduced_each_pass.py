"""Accumulated gradients are reduced among ranks after each batch, not once.

What it finds
    Several backward passes before an optimizer's step, in each of which the ranks reduce gradients.

Why it is slow
    The optimizer needs the sum alone. DistributedDataParallel reduces in every backward pass unless asked
    not to, so that of n accumulated batches n - 1 send all gradients for nothing.

How it decides
    Backward passes of the same nodes between an optimizer's calls, in each of which equally many all-reduces
    or reduce-scatters are launched. Those of all but the last pass are saved, without the time in which they
    wait for other ranks, which then wait in the last one.

What to do
    Wrap all but the last forward and backward pass in ``model.no_sync()``; accelerate and Lightning do so
    themselves. With FSDP each rank then keeps whole gradients: mind the memory.

Source
    PyTorch documentation, ``DistributedDataParallel.no_sync``.
"""

from kinetoscope.analysis.collectives.recorded import collectives
from kinetoscope.analysis.events.backward import passes
from kinetoscope.analysis.events.torch_names import OPTIMIZER
from kinetoscope.findings.rule import *

REDUCES = ["all-reduce", "reduce-scatter"]


def find(view: RankView) -> Findings:
    if len(passes(view.trace)) < 2:
        return
    work = _within_passes(view)
    each = work.group_by("group", "began_ns").agg(number=pl.len())
    groups = each.group_by("group").agg(pl.n_unique("number"), reducing=pl.len())
    groups = groups.filter(pl.col("number") == 1, pl.col("reducing") > 1)
    work = work.join(groups, on="group", maintain_order="left").filter(pl.col("reducing") == pl.col("passes"))
    early = work.filter(pl.col("place") < pl.col("passes") - 1)
    if early.is_empty():
        return
    waited = view.waits.select("id", "waiting_ns")
    early = early.join(waited, on="id", how="left", maintain_order="left")
    moving = (pl.col("duration_ns") - pl.col("waiting_ns").fill_null(0)).clip(0)
    saving = savings.device(view, early, "the transfers of all passes but the last", saved=moving)
    if saving.share < MEDIUM:
        return
    # Replayed together, ranks wait no longer than they must.
    whole_ones = shorten(early["id"], early["duration_ns"])
    saving = replace(saving, together={view.rank: whole_ones | saving.change})
    most = whole(work["passes"].max())
    yield Finding(
        title=f"Gradients of {most} batches are accumulated for an optimizer step, and ranks reduce them "
        f"{most} times: {numbers.time(view.us_of(early))} per {view.unit} for nothing",
        affected_us=view.us_of(early),
        saving=saving,
        evidence=[evidence.of(view, "reductions before the last pass", early)],
        advice="Reduce gradients once, in the last backward pass: run the others, forward too, in no_sync().",
        snippet="with nullcontext() if last else model.no_sync():\n    loss(model(x), y).backward()",
        source=evidence.source(view, early["op"]),
    )


def _within_passes(view: RankView) -> pl.DataFrame:
    """The reductions that backward passes launch: which pass (``began_ns``), the how many-th (``place``) of
    how many ``passes`` of one ``group``, which are of the same nodes between two calls of an optimizer."""
    known = collectives(view.trace).filter(pl.col("kind").cast(pl.String).is_in(REDUCES))
    work = view.work.filter(view.work["id"].is_in(known["id"].implode())).drop_nulls("launch")
    calls = view.host(OPTIMIZER).select(called_ns="start_ns").sort("called_ns")
    each = passes(view.trace).select("lane", "shape", began_ns="start_ns", until_ns="end_ns").sort("began_ns")
    each = each.join_asof(calls, left_on="began_ns", right_on="called_ns", check_sortedness=False)
    each = each.with_columns(group=pl.struct("lane", "shape", "called_ns").rank("dense")).drop("lane")
    each = each.with_columns(place=pl.int_range(pl.len()).over("group"), passes=pl.len().over("group"))
    work = work.hstack(view.trace.host_events.select(at_ns="start_ns")[work["launch"]]).sort("at_ns")
    work = work.join_asof(each, left_on="at_ns", right_on="began_ns", check_sortedness=False)
    return work.filter(pl.col("at_ns") < pl.col("until_ns"))
