"""Activations are computed twice although there is memory to keep them.

What it finds
    Activation checkpointing (``torch.utils.checkpoint``, a library's ``gradient_checkpointing``) in
    programs whose device has room for what it throws away.

Why it is slow
    Each checkpointed layer's forward pass runs again in the backward pass: a quarter to a third of the
    device's work, and of the host's where it sets the pace. That buys memory, and nothing else.

How it decides
    Nodes of autograd in which forward ops run, in programs that call checkpointing's functions. Keeping the
    activations needs at most what the recomputation's kernels can have written: half of the bandwidth for as
    long as they ran. Where that does not fit, nothing is promised; where it is not known, that it does is the
    condition. The saving is the recomputation's work on device and host, and what the host does to enter a
    checkpointed layer.

What to do
    Turn it off (``model.gradient_checkpointing_disable()``, no ``checkpoint(…)`` around the layers), or
    checkpoint only as many layers as memory requires; a larger batch may use the memory better.

Source
    PyTorch, torch.utils.checkpoint: "trades compute for memory".
"""

from kinetoscope.analysis.cost.roofline import device_spec
from kinetoscope.analysis.events.backward import recomputed
from kinetoscope.findings.rule import *

ENTRY = r"^_NoopSaveInputs$"
RANDOM = r"^(aten::empty|cudaStreamIsCapturing)$"  # what reading the state of the random numbers calls
WRITTEN = 0.5  # of the bytes that a kernel moves: what it writes, it made of at least as much


def find(view: RankView) -> Findings:
    again = view.inside(recomputed(view.trace))
    work = view.launched_during(again)
    if work.is_empty():
        return
    calls = pl.concat([again.select(SEGMENT), _entered(view)])
    basis = "the recomputation and its calls"
    saving = savings.device(view, work, basis, "duration_ns", savings.called(view, calls))
    needs, memory, took = _needed(view, work), view.peak_and_room, numbers.time(view.us_of(work))
    room = None if memory is None else max(0, memory[1] - memory[0])
    if needs is None or room is None:
        saving = savings.if_so(saving, "all activations fit into the device's memory")
    elif needs > room:
        saving = savings.not_predicted(saving, "keeping all activations may not fit")
    yield Finding(
        title="Checkpointing runs forward passes again in the backward pass, "
        f"{view.counted(len(again), 'time')} per {view.unit}: {took} of device time",
        saving=saving,
        evidence=[evidence.of(view, f"{len(work)} kernels that ran before", work)],
        advice="Turn activation checkpointing off, or checkpoint fewer layers" + _memory(needs, room),
        at_least="info",
        source=evidence.source(view, work["op"]),
    )


def _entered(view: RankView) -> pl.DataFrame:
    """The times of threads in which a layer is entered whose activations are thrown away, from the op before
    to the first of its own: the state of the random numbers is kept, and hooks are set."""
    called = view.called.select("name", "lane", "start_ns", "end_ns").with_columns(
        op_ns=pl.when(~matching(view.called, "name", RANDOM)).then("end_ns"),
        until_ns=pl.col("start_ns").shift(-1).over("lane"),
    )
    called = called.with_columns(start_ns=pl.col("op_ns").forward_fill().shift(1).over("lane"))
    entries = called.filter(matching(called, "name", ENTRY))
    length = (pl.col("until_ns") - pl.col("start_ns")).alias("duration_ns")
    return entries.with_columns(length).select(SEGMENT).drop_nulls()


def _memory(needs: int | None, room: int | None) -> str:
    if needs is None or room is None:
        return ", if the device's memory allows it."
    kept = f"keeping their activations takes {numbers.size(needs)} at most"
    return f": {numbers.size(room)} of the device's memory are free, and {kept}."


def _needed(view: RankView, work: pl.DataFrame) -> int | None:
    """Bytes that keeping what is computed again takes at most; null where the bandwidth is not known."""
    spec = device_spec(view.trace, whole(work["device"][0])) if view.trace.devices else None
    return None if spec is None else round(view.us_of(work) * 1e-6 * spec.bandwidth * WRITTEN)
