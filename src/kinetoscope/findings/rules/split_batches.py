"""A net runs several times per step on batches that could be one.

What it finds
    Gradients that are accumulated over batches which would fit into memory as one; calls of one net in a row
    or in statements of one block, such as both passes of a guided diffusion model or both views of a
    contrastive loss; gradients of one graph that are taken again and again, for each of several losses or
    each row of a Jacobian; and inputs that are evaluated one at a time, each of a size of its own.

Why it is slow
    Each pass launches every kernel again, casts every weight again, and adds to every gradient; a kernel
    with few blocks takes as long for one batch as for several.

How it decides
    Accumulated batches: backward passes of the same nodes before one optimizer step, which uses the gradients
    of all (else it is ``discarded-gradients``). As many become one as memory allows, taken to grow with the
    batch; where the peak is not known, that they fit is the condition. Calls in a row: each launches the
    module's kernels and little else. No trace shows whether one needs another's result: that it does not is
    the condition. Calls in statements: the program's source shows that none does.

    Of kernels that become one the longest one's time remains; where their blocks fill the device, all of it,
    less 3 µs for each. Half of the products of a backward pass are of weights, and add up in any case.
    Additions to gradients, the host's time and waits are saved in all passes but the first. Of gradients of
    one graph the same holds, for nodes that run five times or more in a step; of losses that add to the same
    gradients only the last pass remains, and where each loss may train a network of its own, that it does is
    the condition.

    Inputs one at a time: calls of a module in a program that does not train, that keep the device busy for
    less than half of their time, copy inputs of different sizes to it and read back at most four bytes, but
    not of several rows with padding in them. The host's time for seven of eight inputs is saved.

What to do
    A larger batch and fewer steps of accumulation: the gradient stays the same, but for the statistics of
    batch norms. Where the loss is a mean over unlike numbers of tokens, mind the weights. Of calls in a row
    one: ``model(torch.cat([x, y])).chunk(2)``. Of gradients of one graph one batched pass
    (``is_grads_batched=True``, ``torch.func.jacrev``, ``vmap``). Of inputs one at a time batches of like
    length, padded.

Source
    Hugging Face, "Methods and tools for efficient training on a single GPU"; diffusers, which runs both
    passes of classifier-free guidance as one batch.
"""

from kinetoscope.analysis.events.backward import passes
from kinetoscope.analysis.events.rows import END
from kinetoscope.analysis.events.torch_names import AUTOGRAD_NODE, GRADIENT, OPTIMIZER, SYNCHRONIZATION
from kinetoscope.analysis.kernels.occupancy import filled
from kinetoscope.findings.in_force import trains
from kinetoscope.findings.rule import *
from kinetoscope.findings.rules.discarded_gradients import SUM, cleared
from kinetoscope.findings.rules.looped_ops import called_apart
from kinetoscope.trace.model import with_arguments

SIMILAR = 0.1  # by which the numbers of kernels of passes may differ: else another net runs between them
FEW = 0.05  # of a call's kernels: a library may choose another kernel for another layout
LITTLE = 0.25  # of a call's kernels: what a sampler or a metric adds to the last call of a row
OF_ONE_GRAPH = 0.5  # of all nodes: with more that run again, no batches of their own are accumulated
AGAIN = 5  # passes over one graph: a penalty of gradients, or several losses, take fewer
BETWEEN = 4  # kernels between two losses' backward passes: a loss's own, and the gradient that it begins with
IN_A_ROW = 4  # calls: more are a recurrence, whose calls need each other's results
OF_WEIGHTS = 0.5  # of a backward pass's products
# Of all but one of the passes of losses that each train one of as many networks: the half that is of weights,
# and of the other half, which leads to a loss's own network, half at the mean.
OF_OTHERS = OF_WEIGHTS + (1 - OF_WEIGHTS) / 2
PRODUCTS = ["matmul", "convolution"]
OTHERS = "^(optimizer|communication)$"
PIPELINE = r"(?i)send_?recv"
JOINT = 8  # inputs in a batch, of those that are evaluated one at a time
IDLE = 0.5  # of the step: with less there is little to gain by batches
A_NUMBER = 4  # bytes of a result from which no next input can be made


def find(view: RankView) -> Findings:
    if len(view.kernels(PIPELINE)):
        return
    nodes = _nodes(view)
    again = nodes.filter(pl.col("passes") > 1)
    losses = list(_losses(view, again))
    if view.on_cpu:  # what ops of a batch take there is not what they launch
        yield from losses
        return
    yield from losses or _one_graph(view, again.filter(pl.col("passes") >= AGAIN))
    yield from _apart(view)
    if trains(view):
        own = (nodes["passes"] > 1).sum() <= OF_ONE_GRAPH * len(nodes)
        yield from _accumulated(view) if own and len(passes(view.trace)) > view.steps else ()
    elif view.record is not None and view.record.steps.found_by == "module":
        yield from _in_a_row(view)
        yield from _one_at_a_time(view)


def _accumulated(view: RankView) -> Findings:
    work, memory = _passes(view), view.peak_and_room
    each = work.group_by("pass", maintain_order=True).agg(
        pl.first("lane", "shape", "began_ns"), pl.last("over_ns"), kernels=(~pl.col("adds")).sum()
    )
    each = each.with_columns(group=pl.struct("over_ns", "lane", "shape").rank("dense"))
    each = each.join(cleared(view), on=["lane", "began_ns"], how="anti", maintain_order="left")
    usual = pl.col("kernels").median().over("group")
    each = each.filter((pl.col("kernels") - usual).abs() <= SIMILAR * usual)
    each = each.with_columns(number=pl.int_range(pl.len()).over("group"), passes=pl.len().over("group"))
    most = whole(each.filter(pl.col("passes") > 1)["passes"].max())
    joint = most if memory is None else min(most, memory[1] // memory[0])
    if joint < 2:
        return
    number, place = pl.col("number") // joint, pl.col("number") % joint
    each = each.with_columns(joint=pl.struct("group", number=number).rank("dense"), later=place > 0)
    work = work.join(each.select("pass", "joint", "later"), on="pass", maintain_order="left")
    saving = _saving(view, work)
    if memory is None:
        saving = savings.if_so(saving, "the larger batch fits into the device's memory")
    yield Finding(
        subject="accumulated",
        title=f"Gradients of {most} batches are accumulated for an optimizer step"
        + ("" if memory is None else f", and memory has room for {joint} at once"),
        saving=saving,
        evidence=[evidence.of(view, f"{most} passes forward and backward", work)],
        advice="Make the batches larger and accumulate fewer: the gradients stay the same, but for the "
        "statistics of batch norms.",
        at_least="info",
        source=evidence.source(view, work["op"]),
    )


def _in_a_row(view: RankView) -> Findings:
    work = _launched(view).with_columns(backward=False, adds=False)
    steps = work.group_by("step").agg(kernels=pl.len()).sort("step")
    short = whole(steps["kernels"].min())
    alone = steps["kernels"] == short
    row = (~alone).cast(pl.Int32).cum_sum().shift(1, fill_value=0)
    steps = steps.with_columns(
        joint=row, later=pl.int_range(pl.len()).over(row) > 0, calls=pl.len().over(row)
    )
    rows = steps.filter(pl.col("kernels").last().over("joint") > short)
    most = whole(rows["calls"].max())
    if not 2 <= most <= IN_A_ROW or whole(rows["kernels"].max()) > (1 + LITTLE) * short:
        return
    work = work.join(rows.select("step", "joint", "later"), on="step", maintain_order="left")
    work = work.with_columns(pl.col("step").alias("pass")).drop_nulls("joint")
    if not _same(work, short) or _works_in_between(view, work):
        return
    yield Finding(
        subject="in a row",
        title=f"{most} calls of the module in a row launch the same {short} kernels, and nothing in between",
        saving=savings.if_so(_saving(view, work), "no call needs another's result"),
        evidence=[evidence.of(view, f"{most} calls", work)],
        advice="If neither call needs the other's result, make it one call on both inputs.",
        snippet="first, second = model(torch.cat([x, y])).chunk(2)",
        at_least="info",
        source=evidence.source(view, work["op"]),
    )


def _apart(view: RankView) -> Findings:
    for one in called_apart(view):
        calls, module = len(one.loops), one.loops["module"][0]
        kernels = round(view.per_step(int((one.work["kind"] == "kernel").sum())) / calls)
        yield Finding(
            subject=one.line,
            title=f"{module} is called {calls} times per {view.unit}, with {kernels:,} kernels each time, "
            "and no call needs another's result",
            affected_us=view.us_of(one.work),
            saving=one.saving,
            evidence=[evidence.of(view, f"{calls} calls", one.work)],
            advice=f"Call {module} once, on all inputs together, and take its result apart; batch norms then "
            "see all of them.",
            snippet="first, second = model(torch.cat([x, y])).chunk(2)",
            source=one.line,
        )


def _nodes(view: RankView) -> pl.DataFrame:
    """The nodes of autograd that have a forward op: which are one node (``joint``) that runs so often in a
    step (``passes``), and the how many-th time (``pass``)."""
    nodes = view.inside(view.host(AUTOGRAD_NODE)).sort("start_ns")
    nodes = nodes.filter((pl.col("sequence") >= 0) & ~matching(nodes, "name", r"AccumulateGrad$"))
    nodes = with_arguments(nodes, view.trace.host_arguments, "forward_thread")
    steps = view.trace.steps.select(began_ns="start_ns", step="id").sort("began_ns")
    nodes = nodes.join_asof(steps, left_on="start_ns", right_on="began_ns", check_sortedness=False)
    # Each thread numbers the ops that it runs.
    nodes = nodes.with_columns(joint=pl.struct("step", "name", "sequence", "forward_thread").rank("dense"))
    place = pl.int_range(pl.len()).over("joint").alias("pass")
    return nodes.with_columns(place, passes=pl.len().over("joint"))


def _within(events: pl.DataFrame, bounds: pl.DataFrame, at: str = "start_ns") -> pl.DataFrame:
    events = events.sort(at).join_asof(bounds, left_on=at, right_on="began_ns", check_sortedness=False)
    return events.filter(pl.col(at) < pl.col("last_ns"))


def _losses(view: RankView, nodes: pl.DataFrame) -> Findings:
    """The finding on ``nodes`` that run again for each of several losses, which add to the same gradients."""
    begins = nodes.group_by("step").agg(began_ns=pl.min("start_ns"))
    ends = nodes.filter(pl.col("pass") == pl.col("passes") - 1).group_by("step")
    bounds = begins.join(ends.agg(last_ns=pl.min("start_ns")), on="step").sort("began_ns")
    adds = _within(view.inside(view.host(AUTOGRAD_NODE + ".*AccumulateGrad$")), bounds)
    updates = _within(view.inside(view.host(OPTIMIZER)), bounds)
    if len(updates) or adds["step"].n_unique() < view.steps:
        return
    times = whole(nodes["passes"].median())
    gone = nodes.filter(pl.col("pass") < pl.col("passes") - 1)
    called = pl.concat([one.select("id", "lane", "start_ns", "duration_ns") for one in (gone, adds)])
    launched = _launched(view)
    work = launched.filter(view.inside_of(called["id"]).gather(launched["launch"]).is_not_null())
    sums = matching(view.trace.host_events, "name", SUM) & view.around(GRADIENT).is_not_null()
    summed = view.inside(view.trace.host_events.filter(sums))
    gradients = view.inside(view.host(GRADIENT))
    anew = len(summed) < OF_ONE_GRAPH * len(gradients) * (times - 1) / times
    basis, share = "all but the last of these passes, and their launches", 1.0
    if anew:
        basis, share = "gradients of other networks, and what lies behind a loss's own", OF_OTHERS
    saved = share * pl.col("duration_ns")
    saving = savings.device(view, work, basis, saved, savings.called(view, called, share))
    if saving.share < MEDIUM:
        return
    # Who reads the gradients of one loss, to weigh or project them, does so for each parameter.
    in_nodes = view.around(AUTOGRAD_NODE).gather(launched["launch"])
    between = _within(launched.filter(in_nodes.is_null()), bounds, "at_ns")
    is_read = len(between) > BETWEEN * (times - 1) * view.steps
    if is_read and anew:
        return
    if is_read or anew:
        own = "each loss trains a network of its own" if anew else "no loss's own gradients are read"
        saving = savings.if_so(saving, own)
    yield Finding(
        subject="losses",
        title=f"{times} losses of one graph each go backward through it: "
        f"{view.per_step(len(gone)):,.0f} nodes per {view.unit} run again",
        affected_us=view.us_of(work),
        saving=saving,
        evidence=[evidence.of(view, f"{len(work)} kernels of nodes that run again", work)],
        advice="If each loss trains a network of its own, go backward to its weights alone: gradients of the "
        "others' are thrown away."
        if anew
        else "Add the losses up and go backward once: the gradients are the same.",
        snippet="loss.backward(inputs=[*network.parameters()], retain_graph=True)"
        if anew
        else "sum(losses).backward()  # in place of loss.backward(retain_graph=True) for each",
        source=evidence.source(view, gone["id"]),
    )


def _one_graph(view: RankView, nodes: pl.DataFrame) -> Findings:
    """The finding on ``nodes`` that run again, but for their last pass, which may be the loss's own."""
    if nodes.is_empty():
        return
    times = whole(nodes["passes"].median()) - 1
    nodes = nodes.filter(pl.col("pass") < pl.col("passes") - 1)
    work = _launched(view)
    work = work.with_columns(node=view.inside_of(nodes["id"]).gather(work["launch"])).drop_nulls("node")
    work = work.join(
        nodes.select("joint", "pass", node="id"), on="node", how="inner", maintain_order="left"
    ).with_columns(later=pl.col("pass") > 0, backward=False, adds=False)
    if work.is_empty():
        return
    called = nodes.filter(pl.col("pass") > 0)
    basis = "kernels that become one, and the launches of all passes but the first"
    work = _shorter(view, work, "joint", "pass")
    saving = savings.device(view, work, basis, more=savings.called(view, called))
    if saving.share < MEDIUM:
        return
    yield Finding(
        subject="one graph",
        title=f"Gradients of one graph are taken {times} times, node by node: "
        f"{view.per_step(len(called)):,.0f} nodes per {view.unit} run again",
        saving=saving,
        evidence=[evidence.of(view, f"{len(work)} kernels of nodes that run again", work)],
        advice="Take the gradients for all rows in one batched pass; or, of a trace, an estimate by one pass "
        "with random signs (Hutchinson).",
        snippet="units = torch.eye(n, device=y.device)[:, None].expand(-1, len(y), -1)\n"
        "(rows,) = torch.autograd.grad(y, x, units, create_graph=True, is_grads_batched=True)",
        source=evidence.source(view, called["id"]),
    )


def _one_at_a_time(view: RankView) -> Findings:
    copies = view.work.filter(view.work["kind"] == "memcpy")
    copied = {way: copies.filter(matching(copies, "name", way)).group_by("step") for way in ("HtoD", "DtoH")}
    sizes, read = (copied[way].agg(pl.sum("bytes"))["bytes"] for way in ("HtoD", "DtoH"))
    seen = view.record.steps.padding if view.record else None
    is_batch = seen is not None and seen.rows > 1
    independent = len(sizes) == view.steps and sizes.n_unique() > 1 and whole(read.max()) <= A_NUMBER
    memory = view.peak_and_room
    joint = JOINT if memory is None else min(JOINT, memory[1] // memory[0])
    if is_batch or not independent or joint < 2 or view.busy_share > IDLE or view.replay.waits_for_batches:
        return
    work = _launched(view).with_columns(pl.col("step").alias("pass"), later=True)
    change = _on_the_host(view, work, 1 - 1 / joint)
    yield Finding(
        subject="one at a time",
        title=f"Inputs of different sizes are evaluated one at a time, and the device is busy "
        f"{view.busy_share:.0%} of the step",
        saving=savings.of(view, change, f"the host's time for {joint - 1} of {joint} inputs in a batch"),
        evidence=[evidence.of(view, "all kernels", work)],
        advice=f"Evaluate {joint} inputs or more at a time, sorted by length and padded: the host then "
        "launches everything once for all of them.",
        snippet="inputs = torch.nn.utils.rnn.pad_sequence(documents, batch_first=True)",
        source=evidence.source(view, view.work["op"]),
    )


def _same(work: pl.DataFrame, short: int) -> bool:
    """Whether all calls of a row begin with the same kernels on grids of the same size, but for a few: what
    else the last one launches comes after the module. Of two tokens that a server decodes, it does not."""
    begin = work.filter(pl.int_range(pl.len()).over("pass") < short)
    names = begin.group_by("joint", "pass", "name", "grid").len()
    calls = pl.col("pass").n_unique() == begin.group_by("joint").agg(pl.n_unique("pass"))["pass"].max()
    fewest = names.group_by("joint", "name", "grid").agg(pl.min("len"), calls=calls).filter("calls")
    return whole(fewest.group_by("joint").agg(pl.sum("len"))["len"].min()) >= (1 - FEW) * short


def _works_in_between(view: RankView, work: pl.DataFrame) -> bool:
    """Whether the caller computes something between two calls of a row, by the lines of a step: the next call
    is then of what comes of the one before, as in a sampler's loop."""
    if view.lines is None:
        return False
    by_caller = view.lines.rows["modules"].gather(work["op"]).is_null()
    between = work.with_columns(by_caller=by_caller).filter(
        pl.col("step") < pl.col("step").max().over("joint")
    )
    return bool(between["by_caller"].any() and not between["by_caller"].all())


def _saving(view: RankView, work: pl.DataFrame) -> Saving:
    basis, called = "kernels that become one, and their launches", _on_the_host(view, work)
    return savings.device(view, _shorter(view, work), basis, more=called)


def _passes(view: RankView) -> pl.DataFrame:
    """The kernels of forward and backward passes, with the number of their ``pass``, its ``lane`` and
    ``shape``, whether they are of the ``backward`` one, whether they add to a gradient (``adds``), and when
    the optimizer was ``over_ns`` before."""
    each = passes(view.trace).select("lane", "shape", "end_ns", began_ns="start_ns").sort("end_ns")
    each = each.with_row_index("pass")
    updates = view.host(OPTIMIZER).select(over_ns=pl.col("start_ns") + pl.col("duration_ns")).sort("over_ns")
    work = _launched(view)
    work = work.with_columns(adds=view.around(GRADIENT).gather(work["launch"]).is_not_null())
    work = work.filter(~matching(work, "category", OTHERS))
    work = work.join_asof(
        each, left_on="at_ns", right_on="end_ns", strategy="forward", check_sortedness=False
    ).join_asof(updates, left_on="at_ns", right_on="over_ns", check_sortedness=False)
    return work.drop_nulls("pass").with_columns(backward=pl.col("at_ns") >= pl.col("began_ns"))


def _launched(view: RankView) -> pl.DataFrame:
    """The kernels in the order in which they were launched: ``at_ns``, on the ``thread``."""
    host = view.trace.host_events
    work = view.computed.filter(view.computed["kind"] == "kernel").drop_nulls("launch")
    calls = host.select(at_ns="start_ns", thread="lane")[work["launch"]]
    return work.hstack(calls).sort("at_ns")


def _shorter(view: RankView, work: pl.DataFrame, *within: str) -> pl.DataFrame:
    """The kernels with ``saved_ns``: those that are the same in the passes that become one take as long as
    the longest, or as all of them where they fill the device. They are the same by their place in a pass, or
    in what the columns ``within`` distinguish."""
    assert view.device is not None
    work = filled(work, view.device)
    of_one = within or ("pass", "backward")
    work = work.with_columns(place=pl.int_range(pl.len()).over(*of_one, "name"))
    same, took = ("joint", "backward", "name", "place"), pl.col("duration_ns")
    longest = took.max().over(same)
    grows = (took - FIXED_NS).clip(0)
    needs = pl.max_horizontal(longest, FIXED_NS + (grows * pl.col("filled")).sum().over(same))
    product = pl.col("category").cast(pl.String).is_in(PRODUCTS) & pl.col("backward")
    adding = pl.max_horizontal(longest, FIXED_NS + grows.sum().over(same))
    needs = pl.when(product).then(needs + OF_WEIGHTS * (adding - needs)).otherwise(needs)
    # Whole kernels go, with their launches: the first stay until they make up what the one needs.
    left = (needs - took.cum_sum().over(same) + took).clip(0, took)
    return work.with_columns(saved_ns=pl.when("adds").then(pl.col("later") * took).otherwise(took - left))


def _on_the_host(view: RankView, work: pl.DataFrame, share: float = 1.0) -> ReplayChange:
    """The ``share`` of the host's part in passes that are gone, first launch to last, and waits in them."""
    until = pl.max("at_ns") - pl.min("at_ns")
    gone = work.filter("later").group_by("pass", lane="thread").agg(pl.min("at_ns"), duration_ns=until)
    gone = gone.select("lane", "duration_ns", start_ns="at_ns").filter(pl.col("duration_ns") > 0)
    calls = view.inside(view.host(SYNCHRONIZATION)).select("id", "lane", "start_ns")
    within = intervals.beginning_in(calls, gone.select("lane", "start_ns", END), ["lane"])
    return without_host(gone, share) | no_wait(within["id"])
