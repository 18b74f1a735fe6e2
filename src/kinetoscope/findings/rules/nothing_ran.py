"""A compiled function was called and launched nothing.

What it finds
    A ``Torch-Compiled Region`` that in no call of the recording launches device work.

Why it is slow
    It is not slow, it is empty: the function's result is not used, so the compiler removed the computation as
    dead code. A benchmark of it measures the wrapper.

How it decides
    A recording of a machine with a device; a region id none of whose entries encloses a launch. It saves
    nothing: fixed, the function does its work, which takes longer than none.

What to do
    Return the result (and use it). Check that the function does what the eager one did before comparing their
    times.

Source
    The forum thread "Profiling torch.compile CUDA code": "Return the output as otherwise torch.compile might
    be smart enough to eliminate dead code".
"""

from kinetoscope.analysis.compiled.regions import compiling, region_of_work, regions
from kinetoscope.findings.rule import *


def find(view: RankView) -> Findings:
    entered = regions(view.trace)
    if entered.is_empty() or not view.trace.devices:
        return
    # A compilation inside a region launches work of its own (autotuning), which is no sign of the region's
    # work.
    if len(compiling(view.trace, *view.bounds)) and not len(view.work):
        return
    # Regions nest: what an inner one launches, the outer one launches too; and the outer
    # region of a broken graph may hold nothing itself.
    working = region_of_work(view.trace).drop_nulls().unique()
    names = view.trace.host_events["name"][working].unique()
    nested = entered.filter(pl.col("parent").is_in(entered["id"].implode()))["parent"]
    empty = entered.filter(~pl.col("name").is_in(names.implode()) & ~pl.col("id").is_in(nested.implode()))
    alone = view.trace.device_events.is_empty()
    level: Severity = "high" if alone else "low"
    for (name,), group in empty.group_by("name", maintain_order=True):
        yield Finding(
            subject=str(name),
            title=f"{name} launched nothing in {numbers.count(len(group), 'call')}"
            + (": no work reached the device in the whole recording" if alone else ""),
            saving=savings.nothing("fixed, the function does its work, which takes longer than none"),
            at_least=level,
            at_most=level,
            evidence=[evidence.of(view, "the calls", group)],
            advice="Return the result and use it: the compiler removes a result that is not used.",
            snippet="return D",
            source=evidence.source(view, group["id"]),
        )
