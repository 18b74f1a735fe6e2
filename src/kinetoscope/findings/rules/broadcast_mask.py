"""A mask of rows is written out for each element before it selects.

What it finds
    ``torch.masked_select(logits, mask.unsqueeze(-1))``: a mask over positions that is expanded to the size of
    what it selects from.

Why it is slow
    The mask is copied at full size, the place of each single element is written as an index of eight bytes
    and read again, and the backward pass counts all elements of the mask once more. With the rows' numbers it
    is one index a row. A logit of two bytes costs ten of indices.

How it decides
    By ``aten::contiguous`` that copies inside of ``aten::masked_select``: it does so with an expanded mask,
    not with one that has the size of what it selects from. Gone are that copy, the search for places, and
    half of the selection itself, which reads an index for each element; of the backward pass the copy and
    the count. Rows have to be found as well, for which the host waits as it does now.

What to do
    Select rows by their numbers, which one small ``nonzero`` finds: ``index_select`` or ``x[mask]`` with the
    mask over the leading dimensions alone.

Source
    PyTorch documentation of torch.masked_select and torch.Tensor.index_select.
"""

from kinetoscope.findings.rule import *

SELECT = r"^aten::masked_select(_backward)?$"
SEARCH = r"^aten::(nonzero|contiguous)$"
SCAN = r"(?i)scan"  # of the backward pass: the place of each element among those selected
HALF = 0.5


def find(view: RankView) -> Findings:
    host = view.trace.host_events
    if not matching(host, "name", SELECT).any():
        return
    work = view.work.drop_nulls("launch")
    sorts = (SELECT, r"^aten::contiguous$", SEARCH, "backward$")
    select, copied, search, back = (view.around(sort).gather(work["launch"]) for sort in sorts)
    work = work.with_columns(
        select=select,
        copied=copied.is_not_null(),
        gone=search.is_not_null() | matching(work, "name", SCAN),
        back=back.is_not_null(),
    ).drop_nulls("select")
    part = pl.when("gone").then(1.0).when("back").then(0.0).otherwise(HALF)
    wide = work.filter(pl.col("copied").any().over("select")).with_columns(
        saved_ns=pl.col("duration_ns") * part
    )
    calls = host[wide.filter(~pl.col("back"))["select"].unique().sort()]
    if calls.is_empty():
        return
    times = view.counted(len(calls), "time")
    yield Finding(
        title=f"A mask of rows is written out for each element {times} per {view.unit}, to select by it",
        affected_us=view.us_of(wide),
        saving=savings.device(view, wide, "the mask's copy and search, and half of the selection"),
        evidence=[evidence.of(view, "masked_select", calls)],
        advice="Select whole rows by their numbers instead of single elements by an expanded mask.",
        snippet="rows = mask.flatten().nonzero().flatten()\n"
        "chosen = logits.flatten(0, 1).index_select(0, rows)",
        source=evidence.source(view, calls["id"]),
    )
