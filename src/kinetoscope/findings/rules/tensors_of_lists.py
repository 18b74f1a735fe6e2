"""A tensor is made of a list, number by number.

What it finds
    ``torch.tensor(frames)``, ``torch.FloatTensor(rows)`` and ``torch.as_tensor(batch)`` of lists: of NumPy
    arrays, of states of an environment, of rows of numbers; lists as an index (``mask[places] = 0``).

Why it is slow
    Each number is taken out of its list or array as an object of Python's, looked at, and written: tens to
    hundreds of nanoseconds a number. NumPy and ``torch.stack`` copy arrays as blocks of memory, a hundred
    times as fast. PyTorch warns of lists of arrays once ("extremely slow").

How it decides
    By the order of ops in a thread that launches: memory that is taken (``aten::empty``), then nothing, then
    ``aten::to`` and ``aten::lift_fresh``, which PyTorch calls so for lists alone. The time in which it
    records nothing, if 10 µs or more, is that of reading the list. All of it goes.

What to do
    Join arrays first (``np.stack``, ``np.asarray``) and take the tensor from that (``torch.from_numpy``);
    tensors by ``torch.stack``. Keep what is gathered number by number in an array of its final size.

Source
    pytorch/pytorch #13918; PyTorch's warning in torch/csrc/utils/tensor_new.cpp.
"""

from kinetoscope.findings.rule import *

LIST_NS = 10_000  # in less time a number, or a few, are read: calling torch.tensor takes as long


def find(view: RankView) -> Findings:
    lists = reading(view)
    if lists.is_empty():
        return
    saving = savings.host(view, lists, "the time in which lists are read, number by number")
    longest = lists.sort("duration_ns", descending=True)
    shown = view.trace.host_events[longest["id"].head(3)]
    yield Finding(
        title=f"{view.counted(len(lists), 'tensor')} per {view.unit} "
        f"{'is' if len(lists) == view.steps else 'are'} made of lists, number by number: "
        f"{numbers.time(view.us_of(lists))}",
        affected_us=view.us_of(lists),
        saving=saving,
        evidence=[evidence.of(view, "what follows the longest lists", shown)],
        advice="Join arrays with np.stack before they become a tensor, tensors with torch.stack; keep "
        "numbers, and indices, in an array or a tensor from the start.",
        snippet="batch = torch.from_numpy(np.stack(frames)).to(device)",
        source=evidence.source(view, longest["id"]),
    )


def reading(view: RankView) -> pl.DataFrame:
    """When lists become tensors: ``lane``, ``start_ns``, ``duration_ns``, and the next op (``id``)."""
    ops = view.called
    fresh = matching(ops, "name", "^aten::lift_fresh$").arg_true()
    fresh = fresh.filter(fresh >= 2)
    empty, to, lifted = (ops[fresh - back] for back in (2, 1, 0))
    made = to.select("id", "lane", start_ns=empty["end_ns"], duration_ns=to["start_ns"] - empty["end_ns"])
    made = made.filter(
        (empty["name"] == "aten::empty") & (to["name"] == "aten::to"),
        (empty["lane"] == to["lane"]) & (to["lane"] == lifted["lane"]),
        pl.col("duration_ns") > 0,
    )
    # A thread may be taken off its core while it reads a number: of a line the usual time counts.
    line = pl.lit(None) if view.lines is None else view.lines.rows["line"].gather(made["id"])
    usual = pl.col("duration_ns").median().over("line")
    return made.with_columns(line=line).filter(usual >= LIST_NS).drop("line")
