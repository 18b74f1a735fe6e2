"""Gradients are computed for weights that the next update does not change.

What it finds
    Backward passes that reach more parameters than the optimizer that steps next has: those of a
    discriminator in the generator's pass, of a net that a loss is computed with, of a teacher, of a body
    under a trained head. And whole passes whose gradients are cleared before an update: those of an
    adversarial attack, which asks for the gradient of its input.

Why it is slow
    A product has a product for its weights' gradient in the backward pass, as large as the one for its
    input's, and each gradient takes memory. They are thrown away before anybody uses them.

How it decides
    Gradients that are accumulated before each update of a step, less those that its optimizer had when the
    program's first steps were looked at; a tenth more is left alone. Where the rest are as many as the step's
    other optimizers have, or more, they are of nets behind the trained one, whose nodes autograd runs first;
    where only the last so many add to gradients of earlier steps, it is these; else those that save less. Of
    the first nodes the products go that are named after the weights' gradient, and half of those whose names
    do not say; of the last ones all.

    Whole passes are thrown away where ``zero_grad`` is called after them and before the only update of a
    step, or where a later one adds to no gradient; not where ops after them compute with the gradients, as a
    search for flat minima (SAM) does.

What to do
    ``net.requires_grad_(False)`` for the pass that only goes through it, and True for its own; for good,
    where nothing trains it. A teacher, or what a loss takes from real samples, needs no backward pass at all
    (``torch.no_grad()``). For an input's gradient alone: ``torch.autograd.grad(loss, x)``.

Source
    PyTorch, "Autograd mechanics", setting ``requires_grad``; the DCGAN tutorial's two passes.
"""

from kinetoscope.analysis.events.backward import passes
from kinetoscope.analysis.events.rows import END
from kinetoscope.analysis.events.torch_names import AUTOGRAD_NODE, GRADIENT
from kinetoscope.analysis.kernels.taxonomy import COMMUNICATION
from kinetoscope.findings.rule import *
from kinetoscope.recording.manifest import OptimizerStep

ADDS = r"AccumulateGrad$"
SUM = "^aten::add_?$"
UPDATE = r"^Optimizer\.step#"
CLEARS = r"^Optimizer\.zero_grad#"
ON_LISTS, ZEROS = "^aten::_(amp_)?foreach_", "^aten::_foreach_zero_$"
SUMS, USES_SUMS = "batch_norm_backward_reduce", "batch_norm_backward_elemt"
FORMS = r": (ToCopy|T|Transpose)Backward\d*$"  # of a weight's gradient, where it is added next
PRODUCTS = "^(matmul|convolution)$"
FEW = 0.1  # of an optimizer's gradients: so many more may be those of a part that was not used at first
OF_WEIGHTS = 0.5  # of a product's backward pass, where its kernels' names do not say which are of weights
USED = 0.5  # ops for each gradient, after the pass that computes it
STEP = ["step", "update"]


def find(view: RankView) -> Findings:
    updates = view.record.steps.updates if view.record else ()
    gone = cleared(view)
    rounds = _rounds(view, max(1, len(updates))) if len(gone) or updates else None
    if rounds is None:
        return
    gradients = _accumulated(view, rounds)
    if len(gone):
        yield _of_passes(view, gradients, gone)
        gradients = gradients.join(gone, on="pass", how="anti", maintain_order="left")
    if not updates:
        return
    had, counted = _fitting(rounds, gradients, updates)
    counted = counted.filter((pl.col("others") > FEW * pl.col("had")).all().over("update"))
    if counted.is_empty():
        return
    gradients = gradients.join(counted, on=STEP, how="left", maintain_order="left")
    nodes = _nodes(view, gradients)
    behind, before = nodes.filter("behind"), nodes.filter("before")
    gone, work = behind, _products(view, behind)
    saving, kept = _saving(view, behind, work), False
    others_have = had["had"].sum() - pl.col("had")
    if not counted.select(((others_have > 0) & (pl.col("others") >= others_have)).all()).item():
        whole, kept = _all(view, before), _kept(gradients)
        other = _saving(view, before, whole, "the whole backward pass of what is not trained")
        if kept or other.us < saving.us:
            gone, work, saving = before, whole, other
    number = int((counted["others"] * counted["passes"]).sum())
    yield Finding(
        title=f"{view.per_step(number):,.0f} of {view.per_step(len(gradients)):,.0f} gradients per "
        f"{view.unit} are of weights that the optimizer's step after them does not change",
        affected_us=view.us_of(work),
        saving=saving,
        evidence=[evidence.of(view, "the longest of their nodes", gone.sort("duration_ns").tail(8))],
        advice="Run what is not trained, such as a teacher or a body under a trained head, under "
        "torch.no_grad(): no trained weight lies before it, so that its whole backward pass goes away."
        if kept
        else "Compute no gradients of weights that a pass only goes through: of the discriminator's in the "
        "generator's pass, of a loss's net, of what is not trained.",
        snippet="with torch.no_grad():\n    taught = teacher(inputs)"
        if kept
        else "discriminator.requires_grad_(False)  # and True again for its own pass",
        source=evidence.source(view, gone["id"]),
    )


def cleared(view: RankView) -> pl.DataFrame:
    """The backward ``pass``es with gradients that are cleared unused: ``lane``, ``began_ns``, ``last_ns``."""
    updates = view.record.steps.updates if view.record else ()
    rounds = _rounds(view, max(1, len(updates)))
    none = pl.DataFrame(
        schema={"pass": pl.UInt32, "lane": pl.UInt32, "began_ns": pl.Int64, "last_ns": pl.Int64}
    )
    if rounds is None:
        return none
    gradients = _accumulated(view, rounds)
    each = gradients.group_by(*STEP, "pass", maintain_order=True).agg(
        pl.first("lane", "began_ns"), last_ns=pl.max("end_ns"), number=pl.len(), fresh=(~pl.col("adds")).sum()
    )
    if len(each) == len(rounds):
        return none
    began, gone = pl.col("began_ns"), pl.lit(False)
    if len(updates) <= 1:
        calls = view.host(CLEARS).select(cleared_ns="start_ns").sort("cleared_ns")
        calls = rounds.join_asof(calls, left_on="start_ns", right_on="cleared_ns", check_sortedness=False)
        each = each.join(calls.select(*STEP, "cleared_ns"), on=STEP, maintain_order="left")
        gone |= (began < pl.col("cleared_ns")).fill_null(False)
    if updates and not matching(view.work, "category", f"^{COMMUNICATION}$").any():
        _, counted = _fitting(rounds, gradients, updates)
        each = each.join(counted.select(*STEP, "had"), on=STEP, how="left", maintain_order="left")
        all_of_them = (1 - FEW) * pl.col("had")
        anew = began.filter(pl.col("fresh") >= all_of_them).max().over(STEP)
        gone |= ((began < anew) & (pl.col("number") >= all_of_them)).fill_null(False)
    each = each.filter(gone)
    return none if each.is_empty() else _unused(view, each).select(none.columns)


def _unused(view: RankView, each: pl.DataFrame) -> pl.DataFrame:
    """The passes after which nothing computes with their gradients until the next one begins."""
    following = passes(view.trace).select(next_ns="start_ns", until_ns="end_ns").sort("next_ns")
    each = each.sort("last_ns").join_asof(
        following, left_on="last_ns", right_on="next_ns", strategy="forward", check_sortedness=False
    )
    each = each.drop_nulls("next_ns")

    def between(events: pl.DataFrame, begin: str, end: str) -> pl.Series:
        starts = events["start_ns"].sort()
        return starts.search_sorted(each[end]).cast(pl.Int64) - starts.search_sorted(each[begin])

    ops = between(view.called.filter(matching(view.called, "name", "^aten::")), "last_ns", "next_ns")
    nodes = view.host(AUTOGRAD_NODE)
    forward = between(nodes.filter(~matching(nodes, "name", ADDS)), "next_ns", "until_ns")
    on_lists = view.host(ON_LISTS)
    lists = between(on_lists.filter(~matching(on_lists, "name", ZEROS)), "last_ns", "next_ns")
    return each.filter((ops - forward < USED * each["number"]) & (lists == 0))


def _of_passes(view: RankView, gradients: pl.DataFrame, gone: pl.DataFrame) -> Finding:
    nodes = view.inside(view.host(AUTOGRAD_NODE))
    bounds = gone.select("lane", "last_ns", start_ns="began_ns", end_ns="last_ns")
    nodes = intervals.beginning_in(nodes, bounds, ["lane"])
    # The call of ``backward`` makes the loss's own gradient before autograd's thread begins.
    ops = view.called.filter(matching(view.called, "name", "^aten::"))
    ops = ops.select("id", at_ns="start_ns").sort("at_ns")
    calls = gone.sort("began_ns").join_asof(ops, left_on="began_ns", right_on="at_ns", check_sortedness=False)
    work = _products(view, nodes)
    return Finding(
        subject="passes",
        title=f"The gradients of {view.per_step(len(gone)):,.0f} of "
        f"{view.per_step(gradients['pass'].n_unique()):,.0f} backward passes per {view.unit} are cleared "
        "before the optimizer uses them",
        affected_us=view.us_of(work),
        saving=_saving(view, nodes, work),
        evidence=[evidence.of(view, "the longest of their nodes", nodes.sort("duration_ns").tail(8))],
        advice="Take the gradient of the input alone, as of an attack's perturbation: then none of weights "
        "is computed.",
        snippet="(gradient,) = torch.autograd.grad(loss, delta)  # instead of loss.backward()",
        source=evidence.source(view, calls["id"]),
    )


def _fitting(
    rounds: pl.DataFrame, gradients: pl.DataFrame, updates: tuple[OptimizerStep, ...]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """``_had`` and ``_counted``; the program's first steps may have been looked at from another update on."""
    turned = (updates[place:] + updates[:place] for place in range(len(updates)))
    return min(
        ((own, _counted(rounds, gradients, own)) for own in map(_had, turned)),
        key=lambda one: (one[1]["others"] != 0).sum(),
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
    """The nodes that accumulate a gradient before an update: ``lane``, ``start_ns``, ``end_ns``, whether it
    ``adds`` to one, its ``step`` and ``update``, and the number of the backward ``pass``."""
    host = view.trace.host_events
    of_sum = view.around(GRADIENT).filter(matching(host, "name", SUM))
    found = view.inside(view.host(GRADIENT)).select(
        "lane", "start_ns", END, adds=pl.col("id").is_in(of_sum.implode())
    )
    each = passes(view.trace).select("lane", began_ns="start_ns").with_row_index("pass").sort("began_ns")
    bounds = rounds.select(*STEP, start_ns="since_ns", end_ns="start_ns")
    return (
        intervals.beginning_in(found, bounds)
        .join_asof(each, left_on="start_ns", right_on="began_ns", by="lane", check_sortedness=False)
        .drop_nulls("pass")
    )


def _counted(rounds: pl.DataFrame, gradients: pl.DataFrame, had: pl.DataFrame) -> pl.DataFrame:
    """The updates with backward passes of their own: ``step``, ``update``, the number of ``passes``, and how
    many gradients each of them has that are not the optimizer's (``others``)."""
    counts = gradients.group_by(STEP).agg(gradients=pl.len(), passes=pl.n_unique("pass"))
    found = rounds.select(STEP).join(counts, on=STEP, how="left").join(had, on="update").sort(STEP)
    # An update without a backward pass uses gradients of the one before, which may be the last step's.
    of = pl.when(pl.col("passes") > 0).then("update")
    of = pl.coalesce(of.forward_fill().over("step"), of.max().over("step"))
    found = found.with_columns(of=of).drop_nulls("of").group_by("step", update="of", maintain_order=True)
    found = found.agg(pl.sum("gradients", "had"), pl.max("passes"))
    return found.with_columns(others=pl.col("gradients") // pl.col("passes") - pl.col("had"))


def _kept(gradients: pl.DataFrame) -> bool:
    """Whether of each pass the last ones that are not the optimizer's, and no others, add to a gradient: an
    optimizer clears only those of its own weights."""
    own = gradients.drop_nulls("others").sort("start_ns")
    last = pl.int_range(pl.len()).over("pass") >= pl.len().over("pass") - pl.col("others")
    return own.select((pl.col("adds") == last).all()).item()


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


def _all(view: RankView, nodes: pl.DataFrame) -> pl.DataFrame:
    """The device work of these ``node``s; of all the ``share``, and of the node's own time (``called``), is
    1."""
    node = view.inside_of(nodes["id"]).gather(view.computed["launch"])
    return view.computed.with_columns(node=node, share=1.0, called=1.0).drop_nulls("node")


def _products(view: RankView, nodes: pl.DataFrame) -> pl.DataFrame:
    """The device work of these nodes of which a part is gone with the gradients: their ``node``, the
    ``share`` of it that is gone, and that of the node's own time (``called``): half of products and of what
    batch norms sum up for weights alone, unless names say more; all of what adds to a gradient, and of what
    forms it."""
    work = _all(view, nodes)
    forms = matching(nodes, "name", FORMS)
    adds = pl.when(~forms).then(matching(nodes, "name", ADDS)).backward_fill().over("lane")
    work = work.join(nodes.select(node="id", adds=adds), on="node", maintain_order="left").with_columns(
        product=matching(work, "category", PRODUCTS),
        weights=matching(work, "name", f"wgrad|{SUMS}"),
        bias=matching(work, "category", "^reduction$"),
        input=matching(work, "name", f"dgrad|{USES_SUMS}"),
    )
    product, weights, input = (pl.col(one).any().over("node") for one in ("product", "weights", "input"))
    called = pl.when("adds").then(1.0).when(product | (weights & ~input)).then(OF_WEIGHTS)
    # Of two products of which one is named, the other one is what it is not.
    other = pl.when(product | pl.col("adds")).then(called).otherwise(0.0)
    other = pl.when(pl.col("product") & (weights != input)).then(input.cast(pl.Float64)).otherwise(other)
    share = pl.when(pl.col("weights") | (product & pl.col("bias"))).then(1.0)
    share = share.when("input").then(0.0).otherwise(other)
    return work.with_columns(called=called, share=share).drop_nulls("called")


def _saving(
    view: RankView,
    nodes: pl.DataFrame,
    work: pl.DataFrame,
    basis: str = "products and sums for weights, and the additions",
) -> Saving:
    shares = work.group_by("node").agg(share=pl.first("called"))
    # The engine takes time between nodes, too.
    end, after = pl.col("start_ns") + pl.col("duration_ns"), pl.col("start_ns").shift(-1).over("lane")
    until = pl.when(after < pl.col("last_ns")).then(pl.max_horizontal(after, end)).otherwise(end)
    calls = nodes.with_columns(duration_ns=until - pl.col("start_ns"))
    calls = calls.join(shares, left_on="id", right_on="node", how="inner", maintain_order="left")
    saved = pl.col("duration_ns") * pl.col("share")
    return savings.device(view, work, f"{basis}, and their launches", saved, savings.called(view, calls))
