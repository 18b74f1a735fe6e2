"""A library plans anew for input sizes that it has not met.

What it finds
    Ops of cuDNN, cuBLAS, cuFFT and their kin (convolutions, attention, recurrent nets, transforms) that now
    and then take the host ten times as long as usual, in steps of a program that has long been running.

Why it is slow
    For each new combination of sizes the library looks for an algorithm, builds a plan or tries several:
    milliseconds on the host, against microseconds once it is remembered. Sizes that vary from batch to batch
    (the longest sequence of each) never repeat.

How it decides
    Calls that wait eight times and more for the device try algorithms: what they launch before their last
    wait goes, and their own time but for what they launch then. Of one op, other calls whose own time on
    the host, without what they call in the runtime, is at least ten times the op's median and 500 µs;
    where shapes were recorded, only such as occurred for the first time, and only such as launch work: the
    others compute on the CPU. What they take beyond the median goes. Either in two or more of the recorded
    steps and in half of them.
    Work that is paid once is ``cold-start-step``'s.

What to do
    Pad to few lengths: multiples of 64 or 128, or batches of samples of like length. Switch
    ``torch.backends.cudnn.benchmark`` off where sizes vary: it tries all algorithms for each. Attention need
    not be cuDNN's: ``torch.backends.cuda.enable_cudnn_sdp(False)`` leaves it to kernels without plans.

Source
    NVIDIA cuDNN developer guide, "Heuristics" and "Plan cache"; PyTorch, ``torch.backends.cudnn.benchmark``
    and ``torch.backends.cuda.enable_cudnn_sdp``.
"""

from kinetoscope.analysis.events.torch_names import SYNCHRONIZATION
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
    if _recurs(view, tried):
        yield _tries(view, tried, waits["wait"])
    usual = pl.col("self_ns").median().over("name")
    first = pl.col("input_dims").is_null() | pl.struct("name", "input_dims").is_first_distinct()
    slow = calls.with_columns(usual_ns=usual).filter(
        first,
        pl.col("id").is_in(view.work["op"].implode()),
        pl.col("self_ns") >= pl.max_horizontal(FACTOR * pl.col("usual_ns"), LONG_NS),
        ~pl.col("id").is_in(tried["id"].implode()),
    )
    attends = matching(slow, "name", ATTENTION)
    for planned in (slow.filter(attends), slow.filter(~attends)):
        if _recurs(view, planned):
            yield _plans(view, planned)


def _recurs(view: RankView, calls: pl.DataFrame) -> bool:
    return calls["step"].n_unique() >= max(2, len(view.trace.steps) / 2)


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


def _plans(view: RankView, slow: pl.DataFrame) -> Finding:
    slow = slow.with_columns(share=(pl.col("self_ns") - pl.col("usual_ns")) / pl.col("duration_ns"))
    longest = slow.sort("self_ns", descending=True)
    names = " and ".join(slow["name"].cast(pl.String).unique(maintain_order=True).head(2))
    takes, others = (numbers.time(float(str(slow[ns].median())) / 1000) for ns in ("self_ns", "usual_ns"))
    attends = bool(matching(slow.head(1), "name", ATTENTION)[0])
    return Finding(
        subject="plans of attention" if attends else "plans",
        title=f"{view.per_step(len(slow)):.2g} calls of {names} per {view.unit} take the host {takes}, the "
        f"others {others}: the library plans anew for sizes that it has not met",
        saving=savings.host(
            view, slow, "what these calls take on the host beyond the op's median, while sizes are new"
        ),
        evidence=[evidence.of(view, "the longest calls", longest)],
        advice=f"{FLASH if attends else PAD} Each size is planned once: in a run that is long for the number "
        "of its sizes this ends by itself.",
        snippet="torch.backends.cuda.enable_cudnn_sdp(False)"
        if attends
        else "length = -(-length // 64) * 64  # the next multiple of 64",
        source=evidence.source(view, longest["id"]),
    )
