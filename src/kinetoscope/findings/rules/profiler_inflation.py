"""Recording more than the events made the step longer.

What it finds
    Recordings of shapes, stacks, memory or FLOPs that know how long a step takes without the profiler (those
    of ``kinetoscope run``), where with it the step takes a quarter longer or more.

Why it is slow
    Recording an op costs the host about a microsecond; shapes, stacks and memory several more. The device's
    times are right, but idle time and all times of the host are too large.

How it decides
    Step time in the recording over the median step time without the profiler: 1.25 or more. Where nothing but
    events was recorded there is nothing to do: the recording's weaknesses say so.

What to do
    Record without ``--shapes``, ``--stacks``, ``--memory``. The savings are those of the step without the
    profiler.

Source
    The design's "how much profiling inflated the step".
"""

from kinetoscope.findings.rule import *

FACTOR = 1.25
EXTRA = ("shapes", "stacks", "memory", "flops")  # what `kinetoscope run` records on request


def find(view: RankView) -> Findings:
    own = view.as_it_runs
    if own is None or own.inflation is None or own.recorded_us is None or own.inflation < FACTOR:
        return
    if not (extra := _extra(view)):
        return
    yield Finding(
        title=f"The recorded step takes {own.inflation:.1f} times as long as without the profiler "
        f"({numbers.time(own.recorded_us)} against {numbers.time(own.step_us)})",
        saving=savings.OF_THE_PROFILER,
        at_least="info",
        evidence=evidence.of_steps(view, "the recorded steps"),
        advice=f"Record without {', '.join(extra)}. Savings refer to the step without the profiler. Host and "
        "idle times as recorded include the profiler's overhead.",
    )


def _extra(view: RankView) -> list[str]:
    """The options that recorded more than events; of a trace alone, what is in it."""
    if view.run.manifest and view.run.manifest.options:
        return [f"--{name}" for name in EXTRA if view.run.manifest.options.get(name)]
    host = view.trace.host_events
    arguments = view.trace.host_arguments
    stacks = matching(host, "category", "^python_function$").any() or arguments["call_stack"].count()
    found = {"--shapes": arguments["input_dims"].count(), "--stacks": stacks}
    return [option for option, recorded in found.items() if recorded]
