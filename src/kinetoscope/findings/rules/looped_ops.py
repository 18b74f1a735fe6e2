"""A loop launches small kernels in each of its passes, which could all be computed at once.

What it finds
    A ``for`` statement or a comprehension within the step, of which no pass needs what another one computed,
    and whose passes launch small kernels: a loss for each image, each lane or each class of a batch, a norm
    for each gradient, a small net for each head or column, a call of a recurrent net for each word.

Why it is slow
    Each pass pays for Python, the dispatcher and a launch of every op, in the backward pass as well, and may
    wait for the device. One op on all that the loop goes through pays once.

How it decides
    By the program's source and the lines of a step. Passes are independent where none reads what another one
    binds or writes, unless each has a part of its own; where the loop neither ends early nor calls
    ``backward``, ``step``, ``next``, an environment, a loader, a cache or a collective; and where functions
    that it calls do nothing of the kind. Sums, and lists that are appended to, are no results that another
    pass needs; nor is the state of ``nn.GRU``, ``nn.LSTM`` or ``nn.RNN`` that each call hands on, where
    nothing else is made of it and inputs are known before, as by teacher forcing. A loop counts from 8 passes
    on, if it launches at least 50 kernels or copies to the device per step, half of them shorter than 20 µs;
    a loop in such a loop is done at once with it. Of n passes one remains: its part of the host's time, waits
    and backward nodes. Of other passes' kernels 3 µs each are saved: what they compute remains, but for
    kernels of fewer blocks than the device has multiprocessors, which as one fill it. Loops of a function
    with as many passes are one finding; where each pass looks up a table of its own, the host's time for the
    tables' gradients and updates goes as well. On a CPU, loops through parameters are left out.

What to do
    Stack what the loop goes through (padded and masked, where lengths differ), and call each op once:
    ``stack``, ``gather``, ``scatter``, ``where``, ``bmm``, ``vmap``. Of many small nets stack the weights for
    one ``bmm``; of many small tables make one. Give a recurrent net the whole sequence in one call. On lists
    of tensors of any shape use ``torch._foreach_*``.

Source
    PyTorch, tutorials on ``torch.func.vmap`` and on model ensembling; ``torch._foreach_*``, by which
    optimizers of torch update all parameters at once.
"""

from collections import defaultdict

from msgspec import Struct

from kinetoscope.analysis.events.backward import in_backward, in_update, makes_node
from kinetoscope.analysis.events.rows import END
from kinetoscope.analysis.events.torch_names import AUTOGRAD_NODE, OPTIMIZER, SYNCHRONIZATION
from kinetoscope.analysis.kernels.occupancy import blocks
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.origins.loops import independent_loops
from kinetoscope.analysis.origins.siblings import independent_calls
from kinetoscope.findings.rule import *
from kinetoscope.findings.rules.index_backward import APART_NS, whole_tensors
from kinetoscope.findings.savings import FIXED_NS

KERNELS = 50  # per step: fewer are ordinary
SMALL_NS = 20_000  # about what a call takes the host: longer kernels hide the loop
FEW = 0.05  # of a call's kernels: a library may choose another kernel for another layout
OF_A_NET = 20  # kernels of a call: fewer are a layer's
LOOKUP = "^aten::embedding$"
ACCUMULATES = f"{AUTOGRAD_NODE}.*AccumulateGrad$"
BASIS = "all passes but one, as far as they are calls, launches and waits"
ADVICE = {
    "modules": "stack the weights of what it calls, for one bmm, grouped convolution or table.",
    "tables": "make one table of all, with an offset for each, and look everything up at once.",
    "parameters": "torch._foreach_* on the list of tensors launches a few kernels for all.",
    "sequence": "give the recurrent net the whole sequence in one call, and each op all of its outputs.",
    "items": "stack its items (padded and masked, where lengths differ), call each op once.",
    "numbers": "write all numbers by one index, made of tensors; once, if it is the same in each step.",
}
STATE = " but a recurrent net's state"
READS = " Read the results with one copy."
SNIPPETS = {
    "modules": "y = torch.baddbmm(biases, x, weights)  # (n, rows, in) by (n, in, out)",
    "tables": "vectors = table(index + offsets)  # (batch, fields, wide), of one nn.Embedding",
    "parameters": "norms = torch.stack(torch._foreach_norm(gradients))",
    "sequence": "outputs, state = gru(inputs, state)  # all time steps, known beforehand",
    "items": "losses = torch.where(mask, errors(stacked), 0).sum(1)  # of all items at once",
    "numbers": "mask[rows, columns] = 0  # rows and columns: indices of all passes, as tensors",
}


class LoopedOps(Struct, frozen=True, eq=False):
    """A loop whose passes could be one, or several of a function (``lines``): each time that the step with
    lines entered it (``loops``), the ``segments`` of threads that it takes in the recorded steps, and their
    device ``work``."""

    lines: tuple[str, ...]
    loops: pl.DataFrame
    segments: pl.DataFrame
    work: pl.DataFrame
    reads: bool  # whether passes wait for what they read from the device
    saving: Saving

    @property
    def line(self) -> str:
        return self.lines[0]


def find(view: RankView) -> Findings:
    for one in looped(view):
        kernels, passes = int((one.work["kind"] == "kernel").sum()), whole(one.loops["passes"].sum())
        small = "small op" if view.on_cpu else "small kernel"
        inner, sort = one.loops["inner"].drop_nulls(), str(one.loops["sort"][0])
        sort = "tables" if _looks_up(view, one) else sort
        if kernels < (copies := int(_written(one.work).sum())):
            kernels, small, sort = copies, "small copy", "numbers"
        and_inner = f", with that at line {inner[0].rpartition(':')[2]} in it," if len(inner) else ""
        each = numbers.count(max(1, round(view.per_step(kernels) / passes)), small)
        *others, last = [one.line, *(line.rpartition(":")[2] for line in one.lines[1:])]
        at = f"loop at {last}{and_inner} makes"
        if others:
            at = f"loops at {', '.join(others)} and {last} make"
        yield Finding(
            subject=one.line,
            title=f"The {at} {passes:,} passes per {view.unit} of {each} "
            f"each, none of which needs another's result{STATE if sort == 'sequence' else ''}",
            affected_us=view.us_of(one.work),
            saving=one.saving,
            evidence=[evidence.of(view, "what its passes launch", one.work)],
            advice=f"Do the loop{'s' * bool(others)} at once: {ADVICE[sort]}{READS if one.reads else ''}",
            snippet=SNIPPETS[sort],
            source=one.line,
        )


@remembered
def looped(view: RankView) -> tuple[LoopedOps, ...]:
    """The loops that this finds."""
    together = defaultdict[tuple[str, int], list[LoopedOps]](list)
    for one in _found(view, independent_loops(view.run).get(view.rank)):
        together[str(one.loops["function"][0]), whole(one.loops["passes"].sum())].append(one)
    return tuple(_joined(view, same) for same in together.values())


def _joined(view: RankView, same: list[LoopedOps]) -> LoopedOps:
    """Loops of one function through as many items, which are stacked once for all of them; tables that they
    look up are one for the optimizer as well."""
    tables = [one for one in same if _looks_up(view, one)]
    if len(same) == 1 and not tables:
        return same[0]
    change = _updated(view, sum(whole(one.loops["passes"].sum()) - len(one.loops) for one in tables))
    for one in same:
        change |= one.saving.change or NOTHING
    return LoopedOps(
        tuple(one.line for one in same),
        pl.concat([one.loops for one in same]),
        pl.concat([one.segments for one in same]),
        pl.concat([one.work for one in same]),
        any(one.reads for one in same),
        savings.of(view, change, BASIS),
    )


def _looks_up(view: RankView, one: LoopedOps) -> bool:
    """Whether each pass looks up a table of its own."""
    lookups = view.around(LOOKUP).gather(one.work["launch"].drop_nulls())
    return one.loops["sort"][0] == "modules" and lookups.is_not_null().any()


def _updated(view: RankView, tables: int) -> ReplayChange:
    """The host's time for gradients and updates of so many of the weights that a step trains."""
    sums, updates = (view.inside(view.host(name)) for name in (ACCUMULATES, OPTIMIZER))
    if not tables or sums.is_empty():
        return NOTHING
    share = min(1.0, tables * view.steps / len(sums))
    return savings.called(view, pl.concat([sums, updates]), share)


@remembered
def called_apart(view: RankView) -> tuple[LoopedOps, ...]:
    """The same of calls of one module, in statements of a block, of which none needs another's result."""
    return _found(view, independent_calls(view.run).get(view.rank))


def _found(view: RankView, loops: pl.DataFrame | None) -> tuple[LoopedOps, ...]:
    lines = view.lines
    if loops is None or lines is None or loops.is_empty():
        return ()
    loops = loops.with_row_index("entering")
    noted = view.run.lines[view.rank].host_events.select("lane", "start_ns", noted="id")
    inside = intervals.beginning_in(noted, loops, ["lane"])
    ops = view.trace.host_events.select("lane", "start_ns", END, lines.rows["noted"])
    ops = ops.join(inside.select("noted", "entering"), on="noted")
    ops = intervals.beginning_in(ops, view.trace.steps.select("start_ns", END, step="id"))
    until = pl.max("end_ns") - pl.min("start_ns")
    entered = ops.group_by("entering", "step", "lane").agg(pl.min("start_ns"), duration_ns=until)
    entered = entered.join(loops.select("entering", "line", "share"), on="entering").sort("start_ns")
    found = (
        _looped(view, str(line), same, entered.filter(pl.col("line") == line))
        for (line,), same in loops.group_by("line", maintain_order=True)
    )
    return tuple(one for one in found if one is not None)


def _looped(view: RankView, line: str, loops: pl.DataFrame, entered: pl.DataFrame) -> LoopedOps | None:
    if view.on_cpu and loops["sort"][0] == "parameters":
        return None
    host, work = view.trace.host_events, view.launched_during(entered)
    lengths = work.filter((pl.col("kind") == "kernel") | _written(work))["duration_ns"].sort()
    if len(lengths) < KERNELS * view.steps or whole(lengths[len(lengths) // 2]) > SMALL_NS:
        return None
    if matching(work, "category", "^communication$").any():  # other ranks take part in each pass
        return None
    if loops["sort"][0] == "calls" and not _same_nets(work, entered):
        return None
    ops = host.select("id", "lane", "start_ns", "sequence")
    within = _inside(ops, entered)
    if (in_backward(view.trace) | in_update(view.trace)).gather(within["id"]).any():
        return None
    rest = _all_but_one_pass(view, work, entered)
    later = view.launched_during(rest)
    makers = within.filter(makes_node(view.trace).gather(within["id"]))
    nodes, later_nodes = (
        host.filter(matching(host, "name", AUTOGRAD_NODE) & host["sequence"].is_in(of.implode()))
        for of in (one["sequence"].drop_nulls().unique() for one in (makers, _inside(makers, rest)))
    )
    filled = whole_tensors(view).filter(pl.col("node").is_in(nodes["id"].implode()))
    launched = [_merged(view, one) for one in (later, view.launched_during(later_nodes))]
    saved = pl.concat([filled.select("id", saved_ns="duration_ns"), *launched], how="vertical_relaxed")
    calls = host.select("id", "lane", "start_ns").filter(matching(host, "name", SYNCHRONIZATION))
    waits = _inside(calls, rest)["id"]
    thread = pl.concat([rest, in_a_row(later_nodes.sort("start_ns"), APART_NS).select(SEGMENT)])
    saving = savings.device(
        view,
        saved.group_by("id").agg(pl.max("saved_ns")).sort("id"),
        BASIS,
        more=savings.called(view, thread) | no_wait(waits),
    )
    if saving.share < MEDIUM:
        return None
    reads = len(waits) > 0 and bool(matching(work, "name", "DtoH").any())
    return LoopedOps((line,), loops, entered, work, reads, saving)


def _written(work: pl.DataFrame) -> pl.Series:
    """Copies of the host's numbers into tensors of the device."""
    return matching(work, "name", "^Memcpy HtoD")


def _merged(view: RankView, work: pl.DataFrame) -> pl.DataFrame:
    """Kernels with ``saved_ns``, of each as a part of another: all but what it computes; with fewer blocks
    than the device has multiprocessors, but for its part of these."""
    places = (view.device.multiprocessors if view.device else None) or 1
    share = (pl.col("blocks") / places).clip(0, 1).fill_null(1.0)
    computes = (pl.col("duration_ns") - FIXED_NS).clip(0)
    return blocks(work).select("id", saved_ns=pl.col("duration_ns") - share * computes)


def _same_nets(work: pl.DataFrame, entered: pl.DataFrame) -> bool:
    """Whether all calls launch the same kernels, on grids of the same size, but for a few: those of a net.
    The first one may launch more, such as the casts of weights that autocast keeps."""
    kernels = work.filter(pl.col("kind") == "kernel").group_by("interval", "name", "grid").len()
    kernels = kernels.with_columns(later=entered["share"].gather(kernels["interval"]) > 0)
    most = kernels.filter("later").group_by("interval").agg(pl.sum("len"))["len"].max()
    every = pl.len() == len(entered)
    fewest = kernels.group_by("name", "grid").agg(pl.min("len"), every=every).filter("every")
    return whole(fewest["len"].sum()) >= max(OF_A_NET, (1 - FEW) * whole(most))


def outside_of_loops(view: RankView, segments: pl.DataFrame) -> pl.DataFrame:
    """Segments of threads without those of which more than half is in such a loop."""
    loops = [one.segments.select(SEGMENT) for one in looped(view)]
    if not loops:
        return segments
    middle = pl.col("start_ns") + pl.col("duration_ns") // 2
    middles = segments.with_row_index("row").select("row", "lane", start_ns=middle)
    rows = _inside(middles, pl.concat(loops))["row"]
    return segments.with_row_index("row").filter(~pl.col("row").is_in(rows.implode())).drop("row")


def _inside(events: pl.DataFrame, segments: pl.DataFrame, *columns: str) -> pl.DataFrame:
    return intervals.beginning_in(events, segments.select("lane", "start_ns", END, *columns), ["lane"])


def _all_but_one_pass(view: RankView, work: pl.DataFrame, entered: pl.DataFrame) -> pl.DataFrame:
    """The time in which a thread is in a loop (``entered``, with the ``share`` that goes) without as much of
    its beginning as launches one pass's part of the ``work``."""
    launched = view.trace.host_events["start_ns"].gather(work["launch"]).alias("from_ns")
    shares = entered.select("share").with_row_index("interval")
    of_loop = work.select("interval", launched).join(shares, on="interval").sort("interval", "from_ns")
    place, many = pl.int_range(pl.len()).over("interval"), pl.len().over("interval")
    later = of_loop.filter(place >= (1 - pl.col("share")) * many)
    begins = later.group_by("interval").agg(pl.min("from_ns"))
    rest = entered.with_row_index("interval").join(begins, on="interval").sort("interval")
    return rest.select("lane", start_ns="from_ns", duration_ns=END - pl.col("from_ns"))
