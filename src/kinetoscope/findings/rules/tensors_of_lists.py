"""A tensor is made of a list, number by number.

What it finds
    ``torch.tensor(frames)``, ``torch.FloatTensor(rows)`` and ``torch.as_tensor(batch)`` of lists: of NumPy
    arrays, of states of an environment, of rows of numbers; lists as an index (``mask[places] = 0``). Where
    four such tensors or more per step are copied to the device one by one, these copies too.

Why it is slow
    Each number is taken out of its list or array as an object of Python's, looked at, and written: tens to
    hundreds of nanoseconds a number. NumPy and ``torch.stack`` copy arrays as blocks of memory, a hundred
    times as fast. PyTorch warns of lists of arrays once ("extremely slow").

How it decides
    By the order of ops in a thread that launches: memory that is taken (``aten::empty``), then nothing, then
    ``aten::to`` and ``aten::lift_fresh``, which PyTorch calls so for lists alone. The time in which it
    records nothing, if 10 µs or more, is that of reading the list. All of it goes. A tensor whose next op
    copies to the device is sent: of four or more per step all copies but one go, with their calls and waits,
    and what the host does until it takes the next list's memory, if it calls nothing in between.

What to do
    Join arrays first (``np.stack``, ``np.asarray``) and take the tensor from that (``torch.from_numpy``);
    tensors by ``torch.stack``. Keep what is gathered number by number in an array of its final size: features
    of users and items as rows of one array, of which a request takes some and copies them once.

Source
    pytorch/pytorch #13918; PyTorch's warning in torch/csrc/utils/tensor_new.cpp.
"""

from kinetoscope.findings.rule import *
from kinetoscope.findings.rules.made_on_host import waits_of_copies

LIST_NS = 10_000  # in less time a number, or a few, are read: calling torch.tensor takes as long
MANY = 4  # tensors per step, from which on copying them one by one is worth a word
PARTS = 6  # ops of one list: its memory, type, form and copy, of which some are called twice


def find(view: RankView) -> Findings:
    lists = reading(view)
    if lists.is_empty():
        return
    copies, waits = _copies(view, lists)
    hosted = pl.concat([lists.select(copies.columns), copies])
    basis = "the time in which lists are read, number by number"
    if one_by_one := not copies.is_empty():
        basis += ", and all copies of them to the device but one"
    change = without_host(hosted) | no_wait(waits)
    longest = lists.sort("duration_ns", descending=True)
    shown = view.trace.host_events[longest["id"].head(3)]
    yield Finding(
        title=f"{view.counted(len(lists), 'tensor')} per {view.unit} "
        f"{'is' if len(lists) == view.steps else 'are'} made of lists, number by number"
        f"{', and copied one by one' * one_by_one}: {numbers.time(view.us_of(hosted))}",
        affected_us=view.us_of(hosted),
        saving=savings.warm(view, savings.of(view, change, basis)),
        evidence=[evidence.of(view, "what follows the longest lists", shown)],
        advice="Keep what they are made of as rows of one NumPy array: make one array of all, copy it once, "
        "and take it apart on the device."
        if one_by_one
        else "Join arrays with np.stack before they become a tensor, tensors with torch.stack; keep "
        "numbers, and indices, in an array or a tensor from the start.",
        snippet="columns = torch.from_numpy(table[rows]).to(device).unbind(1)"
        if one_by_one
        else "batch = torch.from_numpy(np.stack(frames)).to(device)",
        source=evidence.source(view, longest["id"]),
    )


def _copies(view: RankView, lists: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """Copies to the device of tensors of lists, all but one a step: the time until the next list's memory
    is taken (``lane``, ``start_ns``, ``duration_ns``), and the waits in it; none where fewer than ``MANY`` a
    step are copied."""
    launches = view.kernels("^Memcpy HtoD")["launch"].drop_nulls()
    copying = view.inside_of(view.called["id"]).gather(launches)
    ops = view.called.select("lane", op="id", copied_ns="start_ns", end_ns="end_ns").with_row_index("place")
    ops = ops.filter(pl.col("op").is_in(copying.implode()))
    goes_on = pl.col("place").shift(-1) <= pl.col("place") + PARTS
    made = lists.select("lane", "place", next_ns=pl.when(goes_on).then(pl.col("taken_ns").shift(-1)))
    sent = made.join_asof(
        ops, on="place", by="lane", strategy="forward", tolerance=PARTS // 2, check_sortedness=False
    ).drop_nulls("op")
    sent = sent.slice(view.steps if len(sent) >= MANY * view.steps else len(sent))
    waits = waits_of_copies(view, launches.filter(copying.is_in(sent["op"].implode())))
    until = pl.coalesce("next_ns", "end_ns") - pl.col("copied_ns")
    return sent.select("lane", start_ns="copied_ns", duration_ns=until), waits


def reading(view: RankView) -> pl.DataFrame:
    """When lists become tensors: ``lane``, ``start_ns``, ``duration_ns``, the next op (``id``) and its
    ``place`` among ``view.called``, and when memory was taken (``taken_ns``)."""
    ops = view.called
    fresh = matching(ops, "name", "^aten::lift_fresh$").arg_true()
    fresh = fresh.filter(fresh >= 2)
    empty, to, lifted = (ops[fresh - back] for back in (2, 1, 0))
    made = to.select(
        "id",
        "lane",
        place=fresh - 1,
        taken_ns=empty["start_ns"],
        start_ns=empty["end_ns"],
        duration_ns=to["start_ns"] - empty["end_ns"],
    )
    made = made.filter(
        (empty["name"] == "aten::empty") & (to["name"] == "aten::to"),
        (empty["lane"] == to["lane"]) & (to["lane"] == lifted["lane"]),
        pl.col("duration_ns") > 0,
    )
    # A thread may be taken off its core while it reads a number: of a line the usual time counts.
    line = pl.lit(None) if view.lines is None else view.lines.rows["line"].gather(made["id"])
    usual = pl.col("duration_ns").median().over("line")
    return made.with_columns(line=line).filter(usual >= LIST_NS).drop("line")
