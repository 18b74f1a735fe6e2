"""Part of what ran is not in the file.

What it finds
    Launches whose kernel is not in the file, and kernels whose launch is not.

Why it is slow
    It is not; but every share and every busy percentage of such a recording is wrong by what is missing.

How it decides
    At least 1 % of the launches, and at least five, have no device work, or as many device events no launch.
    Work that was launched before the recording began, and calls for memsets and copies (of no bytes they make
    no work), do not count.

What to do
    Record fewer steps; fewer streams; fewer extras (``profile_memory=False``, no stacks); synchronise
    before the profiler stops. Then check ``kinetoscope report``'s health section.

Source
    Kineto issues on dropped activity buffers; the contract's health section.
"""

from kinetoscope.analysis.events.torch_names import DMA
from kinetoscope.analysis.health.verdict import WORK_LAUNCH
from kinetoscope.analysis.time.busy import unanswered_launches
from kinetoscope.findings.rule import *

SHARE = 0.01
COUNT = 5


def find(view: RankView) -> Findings:
    device = view.trace.device_events
    if not device["launch"].count():
        return
    # A kernel that runs while nothing has been launched yet belongs to what came before the recording.
    first = device["start_ns"].filter(device["launch"].is_not_null()).min()
    orphans = device.filter(
        pl.col("launch").is_null() & (pl.col("start_ns") > first) & ~matching(device, "name", DMA)
    )
    # A memset or copy of no bytes makes no device work: cuDNN calls hundreds of those.
    lost = unanswered_launches(view.trace)
    lost = lost.filter(matching(lost, "name", WORK_LAUNCH))
    launches = int(matching(view.trace.host_events, "name", WORK_LAUNCH).sum())
    missing: list[str] = []
    shown: list[Evidence] = []
    if len(lost) >= max(COUNT, SHARE * launches):
        missing.append(f"{len(lost):,} of {launches:,} kernel launches have no device work")
        shown.append(evidence.of(view, "launches without device work", lost))
    if len(orphans) >= max(COUNT, SHARE * len(device)):
        missing.append(f"{len(orphans):,} of {len(device):,} device events have no launch")
        shown.append(evidence.of(view, "device events without a launch", orphans))
    if missing:
        yield Finding(
            title=f"The recording is incomplete: {'; '.join(missing)}",
            saving=savings.nothing("nothing to save; what is missing is not counted anywhere"),
            at_least="medium",
            evidence=shown,
            advice="Record fewer steps and fewer extras, and synchronise before the profiler stops.",
            snippet="torch.cuda.synchronize()\nprofiler.stop()",
        )
