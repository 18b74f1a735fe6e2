"""A long kernel with fewer blocks than the device has multiprocessors.

What it finds
    Kernels of 20 µs and more whose grid leaves multiprocessors without a block.

Why it is slow
    A block runs on one multiprocessor. Eight blocks on a device of 132 use a sixteenth of it, at any block
    size.

How it decides
    At most half of the device's multiprocessors have a block. Cut finer, the kernel would take
    blocks/multiprocessors of its time, and no less than its op's bytes and FLOPs take at the device's peak
    rates, where shapes were recorded. Communication kernels, small on purpose, are left out.

What to do
    Cut the work along another dimension: a scan or reduction in pieces, split-K, more heads or rows in
    one launch. How a library divides its own work cannot be changed from outside: another layout or shape
    makes it take another kernel, and what that saves is not predicted. For cuDNN's batch normalization in
    NCHW, one block a channel, that is channels_last: it saved a quarter of an EfficientNet's step (H200,
    float32). It cost a U-Net a third of its own: measure.

Source
    CUDA C++ Best Practices Guide, "Thread and Block Heuristics".
"""

import re

from kinetoscope.analysis.kernels.occupancy import blocks
from kinetoscope.findings.rule import *

BLOCK_A_CHANNEL = r"cudnn::bn_\w*1C11"
OF_A_LIBRARY = r"cudnn|cublas|nvjet|_xmma_|cutlass|^Cijk_|miopen|rocblas"
CHANNELS_LAST = "model = model.to(memory_format=torch.channels_last)  # and the images"
LONG_NS = 20_000  # shorter ones are as long as a launch: more blocks would save nothing
USED = 0.5  # above it, some multiprocessors have one block more than others, and cutting finer gains little


def find(view: RankView) -> Findings:
    device = view.device
    if device is None or device.multiprocessors is None:
        return
    processors = device.multiprocessors
    long = view.known.filter((pl.col("part") == "compute") & (pl.col("duration_ns") >= LONG_NS))
    kernels = blocks(long).filter(pl.col("blocks") <= USED * processors)
    kernels = kernels.with_columns(saved_ns=pl.col("duration_ns") * (1 - pl.col("blocks") / processors))
    kernels = savings.within_peaks(view, kernels)
    basis = f"the same work spread over {processors} multiprocessors, within the device's peak rates"
    for group, saving in savings.heaviest(view, kernels, "name", basis=basis):
        longest = group.sort("duration_ns", descending=True)
        name, few, took = longest.select("name", "blocks", "duration_ns").row(0)
        if re.search(OF_A_LIBRARY, name):
            saving = savings.not_predicted(saving, "a library chose the kernel, and how it divides its work")
        yield Finding(
            subject=name,
            title=f"{short_name(name)} uses {few} blocks on {processors} multiprocessors and takes "
            f"{numbers.time(took / 1000)}",
            saving=saving,
            at_least="info",
            evidence=[evidence.of(view, f"{len(group)} launches", longest)],
            advice=_advice(view, name),
            snippet=CHANNELS_LAST if re.search(BLOCK_A_CHANNEL, name) else None,
            source=evidence.source(view, longest["op"]),
            proof=commands.bench(view, name),
        )


def _advice(view: RankView, name: str) -> str:
    if re.search(BLOCK_A_CHANNEL, name):
        return (
            "In NCHW cuDNN's batch normalization has one block a channel: try channels_last, which takes "
            "another kernel. Convolutions get faster or slower by it: measure."
        )
    if re.search(OF_A_LIBRARY, name):
        larger = "a larger batch, or other sizes," if trains(view) else "other sizes, or another library,"
        return f"A library chose this kernel: {larger} may give it more blocks."
    return "Cut the work along another dimension, so that every multiprocessor has some."
