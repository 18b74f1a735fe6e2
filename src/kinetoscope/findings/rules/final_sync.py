"""The wait at the end of the recording is the profiler's.

What it finds
    ``cudaDeviceSynchronize`` (``hipDeviceSynchronize``) after the last recorded step: the profiler waits for
    the device to finish, so that it can collect what ran.

Why it is slow
    It is not the program's cost. Its length is mostly the work that was still queued: long in a program that
    launches far ahead of its device, short in one that waits for launches.

How it decides
    The last synchronisation of the recording comes after the last launch, and the program had not itself
    waited for the device between its last launch and the end of its last step.

What to do
    Leave it out of the reckoning. If the steps' own host times matter, end each step with a synchronisation
    while profiling.

Source
    "Profiling in PyTorch", part 1: "Why is cudaDeviceSynchronize so big?"
"""

from kinetoscope.analysis.events.torch_names import SYNCHRONIZATION
from kinetoscope.findings.rule import *

FLUSH = r"^(cuda|hip)DeviceSynchronize$"


def find(view: RankView) -> Findings:
    flushes = view.host(FLUSH).sort("start_ns")
    launches = view.trace.host_events["start_ns"][view.trace.device_events["launch"].drop_nulls()]
    if flushes.is_empty() or launches.is_empty():
        return
    last = flushes.tail(1)
    at, duration = last.select("start_ns", "duration_ns").row(0)
    since = (pl.col("start_ns") > launches.max()) & (pl.col("start_ns") < at)
    if (launches > at).any() or len(view.host(SYNCHRONIZATION).filter(since)):
        return
    pending = view.trace.device_events.filter(pl.col("start_ns") + pl.col("duration_ns") > at)
    still = (
        f"{len(pending)} device events had still to run"
        if len(pending)
        else f"nothing was left to run, and the device had been busy {view.busy_share:.0%} of the time"
    )
    yield Finding(
        title=f"The {numbers.time(duration / 1000)} of {last['name'][0]} at the end are the profiler's "
        f"flush: {still}",
        saving=savings.OF_THE_PROFILER,
        at_least="info",
        evidence=[evidence.of(view, "the flush", last)],
        advice="Leave it out of the reckoning.",
    )
