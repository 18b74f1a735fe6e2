"""Batches are picked out of tensors in the CPU's memory, and sent.

What it finds
    Samples or rows that the training thread takes from tensors in the CPU's memory in each step, one by one
    (a ``TensorDataset``, ``default_collate``) or with an index (features of a graph's nodes), and whose batch
    is then copied to the device.

Why it is slow
    The thread that gathers launches nothing meanwhile, the device would gather the same bytes tens of times
    as fast, and the batch travels in each step: data that fit on the device need to travel once.

How it decides
    Ops on the CPU that gather (``aten::stack``, ``index``, ``index_select``, ``gather``, ``cat``) in the
    threads that launch, where a megabyte or more is sent each step; where a loader's ``__next__`` consists
    mostly of such ops and of taking single samples, all of it. With them go the copies to the device. From 3
    % of the step on. Whether the data fit is not in a recording: the memory that the device has left is
    named.

What to do
    Send the data set to the device once and index it there with the batch's numbers. If it does not fit: take
    whole batches with one index (``sampler=BatchSampler(…)``, ``batch_size=None``) in workers, and pin them.

Source
    PyTorch, ``torch.utils.data``: "Disable automatic batching"; "Loading Batched and Non-Batched Data".
"""

from kinetoscope.analysis.idle.causes import CALL
from kinetoscope.findings.loaders import COLUMNS, GATHERS, picks
from kinetoscope.findings.rule import *
from kinetoscope.findings.rules.pageable_copy import freeing, waits_of_uploads

LARGE = 1 << 20  # bytes sent per step


def find(view: RankView) -> Findings:
    sent = view.kernels(r"Memcpy HtoD")
    size = view.per_step(int(sent["bytes"].sum()))
    if size < LARGE:
        return
    gathers = _gathers(view)
    loading, picked = picks(view)
    picked = picked.filter(matching(picked, "name", "^aten::select$"))
    us = view.us(intervals.total(intervals.union(spans(pl.concat([gathers, loading])))))
    if us < MEDIUM * view.step_us:
        return
    copies = view.trace.host_events[sent["launch"].drop_nulls().unique().sort()]
    change = (
        without_host(gathers)
        | without_host(loading, _as_timed(view))
        | without_host(copies)
        | without_host(freeing(view, copies["id"]))
        | no_wait(pl.concat([copies["id"], waits_of_uploads(view)]))
        | shorten(sent["id"], sent["duration_ns"])
    )
    saving = savings.of(view, change, "gathering on the CPU, and the copies to the device")
    if saving.share < MEDIUM:
        return
    longest = pl.concat([gathers, picked]).sort("duration_ns", descending=True)
    names = longest["name"].cast(pl.String).unique(maintain_order=True).head(2)
    how = "samples one by one" if len(picked) else "rows"
    ops = f"{view.per_step(len(longest)):,.0f} ops: {', '.join(names)}"
    yield Finding(
        title=f"The CPU takes {how} out of tensors in its memory ({ops}) for "
        f"{numbers.time(us)} per {view.unit}, and sends {numbers.size(size)}",
        saving=saving,
        evidence=[
            evidence.of(view, "the longest of these ops", view.trace.host_events[longest["id"].head(12)])
        ],
        advice=f"Send the data to the device once{_room(view)}, and index them there with the batch's "
        "numbers. If they do not fit, take whole batches with one index, in workers, and pin them.",
        snippet="data = data.to(device)  # once; then batch = data[numbers]",
        source=evidence.source(view, longest["id"]),
    )


def _gathers(view: RankView) -> pl.DataFrame:
    """The ops that gather on the CPU: they call no runtime."""
    host, calls = view.trace.host_events, view.called
    calls = calls.filter(matching(calls, "name", GATHERS))
    touching = view.inside_of(calls["id"]).filter(matching(host, "category", CALL)).drop_nulls()
    return calls.filter(~pl.col("id").is_in(touching.implode())).select(COLUMNS)


def _as_timed(view: RankView) -> float:
    """The part of the loader's recorded time that it takes without the profiler."""
    timed = None if view.as_it_runs is None else view.as_it_runs.timed
    if timed is None or timed.waiting is None or not timed.recorded_data_us:
        return 1.0
    return min(1.0, timed.waiting.data_us / timed.recorded_data_us)


def _room(view: RankView) -> str:
    """The memory that the device has left, where it is known."""
    devices = view.run.manifest.environment.devices if view.run.manifest else ()
    total = devices[0].total_memory_bytes if devices else None
    peak = view.record.peak_memory_bytes if view.record else None
    return (
        "" if not total or not peak else f", if they fit into the {numbers.size(total - peak)} that are free"
    )
