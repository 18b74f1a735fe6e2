"""Tensors are made on the CPU and sent to the device.

What it finds
    ``torch.zeros(…).to(device)``, and the same of ``ones``, ``full``, ``arange``, random numbers and others.

Why it is slow
    The CPU fills memory at a fraction of the device's rate, the copy from ordinary memory is staged, and the
    host waits for it. The device can make the same tensor in microseconds.

How it decides
    A copy from pageable memory to the device whose op directly follows, on its thread, one that makes a
    tensor of constants, numbers in a row, or random numbers on the CPU; views between the two do not count.
    One that was quicker than the CPU can write so many bytes made something else.

What to do
    ``torch.zeros(…, device=device)``. Random numbers then are others, of the device's generator, unless they
    have to be reproduced.

Source
    PyTorch performance tuning guide, "Create tensors directly on the target device".
"""

from kinetoscope.analysis.events.torch_names import SYNCHRONIZATION
from kinetoscope.analysis.idle.causes import CALL
from kinetoscope.analysis.memo import remembered
from kinetoscope.findings.rule import *

FILLS = r"^aten::(new_)?(zeros|ones|full|arange|linspace|logspace|eye|fill_|zero_)(_like)?$"
DRAWS = r"^aten::(rand|randn|randint|randperm|normal_?|uniform_|random_|bernoulli_?|exponential_)(_like)?$"
VIEWS = r"^aten::(view|reshape|unsqueeze|squeeze|expand|expand_as|transpose|t|permute|detach|alias)$"
# Bytes per nanosecond (GB/s) that no CPU exceeds: in filling memory with all its cores, in drawing numbers,
# which one core does.
FILLED, DRAWN = 400.0, 20.0


def find(view: RankView) -> Findings:
    copies = made(view)
    if copies.is_empty():
        return
    host = view.trace.host_events
    makers = host[copies["maker"]]
    sent = copies["launch"].unique().sort()
    waits = pl.concat([sent, waits_of_copies(view, sent)])
    change = without_host(makers.unique("id")) | no_wait(waits)
    basis = "without making them on the CPU, and without the copies and their waits"
    saving = savings.device(view, copies, basis, "duration_ns", change)
    if saving.share < LOW:
        return
    longest = copies.sort("bytes", descending=True)
    names = host["name"].gather(longest["maker"]).cast(pl.String).unique(maintain_order=True).head(2)
    size = int(copies["bytes"].sum())
    number = numbers.count(max(1, round(view.per_step(len(copies)))), "tensor")
    yield Finding(
        title=f"{number} per {view.unit} {'is' if number == '1 tensor' else 'are'} made on the CPU "
        f"({', '.join(names)}) and sent to the device: {numbers.size(view.per_step(size))}",
        affected_us=view.us_of(makers) + view.us_of(copies),
        saving=saving,
        evidence=[evidence.of(view, "the largest of the copies", longest.head(8))],
        advice="Make them on the device."
        + (" Random numbers are others there." if matching(makers, "name", DRAWS).any() else ""),
        snippet=f"x = {names[0].replace('aten::', 'torch.')}(…, device=device)",
        source=evidence.source(view, longest["op"]),
    )


@remembered
def made(view: RankView) -> pl.DataFrame:
    """The copies (of ``view.work``) of what the CPU made directly before, with its op (``maker``)."""
    copies = view.kernels(r"HtoD.*Pageable").drop_nulls("launch")
    if copies.is_empty():
        return copies.with_columns(maker=pl.lit(None, pl.UInt32))
    calls = view.called.filter(~matching(view.called, "name", VIEWS))
    rate = (
        pl.when(matching(calls, "name", DRAWS)).then(DRAWN).when(matching(calls, "name", FILLS)).then(FILLED)
    )
    calls = calls.with_columns(maker="id", most=pl.col("duration_ns") * rate)
    calls = calls.select("lane", pl.col("maker", "most").shift(1).over("lane"), began="start_ns")
    host = view.trace.host_events
    sent = copies.with_row_index("row").with_columns(
        host.select("lane", sent_ns="start_ns")[copies["launch"]]
    )
    found = sent.sort("sent_ns").join_asof(
        calls.sort("began"), left_on="sent_ns", right_on="began", by="lane", check_sortedness=False
    )
    makers = found["maker"].drop_nulls().unique()
    launching = view.inside_of(makers).filter(matching(host, "category", CALL))
    return found.filter(
        pl.col("bytes") <= pl.col("most"), ~pl.col("maker").is_in(launching.drop_nulls().implode())
    ).sort("row").select(*copies.columns, "maker")  # fmt: skip


def waits_of_copies(view: RankView, launches: pl.Series) -> pl.Series:
    """The synchronising calls (rows of ``host_events``) directly in the ops that make these launches."""
    host = view.trace.host_events
    calls = host["id"].filter(matching(host, "name", SYNCHRONIZATION))
    within = host["parent"][launches.drop_nulls()].drop_nulls()
    return calls.filter(host["parent"][calls].is_in(within.implode()))
