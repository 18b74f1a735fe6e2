"""The measures that are in force in a program already: no advice repeats them, or what was tried and
failed."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.compiled.regions import compiled
from kinetoscope.analysis.events.makers import maker
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.events.torch_names import AUTOGRAD_NODE, GRAPH_LAUNCH, OPTIMIZER, SYNCHRONIZATION
from kinetoscope.compilation.model import Failure
from kinetoscope.findings.rank_view import RankView

A_TENTH = 0.1
LISTED = 3  # ops that are launched one by one

# Makers whose devices replay captured graphs under torch.
WITH_GRAPHS = ("NVIDIA", "AMD", None)


@dataclass(frozen=True)
class Remedy:
    """Advice, and the ``mode`` of torch.compile with which `kinetoscope tune` can try it."""

    advice: str
    snippet: str | None = None
    mode: str | None = None


def compiles(view: RankView) -> bool:
    """Whether compiled code launches a tenth of the work or more; one compiled helper of a library does
    not."""
    launches = view.trace.device_events["launch"].drop_nulls().n_unique()
    return len(compiled(view.trace)) >= max(1, A_TENTH * launches)


def captures(view: RankView) -> bool:
    """Whether some work is launched by replaying a graph."""
    return bool(matching(view.trace.host_events, "name", GRAPH_LAUNCH).any())


def trains(view: RankView) -> bool:
    """Whether the program trains: a larger batch makes that faster, and a single answer of a server
    slower."""
    return bool(matching(view.trace.host_events, "name", f"{AUTOGRAD_NODE}|{OPTIMIZER}").any())


def capturable(view: RankView) -> bool:
    """Whether a CUDA graph could replay most of the step: a server's model, whatever waits around it; a step
    of training only if nothing waits in it."""
    return not trains(view) or not _waits(view)


def blocked(view: RankView) -> tuple[Failure, ...]:
    """The functions that torch.compile gave up, so that they run eagerly; not those beyond its limit of
    recompilations."""
    compilation = view.run.compilation
    if compilation is None:
        return ()
    done = {(f.function, f.file) for f in compilation.frames if f.status == "ok" and f.dynamo_ops}
    place = {f.index: (f.function, f.file) for f in compilation.frames}
    return tuple(
        failure
        for failure in compilation.failures
        if failure.runs_eagerly and not failure.hit_limit and place.get(failure.frame) not in done
    )


def fewer_launches(view: RankView) -> Remedy:
    """The measures that give the device more work behind each launch, and that the program does not use
    yet."""
    if gave_up := blocked(view):
        return Remedy(f"torch.compile gave up on {gave_up[0].function}: remove what blocks it first.")
    larger = "larger batches, " if trains(view) else ""
    if maker(view.trace) not in WITH_GRAPHS:
        return Remedy(f"Put more work behind each launch ({larger}torch.compile).")
    if captures(view):
        return Remedy(f"Graphs are replayed already; launched one by one: {_outside_graphs(view)}.")
    mode = "reduce-overhead"
    snippet = f'model = torch.compile(model, mode="{mode}")'
    if why := _skipped_graphs(view):
        return Remedy(f"CUDA graphs were requested and skipped: remove the reason ({why}).")
    if compiles(view):
        return Remedy("Replay the compiled code as a CUDA graph, if its shapes are fixed.", snippet, mode)
    waits = view.per_step(_waits(view))
    fixed = "if its shapes are fixed"
    if round(waits):
        called = numbers.count(round(waits), "call")
        fixed += f" and nothing in it waits for the device ({called} per {view.unit} now)"
    advice = (
        f"Put more work behind each launch ({larger}torch.compile), or replay the whole step as a CUDA graph "
        f"{fixed}."
    )
    return Remedy(advice, snippet, mode)


def _waits(view: RankView) -> int:
    """The ops that wait for the device, such as ``nonzero``: no graph can contain them."""
    host = view.trace.host_events
    calls = view.inside(view.host(SYNCHRONIZATION))
    callers = host.select("name")[calls["parent"].drop_nulls()]
    return int(matching(callers, "name", "^aten::").sum())


def _outside_graphs(view: RankView) -> str:
    """The ops that launch most of the work outside of graphs."""
    host = view.trace.host_events
    launched = view.work.drop_nulls("launch")
    by_graph = matching(host, "name", GRAPH_LAUNCH).gather(launched["launch"])
    ops = launched.filter(~by_graph).drop_nulls("op_name").group_by(pl.col("op_name").cast(pl.String)).len()
    names = ops.sort("len", "op_name", descending=[True, False])
    return ", ".join(names["op_name"].head(LISTED)) or "little"


def _skipped_graphs(view: RankView) -> str | None:
    frames = view.run.compilation.frames if view.run.compilation else ()
    return next((frame.cudagraphs_skipped for frame in frames if frame.cudagraphs_skipped), None)
