"""CUDA graphs were requested and not used.

What it finds
    Compiled functions with ``mode="reduce-overhead"`` or ``"max-autotune"`` whose graph Inductor did not
    record.

Why it is slow
    The launches that the mode was chosen to save are all there.

How it decides
    The compile log's reason: inputs on the CPU, mutated inputs, dynamic shapes, ops that cannot be captured.
    The saving is the recording's launch-bound idle time; without a recording none is claimed. Neither where
    an entry into compiled code launches ten times or less: a graph's own launch, copies of its inputs and
    checks cost as much (two small programs took 16 and 32 µs longer with a graph than without).

What to do
    By the reason: keep everything on the device, clone an input instead of changing it, fix the
    shapes.

Source
    PyTorch documentation, "CUDAGraph Trees", limitations.
"""

from kinetoscope.analysis.compiled.regions import compiled, regions, replaying
from kinetoscope.findings.rule import *

FEW = 10  # launches an entry


def find(view: RankView) -> Findings:
    replayed = replaying(view.trace)
    for frame in view.compilation.frames if view.compilation else ():
        why = frame.cudagraphs_skipped
        if why is None or frame.compile_id in replayed:
            continue
        saving = _saving(view)
        yield Finding(
            subject=f"{frame.function} {frame.compile_id}",
            title=f"CUDA graphs were requested and not used in {frame.function or frame.compile_id}: {why}",
            saving=saving,
            at_least="medium" if saving.share < LOW else None,
            evidence=evidence.of_steps(view, f"{frame.compile_id}: {why}"),
            advice=f"Remove the reason ({why}), or drop the mode.",
            snippet="x = x.clone()  # instead of changing the input; and keep every tensor on the device",
            source=evidence.at_line(frame.file, frame.line),
        )


def _saving(view: RankView) -> Saving:
    if view.work.is_empty():
        return savings.nothing("not known: no recording of the launches")
    late = view.idle("launch-bound")
    saving = savings.captured(view, late, "the idle time that ends with a late launch, all of it")
    launches = len(compiled(view.trace)) / max(1, len(regions(view.trace)))
    if launches > FEW:
        return saving
    return savings.not_predicted(saving, f"a graph costs about what {launches:,.0f} launches an entry do")
