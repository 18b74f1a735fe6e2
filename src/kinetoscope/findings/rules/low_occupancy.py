"""A kernel's registers or shared memory leave room for few threads.

What it finds
    Long kernels, not matrix products, whose blocks are so heavy that a multiprocessor holds few warps.

Why it is slow
    A multiprocessor hides the latency of memory by switching between warps. With a tenth of them resident, it
    waits. Matrix products live well at low occupancy (they pipeline their loads); pointwise work and
    reductions do not.

How it decides
    At most a quarter of the threads that a multiprocessor holds can be resident, by registers, shared memory
    and block size; the grid has more blocks than the device can hold at once, and the kernel takes 20 µs or
    more. Half of its time counts as saved, as such kernels gain when their registers are halved; no more than
    leaves the time that the op's bytes and FLOPs take at the device's peak rates.

What to do
    Smaller blocks or more warps for the same block (Triton: ``BLOCK`` down, ``num_warps`` up), fewer values
    in registers at a time, less unrolling.

Source
    CUDA C++ Best Practices Guide, "Occupancy".
"""

from kinetoscope.analysis.kernels.occupancy import fitted
from kinetoscope.findings.rule import *

LONG_NS = 20_000
OCCUPANCY = 0.25
GAIN = 0.5
# Warps of their own kind: software-pipelined loads and tensor cores do not need many.
PIPELINED = ("matmul", "convolution", "attention", "template", "communication", "copy")


def find(view: RankView) -> Findings:
    device = view.device
    if device is None or device.multiprocessors is None:
        return
    long = view.known.filter((pl.col("part") == "compute") & (pl.col("duration_ns") >= LONG_NS))
    long = long.filter(~pl.col("category").cast(pl.String).is_in(PIPELINED))
    kernels = (
        fitted(long, device)
        .filter(
            (pl.col("occupancy") <= OCCUPANCY)
            & (pl.col("blocks") > pl.col("resident") * device.multiprocessors)
        )
        .with_columns(saved_ns=pl.col("duration_ns") * GAIN)
    )
    kernels = savings.within_peaks(view, kernels)
    basis = "half of the kernels' time, an estimate, within the device's peak rates"
    for group, saving in savings.heaviest(view, kernels, "name", basis=basis):
        longest = group.sort("duration_ns", descending=True)
        first = longest.row(0, named=True)
        shared = (first["shared_memory_bytes"] or 0) / 1024
        yield Finding(
            subject=first["name"],
            title=f"{short_name(first['name'])} keeps {first['occupancy']:.0%} of a multiprocessor's threads "
            f"resident ({first['registers']} registers a thread, {shared:.0f} KiB shared)",
            saving=saving,
            at_most="medium",
            evidence=[evidence.of(view, f"{len(group)} launches", longest)],
            advice="Smaller blocks, more warps, or fewer values in registers at a time.",
            snippet="kernel[grid](…, BLOCK=1024, num_warps=4)",
            source=evidence.source(view, group["op"]),
            proof=commands.bench(view, first["name"]),
        )
