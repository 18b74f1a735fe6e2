"""Each step computes what may be the same in every epoch, or several times in the step.

What it finds
    Forward passes in a step of training whose results get no gradient: a frozen teacher, an encoder of
    texts or images, features for a loss. Modules that every step, of training or not, calls with the same:
    an encoder of the classes' names; of modules that are trained what they do before their first weight:
    features that are spread over a graph. What is made on the host and copied to the device anew in each
    step, of the same: documents that are padded, tables. Vectors that are normalized anew in each step, such
    as those of a corpus for each question. Matrices of one shape that are factored or inverted several times
    in a step, without gradients. Models that a step calls twice with the same, such as once for the loss and
    once for the accuracy; models that are loaded anew for each request.

Why it is slow
    The output of such a net depends on its input alone. If the same samples come again in each epoch, not
    augmented, it computes the same output again.

How it decides
    Frozen nets: at least ten matrix products or convolutions per step, and a tenth of the device's work,
    outside of backward passes, checkpointing and the optimizer, for which autograd records nothing that a
    backward pass follows. Left out are nets whose kernels also run with gradients, averages of the trained
    net, passes whose answer the host reads before the next one, and programs that act before they train or
    write texts: their inputs are new. Whether inputs come again no trace shows: what is said to be saved is
    saved if they do.

    Unchanged calls: by the program's source no line of the step binds, writes into or hands out for its
    effect what the call gets. The same is asked of lines that copy to the device what torch, NumPy or
    functions of the program make on the host, and of calls of ``normalize`` without training. Of such
    lines all goes: their ops, copies and waits, and the time that Python takes in them between two ops.
    Modules that draw random numbers or write attributes are left out; of those that learn only what they
    do before their first weight counts. That no other thread or library writes is the condition.

    Factorizations of one matrix of one shape, outside of optimizers and without gradients: all but one in
    each step, if it is the same matrix.

    Calls again: in the step whose lines are noted, a model got the same objects, or views of them, and by
    torch's count of versions nothing had written into these or its weights since (in inference mode,
    which has none: by the step's ops). The call without gradients goes, or where both have some the
    second, with its part of the backward pass; where they draw random numbers, and both train or none,
    what comes before these.

    Models loaded anew: without training, twenty tensors or more of eight sizes or more are copied from
    ordinary memory, as many of each size in each step that copies any. All that the host does on that thread
    goes, from its first op after the kernels before them until the last of these copies.

What to do
    Compute the answers once before the loop (or in the first epoch), keep them with their samples, and take
    them from there; what a module does before its first weight it may keep itself (``cached=True`` of
    PyTorch Geometric's ``SGConv`` and ``GCNConv``). Inputs that are augmented, cropped or masked anew each
    time have no such answers. What a model gave once in a step serves twice: ``outputs.detach()``.

Source
    Diffusion trainers that precompute latents and text embeddings (huggingface/diffusers, examples).
"""

import re
from collections import defaultdict

from kinetoscope.analysis.events.backward import in_backward, in_update, without_gradients
from kinetoscope.analysis.events.rows import END, constant
from kinetoscope.analysis.events.torch_names import AUTOGRAD_NODE
from kinetoscope.analysis.origins.lines import WITHIN
from kinetoscope.analysis.origins.same_calls import same_calls
from kinetoscope.analysis.origins.unchanged import unchanged_calls, unchanged_lines, unchanged_normalizations
from kinetoscope.findings.program_lines import VERIFIED
from kinetoscope.findings.rule import *
from kinetoscope.findings.rules.made_on_host import waits_of_copies
from kinetoscope.findings.rules.no_kv_cache import growing_passes
from kinetoscope.findings.rules.pageable_copy import freeing, travelling
from kinetoscope.trace.model import with_arguments

PRODUCTS = "^(attention|convolution|matmul)$"
FACTORS = r"^aten::(linalg_)?(cholesky(_ex)?|lu_factor(_ex)?|qr|eigh|_linalg_eigh|svd|inv(_ex)?|inverse)$"
KEPT = "factor = torch.linalg.cholesky(matrix)  # once; then torch.cholesky_solve(b, factor)"
ONE_MATRIX = r"^\[\[\d+, ?\d+\]"  # as the first argument: of a stack each is another
AGAIN = 4  # times in a step: fewer are a line search's
MANY = 10  # products per step: fewer are a metric's
WORTH = 0.1  # of the device's work
SAME = 0.5  # of the products' kernels, from which on their net is taken for the trained one
RANDOM = r"^aten::(native_dropout|bernoulli|rand|normal|uniform|multinomial|exponential|_fused_dropout)"
NEW = rf"{RANDOM}|^aten::detach$"  # ops of which what follows may be new, or come of weights
CONSTANT = r"^aten::(arange|empty|eye|full|linspace|ones|zeros)(_like)?$"  # these have no number of a node
COPIED = r"^Memcpy HtoD"
WEIGHTS, SIZES = 20, 8  # tensors per step and sizes among them, from which on they are a model's
NORMALIZES = r"aten::(linalg_vector_)?norm aten::clamp_min aten::expand_as aten::div\b"  # four ops
AVERAGES = r"^aten::(_foreach_)?lerp_?$"


def find(view: RankView) -> Findings:
    yield from _factored(view)
    yield from _frozen(view)
    yield from _unchanged(view)
    yield from _called_twice(view)
    yield from _copied(view)
    yield from _loaded(view)
    yield from _normalized(view)


def _factored(view: RankView) -> Findings:
    host = view.trace.host_events
    calls = host.with_columns(END).filter(matching(host, "name", FACTORS) & without_gradients(view.trace))
    if calls.is_empty():
        return
    calls = with_arguments(view.inside(calls), view.trace.host_arguments, "input_dims")
    calls = calls.filter(
        ~in_update(view.trace).gather(calls["id"]), matching(calls, "input_dims", ONE_MATRIX)
    )
    calls = intervals.outermost(calls, ["lane"])
    for (name, dims), same in calls.group_by("name", "input_dims", maintain_order=True):
        times = view.per_step(len(same))
        if times < AGAIN:
            continue
        work = view.launched_during(same)
        gone = 1 - 1 / times
        basis = f"all but one of {times:,.0f} factorizations, with their calls and waits"
        called = savings.called(view, same, gone)
        saving = savings.device(view, work, basis, gone * pl.col("duration_ns"), called)
        if saving.share < MEDIUM:
            continue
        rows, columns = re.findall(r"\d+", str(dims))[:2]
        yield Finding(
            subject=f"{name} {dims}",
            title=f"{name} factors a matrix of {rows} × {columns} {times:,.0f} times per {view.unit}, "
            "without gradients",
            affected_us=view.us_of(work),
            saving=savings.if_so(saving, "it is the same matrix each time"),
            at_least="info",
            evidence=[evidence.of(view, f"{len(same)} calls", same)],
            advice="If it is the same matrix, factor it once and keep the factor, which solves for any "
            "number of right-hand sides; if they differ, factor them in one call, stacked.",
            snippet=KEPT if "cholesky" in str(name) else None,
            source=evidence.source(view, same["id"]),
        )


def _frozen(view: RankView) -> Findings:
    host = view.trace.host_events
    kind = view.record.steps.found_by if view.record else None
    in_optimizer = in_update(view.trace)
    if kind == "iteration" or not in_optimizer.any() or growing_passes(view) is not None:
        return
    if view.trace.steps.is_empty():  # the backward pass may come after what was recorded
        return
    work = view.work.drop_nulls("launch")
    alone = without_gradients(view.trace) & ~in_optimizer & ~_among_trained(view)
    is_product = matching(work, "category", PRODUCTS)
    work = work.with_columns(acts=_acts(view, work, alone))
    mine = alone[work["launch"]] & ~work["acts"]
    products = work.filter(mine & is_product)
    ops = products["op"].n_unique()
    if ops < MANY * view.steps or (matching(host, "name", AVERAGES) & alone).any():
        return
    trained = work.filter(~alone[work["launch"]] & is_product)
    same = products.join(trained, on=["name", "grid"], how="semi")
    adapters = trained.filter(~in_backward(view.trace).gather(trained["launch"]))
    adapters = adapters.join(products, on=["name", "grid"], how="anti")
    if len(same) > SAME * len(products) and adapters["op"].n_unique() < MANY * view.steps:
        return
    if view.us_of(products) < WORTH * view.busy_us:
        return
    launches = host.select("lane", "start_ns")[work["launch"]].hstack([work["acts"]]).sort("start_ns")
    called = view.called.filter(alone.gather(view.called["id"])).sort("start_ns")
    called = called.join_asof(launches, on="start_ns", by="lane", strategy="forward", check_sortedness=False)
    passes, called = work.filter(mine), called.filter(~pl.col("acts").fill_null(False))
    basis = "the forward pass and its calls"
    saving = savings.device(view, passes, basis, "duration_ns", savings.called(view, called))
    yield Finding(
        title=f"A forward pass of {view.per_step(ops):,.0f} products gets no gradient in each {view.unit}",
        affected_us=view.us_of(passes),
        saving=savings.if_so(saving, "the same inputs come again in every epoch"),
        at_least="info",
        after="no-tensor-cores",  # which asks nothing of the program's data
        evidence=[evidence.of(view, "what it launches", passes)],
        advice="If its inputs come again in every epoch (not augmented, cropped or masked anew), compute its "
        "answers once before the loop, and keep them with the samples.",
        snippet="with torch.no_grad():\n    kept = torch.cat([teacher(part) for part in data.split(256)])",
        source=evidence.source(view, products["op"]),
    )


def _among_trained(view: RankView) -> pl.Series:
    """By row of ``host_events`` whether an op is called by a module between others that get a gradient, as a
    codebook's search for the nearest code: it takes what is trained, and is no net of its own."""
    host = view.trace.host_events
    if view.lines is None:
        return constant(False, len(host), pl.Boolean)
    trained = host["sequence"].is_not_null() & ~without_gradients(view.trace)
    ops = host.select("id", "lane", "start_ns", view.lines.rows["modules"], trained=trained)
    ops = ops.drop_nulls("modules").sort("lane", "start_ns")
    call = (pl.struct("lane", "modules") != pl.struct("lane", "modules").shift()).cum_sum().fill_null(0)
    among = ops.with_columns(call=call).filter(pl.col("trained").any().over("call"))["id"]
    return host["id"].is_in(among.implode())


def _acts(view: RankView, work: pl.DataFrame, alone: pl.Series) -> pl.Series:
    """By row of ``work`` (``launch``) whether it belongs to a pass ``alone`` whose answer the host reads
    before another forward pass: it acts, or answers requests, and what it gets is new each time."""
    products = work.filter(matching(work, "category", PRODUCTS)).sort("start_ns")
    reads = work.filter(matching(work, "name", "^Memcpy DtoH"))["start_ns"].sort()
    forward = ~in_backward(view.trace).gather(products["launch"])
    before = pl.Series(reads.search_sorted(products["start_ns"]))
    ends = products.select(
        "start_ns",
        alone=alone[products["launch"]],
        read=before.shift(-1, fill_value=len(reads)) > before,
        forward=forward.shift(-1, fill_value=True),
    )
    acts = pl.col("read") & pl.col("forward")
    ends = ends.filter(acts | ~pl.col("alone").shift(-1)).select("start_ns", acts=acts & pl.col("alone"))
    rows = work.select("start_ns").with_row_index().sort("start_ns")
    found = rows.join_asof(ends, on="start_ns", strategy="forward")
    return found.sort("index")["acts"].fill_null(False)


def _unchanged(view: RankView) -> Findings:
    lines, calls = view.lines, unchanged_calls(view.run).get(view.rank)
    if lines is None or calls is None or calls.is_empty() or lines.verified < VERIFIED:
        return
    alone = without_gradients(view.trace)
    host = view.trace.host_events.select("id", "name", lines.rows["noted"], lines.rows["modules"])
    if trains(view) and (matching(host, "name", AVERAGES) & alone).any():
        return
    noted = view.run.lines[view.rank].host_events.select("lane", "start_ns", noted="id")
    calls = calls.with_row_index("call")
    inside = intervals.beginning_in(noted, calls, ["lane"]).select("noted", "call", "line", "module")
    learned = {
        name for path in host["modules"].filter(~alone).unique().drop_nulls() for name in path.split(WITHIN)
    }
    ops = host.join(inside, on="noted", maintain_order="left")
    learns = pl.col("module").is_in(learned)
    for (line,), own in ops.filter(~learns.any().over("line")).group_by("line", maintain_order=True):
        if matching(own, "name", RANDOM).any():
            continue
        longest = calls.filter(line=line).sort(pl.col("start_ns") - pl.col("end_ns"), maintain_order=True)
        yield _same_again(
            view,
            own,
            title=_called(view, longest["module"]),
            advice="Call it once before the loop, and keep what it gives until its inputs or weights change.",
            snippet="with torch.inference_mode():\n    features = encoder(prompts)  # once, before the loop",
        )
    for (module,), own in ops.filter(learns).group_by("module", maintain_order=True):
        own = _before_weights(view, own)
        if own.is_empty():
            continue
        yield _same_again(
            view,
            own,
            title=_called(view, calls.filter(module=module)["module"])
            + ": what it does before its first weight is the same each time",
            advice="Do what needs no weight once, before the loop or in the module's first call; keep it.",
            snippet="if self.kept is None:\n    self.kept = self.spread(x, edges)  # no weight is in it\n"
            "return self.linear(self.kept)",
        )


def _called_twice(view: RankView) -> Findings:
    lines, calls = view.lines, same_calls(view.run).get(view.rank)
    if lines is None or calls is None or calls.is_empty() or lines.verified < VERIFIED:
        return
    host = view.trace.host_events
    noted = view.run.lines[view.rank].host_events.select("lane", "start_ns", noted="id")
    inside = intervals.beginning_in(noted, calls, ["lane"]).select("noted", "call")
    ops = host.select("id", "name", "sequence", lines.rows["noted"], alone=without_gradients(view.trace))
    ops = ops.join(inside, on="noted", maintain_order="left")
    by_call = ops.group_by("call").agg(trains=~pl.col("alone").all())
    first = by_call.select(repeats="call", first_trains="trains")
    pairs = calls.drop_nulls("repeats").join(by_call, on="call").join(first, on="repeats").sort("call")
    # Of two samples what comes before the first random number is the same. All steps make the same calls.
    drawn = pl.col("name").cast(pl.String).str.contains(RANDOM).cum_max()
    ops = ops.with_columns(drawn=drawn.over(pl.col("call").rle_id()))
    others = host["sequence"].filter(~in_backward(view.trace) & ~host["id"].is_in(ops["id"].implode()))
    needless = pl.when(pl.col("trains") & ~pl.col("first_trains")).then("repeats").otherwise("call")
    for (line,), same in pairs.with_columns(needless=needless).group_by("line", maintain_order=True):
        called = ops.filter(pl.col("call").is_in(same["needless"].implode()))
        samples = called["drawn"].any() and same["trains"].equals(same["first_trains"])
        called = called.filter(~pl.col("drawn")) if samples else called
        if called.is_empty():
            continue
        # An op without a node has the number of the next one, which may be another call's.
        numbers_of_nodes = called.filter(~pl.col("alone")).group_by("call").agg("sequence")["sequence"]
        last = numbers_of_nodes.list.max()
        nodes = numbers_of_nodes.explode().drop_nulls()
        nodes = nodes.filter(~(nodes.is_in(last.implode()) & nodes.is_in(others.implode())))
        is_node = matching(host, "name", AUTOGRAD_NODE) & host["sequence"].is_in(nodes.implode())
        in_nodes = view.inside_of(host["id"].filter(is_node)).is_not_null()
        own = host.filter(pl.col("id").is_in(called["id"].implode()) | in_nodes)
        times, module = same["call"].n_unique() + same["repeats"].n_unique(), same["module"][0]
        places = "in both places" if times == 2 else "each time"
        finding = _same_again(
            view,
            own.select("id", line=pl.lit(line)),
            title=f"{module} is called {times:,} times per {view.unit} with the same inputs"
            + ", and computes the same each time until it first draws random numbers" * samples,
            advice="Compute once what comes before the random numbers, and only the rest for each sample."
            if samples
            else f"Call it once, and use what it gave {places}; detached where no gradient is wanted.",
            snippet="features = model.backbone(x)\nsamples = [model.head(features) for _ in range(20)]"
            if samples
            else "outputs = model(x)\nloss = loss_fn(outputs, y)\nhits = outputs.detach().argmax(1) == y",
        )
        yield replace(finding, saving=replace(finding.saving, condition=None))


def _copied(view: RankView) -> Findings:
    """Lines that make something on the host and copy it to the device in each step, of what none of it
    changes, with those that run for them alone; in training nothing else may come of them, as weights
    would."""
    lines = view.lines
    if lines is None or lines.verified < VERIFIED:
        return
    same = unchanged_lines(view.run).get(view.rank, {})
    host = view.trace.host_events.select("id", "name", lines.rows["line"], lines.rows["function"])
    own = host.filter(pl.col("line").is_in(list({one for within in same.values() for one in within})))
    found = defaultdict[str, set[str]](set)
    for line, within in sorted(same.items(), key=lambda item: -len(item[1])):
        ops = own.filter(pl.col("line").is_in(within))
        work = view.work.filter(pl.col("op").is_in(ops["id"].implode()))
        copies = work.filter(matching(work, "name", COPIED))
        may_learn = len(work) > len(copies) and trains(view)
        if copies.is_empty() or may_learn or matching(ops, "name", RANDOM).any():
            continue
        if not any(line in others for others in found.values()):
            found[str(own.filter(line=line)["function"].first())] |= set(within)
    for within in found.values():
        ops = own.filter(pl.col("line").is_in(list(within)))
        copies = view.work.filter(
            pl.col("op").is_in(ops["id"].implode()), matching(view.work, "name", COPIED)
        )
        size, memory = int(copies["bytes"].sum()) // view.steps, view.peak_and_room
        if memory is not None and size > memory[1] - memory[0]:
            continue
        yield _same_again(
            view,
            ops,
            title=f"Each {view.unit} makes {numbers.size(size)} on the host and copies it to the device, "
            f"though nothing in the {view.unit} changes what it is made of",
            advice="Make them and copy them once, before the first step, and keep them on the device.",
            snippet="kept = [pad_sequence(part).cuda() for part in parts]  # once, before the loop",
            meanwhile=_silences(view, within),
        )


def _silences(view: RankView, within: set[str]) -> pl.DataFrame:
    """The time between two ops of a thread that passed mostly in one of these lines."""
    calls = view.called.select("id", "lane", "start_ns", end_ns=END).sort("lane", "start_ns")
    before = view.lines.rows["before"].gather(calls["id"]) if view.lines else None
    ended = pl.col("end_ns").shift().over("lane")
    silent = calls.with_columns(before=before).select(
        "lane", "before", start_ns=ended, duration_ns=pl.col("start_ns") - ended
    )
    own = pl.col("before").str.split(" ").list.first().is_in(list(within))
    return silent.filter(own, pl.col("duration_ns") > 0)


def _loaded(view: RankView) -> Findings:
    """Weights of a model that a program without training copies to the device in each step."""
    copies = view.kernels(r"HtoD.*Pageable").drop_nulls("launch")
    copies = copies.filter(~pl.col("id").is_in(travelling(view)["id"].implode()))
    times = copies["step"].n_unique()  # a request may be several steps
    copies = copies.filter(pl.len().over("bytes") % times == 0, pl.n_unique("step").over("bytes") == times)
    if trains(view) or times < 2 or len(copies) < WEIGHTS * times or copies["bytes"].n_unique() < SIZES:
        return
    calls = view.trace.host_events.select("lane", "start_ns", END)
    sent = calls[copies["launch"]].with_columns(copies["step"]).group_by("step", "lane")
    sent = sent.agg(at_ns=pl.min("start_ns"), last_ns=pl.max("end_ns")).sort("at_ns")
    kernels = calls[view.work.filter(pl.col("kind") == "kernel")["launch"].drop_nulls()]
    kernels = kernels.select("lane", at_ns="start_ns", before_ns="end_ns").sort("at_ns")
    began = sent.join_asof(kernels, on="at_ns", by="lane", check_sortedness=False).fill_null(0)
    ops = view.called.select("lane", "start_ns", before_ns="start_ns").sort("before_ns")
    began = began.sort("before_ns").join_asof(
        ops, on="before_ns", by="lane", strategy="forward", check_sortedness=False
    )
    loading = began.select("lane", "start_ns", duration_ns=pl.col("last_ns") - pl.col("start_ns"))
    work = view.launched_during(loading)
    change = savings.called(view, loading) | no_wait(work["launch"])
    yield Finding(
        subject="loaded",
        title=f"{len(copies) // times:,} tensors, {numbers.size(int(copies['bytes'].sum()) // times)}, are "
        f"copied to the device {times} times in {view.steps} {view.unit}s: a model is loaded anew",
        affected_us=view.us_of(loading),
        saving=savings.device(view, work, "loading it, and its copies", "duration_ns", change),
        evidence=[evidence.of(view, "the largest copies", copies.sort("bytes", descending=True).head(8))],
        advice="Load the model once, when the program starts, and keep it on the device.",
        snippet="model = load_model().to(device).eval()  # once, outside of what answers requests",
        source=evidence.source(view, copies["op"]),
    )


def _normalized(view: RankView) -> Findings:
    """Calls of ``normalize`` that get the same in each step, in a program that does not train."""
    lines, by_line = view.lines, unchanged_normalizations(view.run).get(view.rank, {})
    if lines is None or lines.verified < VERIFIED or trains(view):
        return
    host = view.trace.host_events.select("id", "name", line=lines.rows["line"])
    called = view.called.select("id").join(host, on="id", maintain_order="left")
    for line, same in by_line.items():
        ops = called.filter(line=line)
        names = " ".join(ops["name"].cast(pl.String))
        calls = [ops["id"].slice(names.count(" ", 0, at.start()), 4) for at in re.finditer(NORMALIZES, names)]
        anew = [call for number, call in enumerate(calls) if same[number % len(same)]]
        if not anew or len(calls) % len(same) or len(calls) > view.steps * len(same):
            continue
        yield _same_again(
            view,
            host.filter(view.inside_of(pl.concat(anew)).is_not_null()).with_columns(line=pl.lit(line)),
            title=f"Each {view.unit} normalizes vectors again that nothing in it changes",
            advice="Normalize them once, before the first step, and keep them in the place of the others.",
            snippet="corpus = F.normalize(corpus, dim=1)  # once, when it is loaded",
        )


def _called(view: RankView, modules: pl.Series) -> str:
    times, step = numbers.times(int((modules == modules[0]).sum())), view.unit
    return f"{modules[0]} is called {times} per {step}, with inputs that nothing in the {step} changes"


def _same_again(
    view: RankView, ops: pl.DataFrame, *,
    title: str, advice: str, snippet: str, meanwhile: pl.DataFrame | None = None,
) -> Finding:  # fmt: skip
    line = str(ops["line"][0])
    work = view.computed.filter(pl.col("op").is_in(ops["id"].implode()))
    called = view.called.filter(pl.col("id").is_in(ops["id"].implode()))
    basis = "its calls and their work"
    sent = work.filter(matching(work, "name", COPIED))
    change = savings.called(view, called) | without_host(freeing(view, sent["launch"]))
    change |= no_wait(waits_of_copies(view, sent["launch"]))
    if meanwhile is not None:
        change |= without_host(meanwhile)
        basis = "what makes and copies it, on the host and on the device"
    saving = savings.device(view, work, basis, "duration_ns", change)
    return Finding(
        subject=line,
        title=title,
        affected_us=view.us_of(work),
        saving=savings.if_so(saving, "its inputs are the same in every step"),
        evidence=[evidence.of(view, "what it launches", work)],
        advice=advice,
        snippet=snippet,
        source=line,
    )


def _before_weights(view: RankView, ops: pl.DataFrame) -> pl.DataFrame:
    """The ops of a module's calls that come before the first for which autograd records a node, as it does
    from the first weight on: each op has the number that the next node gets. Calls without autograd begin
    with the same work for as long as they call the same."""
    host = view.trace.host_events
    outer = view.called.filter(~in_backward(view.trace)[view.called["id"]]).select("id", "lane")
    around = view.inside_of(outer["id"])
    inner = pl.DataFrame({"id": around, "number": host["sequence"], "new": matching(host, "name", NEW)})
    inner = inner.drop_nulls("id").group_by("id").agg(pl.col("number").min(), pl.col("new").any())
    outer = outer.join(inner, on="id", how="left", maintain_order="left")
    number, key = pl.col("number"), ["call", "turn"]
    records = number.is_not_null() & number.ne_missing(number.backward_fill().shift(-1).over("lane"))
    name = pl.col("name").cast(pl.String)
    ends = pl.col("records") | pl.col("new") | number.is_null() & ~name.str.contains(CONSTANT)
    # All recorded steps make the same call: a turn is one step's.
    turn = (pl.col("noted") <= pl.col("noted").shift(1, fill_value=0)).cum_sum().over("call")
    own = ops.join(outer.with_columns(records=records), on="id").sort("id")
    own = own.with_columns(name, ends=ends, turn=turn).with_columns(place=pl.int_range(pl.len()).over(key))
    leading = own.filter(pl.col("records").any().over(key), pl.col("ends").cum_sum().over(key) == 0)
    shortest = min(leading.group_by(key).agg("name")["name"].to_list(), key=len, default=[])
    expected = pl.DataFrame({"expected": shortest}, {"expected": pl.String}).with_row_index("place")
    own = own.join(expected.cast({"place": pl.Int64}), on="place", how="left", maintain_order="left")
    differs = pl.col("name").ne_missing(pl.col("expected")).cum_sum().over(key) > 0
    return ops.filter(view.inside_of(own.filter(~differs)["id"])[ops["id"]].is_not_null())
