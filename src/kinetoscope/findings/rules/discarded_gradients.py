"""Gradients are computed for weights that the next update does not change.

What it finds
    Backward passes that reach more parameters than the optimizer that steps next has: those of a
    discriminator in the generator's pass, of a net that a loss is computed with, of a body under a trained
    head.

Why it is slow
    A product has a product for its weights' gradient in the backward pass, as large as the one for its
    input's, and each gradient takes memory. They are thrown away before anybody uses them.

How it decides
    Gradients that are accumulated in the backward passes before each update of a step, less those that its
    optimizer had when the program's first steps were looked at. Updates without a backward pass of their own
    belong to the one before. Steps with other updates than those are left alone, as is a tenth more than an
    optimizer has. Where the rest are as many as the step's other optimizers have, or more, they are of nets
    behind the trained one, whose nodes autograd runs first; else of the first and of the last so many, those
    that save less. Half of their nodes' products go.

What to do
    ``net.requires_grad_(False)`` for the pass that only goes through it, and True for its own; for good,
    where nothing trains it. What a loss takes from real samples needs none at all (``torch.no_grad()``).

Source
    PyTorch, "Autograd mechanics", setting ``requires_grad``; the DCGAN tutorial's two passes.
"""

from kinetoscope.analysis.events.backward import passes
from kinetoscope.analysis.events.enclosing import nearest
from kinetoscope.analysis.events.rows import END
from kinetoscope.analysis.events.torch_names import AUTOGRAD_NODE, GRADIENT
from kinetoscope.findings.rule import *
from kinetoscope.recording.manifest import OptimizerStep

ADDS = r"AccumulateGrad$"
UPDATE = r"^Optimizer\.step#"
PRODUCTS = "^(matmul|convolution)$"
FEW = 0.1  # of an optimizer's gradients: so many more may be those of a part that was not used at first
OF_WEIGHTS = 0.5  # of a product's backward pass
STEP = ["step", "update"]


def find(view: RankView) -> Findings:
    updates = view.record.steps.updates if view.record else ()
    rounds = _rounds(view, len(updates)) if updates else None
    if rounds is None:
        return
    gradients = _accumulated(view, rounds)
    # The program's first steps may have been looked at from another update on.
    turned = (updates[place:] + updates[:place] for place in range(len(updates)))
    had, counted = min(
        ((own, _counted(rounds, gradients, own)) for own in map(_had, turned)),
        key=lambda one: (one[1]["others"] != 0).sum(),
    )
    counted = counted.filter((pl.col("others") > FEW * pl.col("had")).all().over("update"))
    if counted.is_empty():
        return
    nodes = _nodes(view, gradients.join(counted, on=STEP, maintain_order="left"))
    behind, before = nodes.filter("behind"), nodes.filter("before")
    saving = _saving(view, behind)
    if not _of_other_optimizers(counted, had) and (other := _saving(view, before)).us < saving.us:
        behind, saving = before, other
    number = int((counted["others"] * counted["passes"]).sum())
    yield Finding(
        title=f"{view.per_step(number):,.0f} of {view.per_step(len(gradients)):,.0f} gradients per "
        f"{view.unit} are of weights that the optimizer's step after them does not change",
        affected_us=view.us_of(_products(view, behind)),
        saving=saving,
        evidence=[evidence.of(view, "the longest of their nodes", behind.sort("duration_ns").tail(8))],
        advice="Compute no gradients of weights that a pass only goes through: of the discriminator's in the "
        "generator's pass, of a loss's net, of what is not trained.",
        snippet="discriminator.requires_grad_(False)  # and True again for its own pass",
        source=evidence.source(view, behind["id"]),
    )


def _had(updates: tuple[OptimizerStep, ...]) -> pl.DataFrame:
    """How many gradients each optimizer ``had``, by ``update``."""
    return pl.DataFrame(
        {"update": range(len(updates)), "had": [update.gradients for update in updates]},
        schema={"update": pl.Int64, "had": pl.Int64},
    )


def _rounds(view: RankView, number: int) -> pl.DataFrame | None:
    """The updates of the recorded steps: ``step``, their place in it (``update``), ``start_ns``, and since
    when gradients are theirs (``since_ns``); None unless each step has so many."""
    steps = view.trace.steps.select(step="id", began_ns="start_ns").sort("began_ns")
    calls = view.inside(view.host(UPDATE)).select("start_ns", END).sort("start_ns")
    calls = calls.join_asof(steps, left_on="start_ns", right_on="began_ns", check_sortedness=False)
    calls = calls.drop_nulls("step").with_columns(
        update=pl.int_range(pl.len()).over("step"),
        since_ns=pl.coalesce(pl.col("end_ns").shift(1).over("step"), "began_ns"),
    )
    each = calls.group_by("step").len()["len"]
    return calls if len(each) == view.steps and (each == number).all() else None


def _accumulated(view: RankView, rounds: pl.DataFrame) -> pl.DataFrame:
    """The nodes that accumulate a gradient before an update: ``lane``, ``start_ns``, ``end_ns``, its ``step``
    and ``update``, and the number of the backward ``pass``."""
    found = view.inside(view.host(GRADIENT)).select("lane", "start_ns", END).sort("start_ns")
    each = passes(view.trace).select("lane", began_ns="start_ns").with_row_index("pass").sort("began_ns")
    bounds = rounds.select(*STEP, "since_ns", until_ns="start_ns").sort("since_ns")
    return (
        found.join_asof(bounds, left_on="start_ns", right_on="since_ns", check_sortedness=False)
        .filter(pl.col("start_ns") < pl.col("until_ns"))
        .join_asof(each, left_on="start_ns", right_on="began_ns", by="lane", check_sortedness=False)
        .drop_nulls("pass")
    )


def _counted(rounds: pl.DataFrame, gradients: pl.DataFrame, had: pl.DataFrame) -> pl.DataFrame:
    """The updates with backward passes of their own: ``step``, ``update``, the number of ``passes``, and how
    many gradients each of them has that are not the optimizer's (``others``)."""
    counts = gradients.group_by(STEP).agg(gradients=pl.len(), passes=pl.n_unique("pass"))
    found = rounds.select(STEP).join(counts, on=STEP, how="left").join(had, on="update").sort(STEP)
    # An update without a backward pass uses gradients of the one before.
    of = pl.when(pl.col("passes") > 0).then("update").forward_fill().over("step")
    found = found.with_columns(of=of).drop_nulls("of").group_by("step", update="of", maintain_order=True)
    found = found.agg(pl.sum("gradients", "had"), pl.first("passes"))
    return found.with_columns(others=pl.col("gradients") // pl.col("passes") - pl.col("had"))


def _of_other_optimizers(counted: pl.DataFrame, had: pl.DataFrame) -> bool:
    """Whether the gradients are as many as other optimizers of the step have, or more."""
    other = had["had"].sum() - pl.col("had")
    return counted.select(((other > 0) & (pl.col("others") >= other)).all()).item()


def _nodes(view: RankView, gradients: pl.DataFrame) -> pl.DataFrame:
    """The nodes of autograd (rows of ``host_events``) of the passes that compute such gradients: whether they
    run until the first so many are accumulated (``behind`` the trained net), or after all but the last so
    many (``before`` it)."""
    own = gradients.drop_nulls("others").sort("start_ns")
    place, number = pl.int_range(pl.len()).over("pass"), pl.len().over("pass")
    bounds = (
        own.with_columns(place=place, number=number)
        .group_by("pass", "lane", maintain_order=True)
        .agg(
            pl.first("began_ns"),
            until_ns=pl.col("end_ns").filter(pl.col("place") < pl.col("others")).max(),
            from_ns=pl.col("end_ns").filter(pl.col("place") < pl.col("number") - pl.col("others")).max(),
            last_ns=pl.col("end_ns").max(),
        )
    )
    nodes = view.inside(view.host(AUTOGRAD_NODE)).sort("start_ns")
    found = nodes.join_asof(
        bounds.sort("began_ns"), left_on="start_ns", right_on="began_ns", by="lane", check_sortedness=False
    )
    at = pl.col("start_ns")
    return found.filter(at < pl.col("last_ns")).with_columns(
        behind=at < pl.col("until_ns"), before=at > pl.coalesce("from_ns", "began_ns")
    )


def _products(view: RankView, nodes: pl.DataFrame) -> pl.DataFrame:
    """The device work of these nodes of which a part is gone with the gradients: their ``node``, and the
    ``share`` that is gone of it: of products half, of adding to a gradient all."""
    host = view.trace.host_events
    node = nearest(host, host["id"].is_in(nodes["id"].implode()))
    work = view.work.drop_nulls("launch")
    work = work.with_columns(node=node.gather(work["launch"])).drop_nulls("node")
    adds = matching(host, "name", ADDS).gather(work["node"])
    product = pl.col("product").any().over("node")
    share = pl.when(adds).then(1.0).when(product).then(OF_WEIGHTS)
    work = work.with_columns(product=matching(work, "category", PRODUCTS))
    return work.with_columns(share=share).drop_nulls("share")


def _saving(view: RankView, nodes: pl.DataFrame) -> Saving:
    work = _products(view, nodes)
    freed = savings.device(
        view, work, "half of these products, and the additions", pl.col("duration_ns") * pl.col("share")
    )
    shares = work.group_by("node").agg(pl.first("share"))
    calls = nodes.join(shares, left_on="id", right_on="node", how="inner", maintain_order="left")
    return savings.both(view, freed, savings.host(view, calls, "their launches"))
