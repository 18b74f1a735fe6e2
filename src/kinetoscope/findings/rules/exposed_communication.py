"""Communication that nothing hides.

What it finds
    Collectives that run while the device computes nothing, the waiting for late ranks taken out (see
    ``straggler`` and ``collective-imbalance``).

Why it is slow
    The link and the multiprocessors can work at the same time. A collective that starts when its input's
    producer is the last thing in the queue, or whose result is needed at once, makes the device stand still.

How it decides
    Communication while no compute kernel runs on the same device, less the exposed waiting: at least 10 % of
    the step, since the last bucket of a backward pass cannot be hidden. Half of it counts as saved: hidden
    communication slows the computing that hides it. Over links of 100 GB/s or more nothing is promised: 842
    µs made to overlap on two H200 saved 85 µs.

What to do
    Start gradients' all-reduces during the backward pass (DistributedDataParallel does; larger or smaller
    ``bucket_cap_mb``), prefetch the next layer's all-gather (FSDP2: ``set_modules_to_forward_prefetch``),
    send less (bfloat16 gradients), use ``async_op=True`` and wait later.

Source
    PyTorch DDP design note; HolisticTraceAnalysis' exposed communication.
"""

from kinetoscope.analysis.collectives.recorded import BUS, collectives
from kinetoscope.findings.rule import *

GAIN = 0.5
# Bytes a second per rank, as nccl-tests count a bus: beyond PCIe 5.0 (64 GB/s) and a network card of 800
# Gbit/s, so that it is NVLink or similar; of the fastest collective that is long enough to measure it.
FAST, ENOUGH = 100e9, 1_000_000


def find(view: RankView) -> Findings:
    running = view.work.filter(pl.col("part") == "communication")
    if running.is_empty():
        return
    compute = view.work.filter(pl.col("part") == "compute")
    exposed = intervals.total(intervals.subtract(running, compute, ["device"]))
    waited = view.waits
    transfer = max(0, exposed - int(waited["saved_ns"].sum()))
    if transfer < HIGH * view.length_ns:
        return
    # How much of each collective's duration is exposed transfer is not known one by one: the mean is taken.
    part = transfer / max(1, int(running["duration_ns"].sum()))
    saved = pl.col("duration_ns") * part * GAIN
    saving = savings.device(view, running, "half of the exposed transfer time", saved=saved)
    # Replayed together, a collective takes as long as its transfer: that gets shorter, and no waiting.
    moving = int(running["duration_ns"].sum()) - int(waited["waiting_ns"].sum())
    less = shorten(running["id"], running["duration_ns"] * (GAIN * min(1.0, transfer / max(1, moving))))
    saving = replace(saving, together={view.rank: less})
    if fast := _bus(view) >= FAST:
        saving = savings.not_predicted(saving, "over so fast a link, hiding costs about what it hides")
    longest = running.sort("duration_ns", descending=True)
    yield Finding(
        title=f"{part:.0%} of all communication is exposed: no computing hides it",
        affected_us=view.us(transfer),
        saving=saving,
        at_least="low" if fast else None,
        evidence=[evidence.of(view, "the longest collectives", longest)],
        advice="Start communication earlier or need its result later, so that computing hides it.",
        snippet="DistributedDataParallel(model, bucket_cap_mb=25, gradient_as_bucket_view=True)",
        source=evidence.source(view, running["op"]),
    )


def _bus(view: RankView) -> float:
    """Bytes/s that the fastest collective moved over each rank's link; 0 where no sizes were recorded."""
    long = collectives(view.trace).filter(pl.col("bytes") >= ENOUGH, pl.col("duration_ns") > 0)
    part = pl.col("kind").replace_strict(BUS, return_dtype=pl.Float64) * (1 - 1 / pl.col("size"))
    rates = long.select((pl.col("bytes") / pl.col("duration_ns") * 1e9 * part).max())
    return float(rates.item() or 0.0)
