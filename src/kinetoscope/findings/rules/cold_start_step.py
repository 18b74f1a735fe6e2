"""The first recorded step pays one-off costs.

What it finds
    A first step much longer than the others, or single launches that take a millisecond: kernels being
    loaded, workspaces being allocated, cuBLAS choosing an algorithm. Inside an annotation it shows as a dead
    window between entering ``record_function(…)`` and the first op.

Why it is slow
    The cost is real but is paid once. It makes means and shares of a short recording wrong.

How it decides
    The first step's host time is at least 1.5 times the median of the later steps and 125 µs longer. Without
    steps: a call of the runtime, or an op before its own launch, that took a millisecond or more while the
    device had nothing to do. Where steps were let pass before, as ``kinetoscope run`` does, there are no
    start-up costs.

What to do
    Run some steps before the profiler starts, and use the schedule's warm-up:
    ``torch.profiler.schedule(wait=1, warmup=3, active=5)``. Let a program that ``kinetoscope run`` records
    make more steps.

Source
    "Profiling in PyTorch", part 1: "Why does ProfilerStep#2 take so long?" and the cheat-sheet's CPU lane.
"""

from kinetoscope.findings.rule import *

FACTOR = 1.5  # steps of one program differ by tens of per cent on the host, not by half
# A profiler that has just begun to record costs its first step some 100 µs (70 to 113 µs in the warm
# recordings that this was written on).
EXTRA_NS = 125_000
RUNTIME = r"^(cuda|hip)_(runtime|driver)$"
LOADING_NS = 1_000_000  # a launch takes 5 to 20 µs; loading a module on first use takes milliseconds
MUCH = 0.1  # of the recording; what is paid once is never more than medium


def find(view: RankView) -> Findings:
    return _first_step(view) if view.unit == "step" else _first_launches(view)


def _first_step(view: RankView) -> Findings:
    steps = view.trace.steps
    if len(steps) < 2 or view.settled or (view.record and view.record.steps.warmup_steps):
        return
    first, usual = int(steps["duration_ns"][0]), float(steps[1:].select(pl.median("duration_ns")).item())
    extra = first - usual
    if first < FACTOR * usual or extra < EXTRA_NS:
        return
    name = "The first step" if view.cold else steps["name"][0]
    yield _finding(
        view,
        extra,
        title=f"{name} takes {numbers.time(first / 1000)} where later steps take "
        f"{numbers.time(usual / 1000)}: start-up costs are in the recording",
        basis="the first step's excess, spread over the recorded steps; it is paid once",
        shown=[evidence.of(view, "the first recorded step", steps.head(1)), *_dead_window(view)],
    )


def _first_launches(view: RankView) -> Findings:
    host = view.trace.host_events
    # A long launch with the device idle behind it is loading; with the device busy, the queue was full.
    waited = view.gaps.filter((pl.col("cause") == "host-op") & (pl.col("idle_ns") >= LOADING_NS))
    caused = host[waited["host_event"].unique().sort()]
    slow = caused.filter(
        matching(caused, "category", RUNTIME) | caused["id"].is_in(view.trace.device_events["op"].implode())
    )
    waited = waited.filter(pl.col("host_event").is_in(slow["id"].implode()))
    total = int(waited["idle_ns"].sum())
    if slow.is_empty() or total < 0.01 * view.length_ns:
        return
    names = ", ".join(slow["name"].cast(pl.String).unique(maintain_order=True).head(3))
    yield _finding(
        view,
        total,
        title=f"First use costs {numbers.time(total / 1000)}: kernels and libraries are loaded in {names}",
        basis="idle time in launches of a millisecond and more; paid once",
        shown=[evidence.of(view, f"{len(slow)} slow launches", slow)],
    )


def _finding(view: RankView, extra_ns: float, *, title: str, basis: str, shown: list[Evidence]) -> Finding:
    us = view.us(extra_ns)
    level: Severity = "medium" if extra_ns > MUCH * view.length_ns else "low"
    advice = "Warm up before recording, so that what you read is the steady state."
    if view.cold:  # the recorder waited for steps that have settled, and the program made none
        advice = "Let the program make more steps: they are recorded once their time has settled."
    return Finding(
        title=title,
        saving=savings.once(view, us, basis),
        at_least=level,
        at_most=level,
        evidence=shown,
        advice=advice,
        snippet=None if view.cold else "schedule=torch.profiler.schedule(wait=1, warmup=3, active=5)",
    )


def _dead_window(view: RankView) -> Iterable[Evidence]:
    """The gap from entering an annotation of the first step to the first event inside, against later ones."""
    host = view.trace.host_events
    host = host.select("id", "event", "name", "category", "parent", "start_ns")
    notes = host.filter(pl.col("parent").is_in(view.trace.steps["host_event"].implode())).filter(
        pl.col("category").cast(pl.String) == "user_annotation"
    )
    inside = (
        host.filter(pl.col("parent").is_in(notes["id"].implode()))
        .group_by("parent")
        .agg(first_ns=pl.col("start_ns").min(), first=pl.col("name").sort_by("start_ns").first())
    )
    notes = notes.join(inside, left_on="id", right_on="parent").with_columns(
        dead_ns=pl.col("first_ns") - pl.col("start_ns")
    )
    for (name,), group in notes.sort("start_ns").group_by("name", maintain_order=True):
        later = group[1:].select(pl.median("dead_ns")).item()
        dead = int(group["dead_ns"][0])
        if later is not None and dead > 2 * later and dead - later > 5_000:
            yield Evidence(
                f"dead window of {numbers.time(dead / 1000)} between entering {name} and {group['first'][0]} "
                f"({numbers.time(later / 1000)} in later steps)",
                int(group["start_ns"][0]) / 1000,
                int(group["first_ns"][0]) / 1000,
                (int(group["event"][0]),),
            )
