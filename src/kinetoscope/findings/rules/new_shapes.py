"""A library plans anew for input sizes that it has not met.

What it finds
    Ops of cuDNN, cuBLAS, cuFFT and their kin (convolutions, attention, recurrent nets, transforms) that now
    and then take the host ten times as long as usual, in steps of a program that has long been running.

Why it is slow
    For each new combination of sizes the library looks for an algorithm, builds a plan or tries several:
    milliseconds on the host, against microseconds once it is remembered. Sizes that vary from batch to batch
    (the longest sequence of each) never repeat.

How it decides
    Calls that wait eight times and more for the device try algorithms: all goes but what they launch after
    their last wait. Other calls plan where their own time on the host is at least ten times the op's median
    and 500 µs, and shapes, where recorded, occur for the first time: what they take beyond the median goes.
    Either in two or more of the recorded steps and in half of them. Work that is paid once is
    ``cold-start-step``'s.

    They also explain rare long steps (``rare-long-steps``) for which no wait is known, if a recorded step has
    half to twice of what a long one takes more in them; or if grids differ from step to step, and the thread
    is mostly at a line that calls such an op. What long steps add to the mean goes.

What to do
    Pad to few lengths: multiples of 64 or 128, or batches of samples of like length. Switch
    ``torch.backends.cudnn.benchmark`` off where sizes vary: it tries all algorithms for each. Attention need
    not be cuDNN's: ``torch.backends.cuda.enable_cudnn_sdp(False)`` leaves it to kernels without plans.

Source
    NVIDIA cuDNN developer guide, "Heuristics" and "Plan cache"; PyTorch, ``torch.backends.cudnn.benchmark``
    and ``torch.backends.cuda.enable_cudnn_sdp``.
"""

from kinetoscope.analysis.events.torch_names import SYNCHRONIZATION
from kinetoscope.analysis.passes.long_steps import HALF, TWICE
from kinetoscope.analysis.passes.unprofiled import RareSteps
from kinetoscope.findings.in_force import shapes_vary
from kinetoscope.findings.rule import *
from kinetoscope.trace.model import with_arguments

PLANNED = (
    r"^aten::(cudnn_\w+|_cudnn_\w+|miopen_\w+|_?convolution|convolution_backward|_scaled_dot_product_cudnn\w+"
    r"|_fft_\w+|mm|addmm|bmm|baddbmm|_scaled_mm|_thnn_fused\w+)$"
)
ATTENTION = r"^aten::_(scaled_dot_product_)?cudnn_attention"
FACTOR = 10
LONG_NS = 500_000
PAD = (
    "Pad to few lengths, or batch samples of like length, so that sizes repeat; with "
    "torch.backends.cudnn.benchmark, switch that off."
)
FLASH = (
    "Keep cuDNN out of attention: the flash and the memory-efficient kernels need no plan. Or pad to few "
    "lengths, so that sizes repeat."
)
TRIES = 8  # waits of one call: a library that only looks a plan up or builds it needs none


def find(view: RankView) -> Findings:
    steps = view.trace.steps
    if len(steps) < 2:
        return
    host = view.trace.host_events
    calls = view.inside(host.filter(matching(host, "name", PLANNED)))
    calls = with_arguments(calls, view.trace.host_arguments, "input_dims")
    calls = calls.with_columns(step=steps["start_ns"].search_sorted(calls["start_ns"]))
    waits = view.inside(view.host(SYNCHRONIZATION)).select(wait="id", op="parent", at_ns="start_ns")
    waits = waits.filter(pl.len().over("op") >= TRIES, pl.col("op").is_in(calls["id"].implode()))
    tried = calls.join(waits.group_by(id="op").agg(pl.max("at_ns")), on="id", maintain_order="left")
    if view.recurs(tried):
        yield _tries(view, tried, waits["wait"])
    usual = pl.col("self_ns").median().over("name")
    first = pl.col("input_dims").is_null() | pl.struct("name", "input_dims").is_first_distinct()
    slow = calls.with_columns(usual_ns=usual).filter(
        first,
        pl.col("id").is_in(view.work["op"].implode()),
        pl.col("self_ns") >= pl.max_horizontal(FACTOR * pl.col("usual_ns"), LONG_NS),
        ~pl.col("id").is_in(tried["id"].implode()),
    )
    attends, unseen = matching(slow, "name", ATTENTION), _planned_unseen(view)
    for planned in (slow.filter(attends), slow.filter(~attends)):
        if (rare := _why_long(view, planned)) or view.recurs(planned):
            unseen = None
            yield _plans(view, planned, rare)
    if unseen is not None:
        yield _unseen(view, *unseen)


def explains_long_steps(view: RankView) -> bool:
    """Whether rare long steps are those in which a library plans."""
    return _long(view) is not None and any(finding.saving.unreplayed_us > 0 for finding in find(view))


def _tries(view: RankView, calls: pl.DataFrame, waits: pl.Series) -> Finding:
    """The finding on calls that try algorithms until ``at_ns``, their last wait."""
    work = view.work.drop_nulls("launch").join(calls.select(op="id", tried_ns="at_ns"), on="op")
    last = view.trace.host_events["start_ns"].gather(work["launch"]) > work["tried_ns"]
    kept = work.filter(last).group_by(id="op").agg(kept_ns=pl.col("duration_ns").sum())
    share = 1 - pl.col("kept_ns").fill_null(0) / pl.col("duration_ns")
    host = calls.join(kept, on="id", how="left", maintain_order="left").with_columns(share=share.clip(0))
    change = without_host(host) | no_wait(waits)
    basis = "the kernels that are tried, and the host's time around them"
    saving = savings.device(view, work.filter(~last), basis, "duration_ns", change)
    longest = calls.sort("duration_ns", descending=True)
    names = " and ".join(longest["name"].cast(pl.String).unique(maintain_order=True).head(2))
    return Finding(
        subject="tries",
        title=f"{view.per_step(len(calls)):.2g} calls of {names} per {view.unit} try their algorithms, with "
        f"{view.per_step(len(work)):,.0f} kernels: {numbers.time(view.us_of(calls))}",
        saving=saving,
        evidence=[evidence.of(view, "the longest calls", longest)],
        advice="Switch torch.backends.cudnn.benchmark off while sizes vary: it tries all algorithms for each "
        "size that it has not met. Or pad to few lengths, so that sizes repeat.",
        snippet="torch.backends.cudnn.benchmark = False",
        source=evidence.source(view, longest["id"]),
    )


def _long(view: RankView) -> RareSteps | None:
    """The rare long steps, where nothing that was waited for explains them."""
    rare = None if view.as_it_runs is None else view.as_it_runs.timed.rare
    return rare if rare is not None and rare.cause is None else None


def _why_long(view: RankView, slow: pl.DataFrame) -> RareSteps | None:
    """The rare long steps, if a recorded step has in these calls what such a step takes more."""
    rare = _long(view)
    if rare is None or slow.is_empty():
        return None
    each = slow.group_by("step").agg(ns=(pl.col("self_ns") - pl.col("usual_ns")).sum())
    return rare if HALF <= float(str(each["ns"].median())) / 1000 / rare.more_us <= TWICE else None


def _planned_unseen(view: RankView) -> tuple[RareSteps, pl.DataFrame] | None:
    """The rare long steps that none of the recorded ones is, and the calls that take longer in them."""
    rare, watched = _long(view), view.watched
    if rare is None or watched is None or view.lines is None:
        return None
    rows, host = view.lines.rows, view.trace.host_events
    if watched.long_steps is None or watched.long_steps.function not in rows["function"] or not watched.lines:
        return None
    at = rows["line"].str.split("/").list.last() == watched.lines[0].line
    calls = host.filter(at.fill_null(False) & matching(host, "name", PLANNED))
    return (rare, calls) if len(calls) and shapes_vary(view) else None


def _unseen(view: RankView, rare: RareSteps, calls: pl.DataFrame) -> Finding:
    longest = calls.sort("self_ns", descending=True).head(1)
    takes = "takes" if rare.count == 1 else "take"
    return _planning(
        view,
        longest,
        f"{rare.count} of {rare.of} steps {takes} {numbers.time(rare.more_us)} more than the others "
        f"({numbers.time(view.own_step_us)}): probably {longest['name'][0]} plans anew for sizes that it has "
        "not met",
        _of_long_steps(view, rare),
        evidence.of(view, "its longest call in the recorded steps, none of which is long", longest),
    )


def _plans(view: RankView, slow: pl.DataFrame, rare: RareSteps | None) -> Finding:
    slow = slow.with_columns(share=(pl.col("self_ns") - pl.col("usual_ns")) / pl.col("duration_ns"))
    longest = slow.sort("self_ns", descending=True)
    names = " and ".join(slow["name"].cast(pl.String).unique(maintain_order=True).head(2))
    takes, others = (numbers.time(float(str(slow[ns].median())) / 1000) for ns in ("self_ns", "usual_ns"))
    basis = "what these calls take on the host beyond the op's median, while sizes are new"
    return _planning(
        view,
        longest,
        f"{view.per_step(len(slow)):.2g} calls of {names} per {view.unit} take the host {takes}, the "
        f"others {others}: the library plans anew for sizes that it has not met",
        savings.host(view, slow, basis) if rare is None else _of_long_steps(view, rare),
        evidence.of(view, "the longest calls", longest),
    )


def _of_long_steps(view: RankView, rare: RareSteps) -> Saving:
    return savings.rare(
        view,
        rare.extra_us,
        f"what {rare.count} of {rare.of} steps, timed without the profiler, take beyond the others, spread "
        "over all",
    )


def _planning(view: RankView, calls: pl.DataFrame, title: str, saving: Saving, shown: Evidence) -> Finding:
    attends = bool(matching(calls.head(1), "name", ATTENTION)[0])
    return Finding(
        subject="plans of attention" if attends else "plans",
        title=title,
        saving=saving,
        evidence=[shown],
        advice=f"{FLASH if attends else PAD} Each size is planned once: in a run that is long for the number "
        "of its sizes this ends by itself.",
        snippet="torch.backends.cuda.enable_cudnn_sdp(False)"
        if attends
        else "length = -(-length // 64) * 64  # the next multiple of 64",
        source=evidence.source(view, calls["id"]),
    )
