"""Time in which the profiler fetched a buffer.

What it finds
    ``Activity Buffer Request`` events: CUPTI requests a buffer for its records, at the first launch and
    whenever one is full.

Why it is slow
    It is the profiler's cost, not the program's: one to three milliseconds in which launches and kernels
    stand still. It explains the offset between the CPU and the GPU lane at the beginning, and single gaps
    later.

How it decides
    Such events inside the window, with the idle time of the device that coincides with them; not in
    recordings of ``kinetoscope run``, whose steps without the profiler show what is the program's.

What to do
    Nothing in the program. Give the schedule a warm-up (``schedule(warmup=3, …)``) so that the first request
    falls before the recording, and do not read gaps at these places as yours.

Source
    "Profiling in PyTorch", part 1: "Why is there an offset of ~2.5 ms between the CPU and GPU lanes?"
"""

from kinetoscope.findings.rule import *


def find(view: RankView) -> Findings:
    requests = view.inside(view.host(r"^Activity Buffer Request$"))
    if requests.is_empty() or view.unprofiled_us is not None:
        return
    took = int(requests["duration_ns"].sum()) / 1000
    idle = intervals.total(view.idle_during(requests)) / 1000
    yield Finding(
        title=f"The profiler fetched buffers for {numbers.time(took)} in the recording; "
        f"{numbers.time(idle)} of idle time are its, not yours",
        saving=savings.OF_THE_PROFILER,
        at_least="info",
        evidence=[evidence.of(view, f"{len(requests)} buffer requests", requests)],
        advice="Warm the profiler up, and leave gaps at these places alone.",
        snippet="schedule=torch.profiler.schedule(wait=1, warmup=3, active=5)",
    )
