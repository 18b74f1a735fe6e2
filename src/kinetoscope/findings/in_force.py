"""The measures that are in force in a program already: no advice repeats them, or what was tried and
failed."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
from msgspec import Struct

from kinetoscope import numbers
from kinetoscope.analysis.compiled.regions import compiled, continued, pieces
from kinetoscope.analysis.events.backward import passes, recomputed
from kinetoscope.analysis.events.makers import maker
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.events.torch_names import (
    AUTOGRAD_NODE,
    GRAPH_LAUNCH,
    OPTIMIZER,
    SCALER,
    SYNCHRONIZATION,
)
from kinetoscope.analysis.kernels.occupancy import filled
from kinetoscope.analysis.serving.client import GENERATES
from kinetoscope.analysis.serving.steps import marks, steps
from kinetoscope.compilation.model import Failure
from kinetoscope.findings.rank_view import RankView
from kinetoscope.trace.schema import whole

A_TENTH = 0.1
MOST = 0.5  # of the launches: with fewer, what is not compiled comes first
WORTH = 0.9  # of a sample's time: what saves less is not worth another batch
# Of the time in which the device waits for launches, what is saved without a graph of the whole step: where
# all of it was promised, three programs in docs/evidence/everyday.md saved 0.46 to 0.63 of that.
COMPILED = 0.5
MANY_WAITS = 8  # in a step of training: fewer can be moved out of it
LISTED = 3  # ops that are launched one by one

# What has serving engines replay their steps as graphs: of requests that generate, of prompts.
GRAPHS_OF_ENGINES = {
    "vLLM": ("without --enforce-eager; cudagraph_capture_sizes", "without --enforce-eager"),
    "SGLang": ("without --disable-cuda-graph; --cuda-graph-max-bs", "--enable-piecewise-cuda-graph"),
    "TensorRT-LLM": ("cuda_graph_config", "torch_compile_config with enable_piecewise_cuda_graph"),
}

WITH_GRAPHS = ("NVIDIA", "AMD", None)  # makers whose devices replay captured graphs under torch


class Remedy(Struct, frozen=True):
    """Advice, the ``mode`` of torch.compile with which `kinetoscope tune` can try it, and the ``part`` of the
    time in which the device waits for launches that it saves: for those inside compiled graphs, if it is of
    these alone."""

    advice: str
    snippet: str | None = None
    mode: str | None = None
    part: float = 1.0
    of_graphs: bool = False


def compiles(view: RankView, share: float = A_TENTH) -> bool:
    """Whether compiled code launches so much of the work; a library's compiled helper does not."""
    return len(compiled(view.trace)) >= max(1, share * len(view.launched))


def broken(view: RankView) -> bool:
    """Whether graph breaks cut compiled functions into pieces in the recorded steps."""
    return not view.inside(pieces(view.trace)).is_empty()


def inside_graphs(view: RankView, late: pl.DataFrame) -> pl.DataFrame:
    """The rows of ``gaps`` that end with a launch inside a compiled graph: not the first of its call."""
    launches = view.trace.device_events["launch"].gather(late["next"])
    return late.filter(launches.is_in(continued(view.trace).implode()).fill_null(False))


def captures(view: RankView) -> bool:
    """Whether some work is launched by replaying a graph."""
    return bool(matching(view.trace.host_events, "name", GRAPH_LAUNCH).any())


def trains(view: RankView) -> bool:
    """Whether the program trains: a larger batch makes that faster, and a server's single answer slower. Of a
    step that is replayed as a graph its kernels alone show it."""
    on_host = matching(view.trace.host_events, "name", f"{AUTOGRAD_NODE}|{OPTIMIZER}").any()
    return bool(on_host or matching(view.work, "category", "^optimizer$").any())


def engine(view: RankView) -> str | None:
    """The serving engine that marks its steps; None where none does."""
    found = marks(view.trace)
    return str(found.table["engine"][0]) if found.found_by == "annotation" else None


def asked(view: RankView, options: Mapping[str, str]) -> str:
    """Behind a piece of advice, how the engine that marks the steps is asked for it, in parentheses; empty
    where it is none of those that have an option, or the server is of one's own."""
    option = options.get(engine(view) or "")
    return f" ({option})" if option else ""


def capturable(view: RankView) -> bool:
    """Whether a CUDA graph could replay most of the step: one of training only if nothing waits in it."""
    return not trains(view) or not _waits(view)


def blocked(view: RankView) -> tuple[Failure, ...]:
    """The functions that torch.compile gave up, which run eagerly; not those beyond its recompile limit."""
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
    """The measures that give the device more work behind each launch and are not in use yet."""
    if gave_up := blocked(view):
        return Remedy(f"torch.compile gave up on {gave_up[0].function}: remove what blocks it first.")
    generates = view.record is not None and view.record.steps.found_by == "request"
    larger = "larger batches, " if trains(view) else "several prompts at once, " if generates else ""
    gain = larger_batch(view) if larger else ""
    if maker(view.trace) not in WITH_GRAPHS:
        return Remedy(f"Put more work behind each launch ({larger}torch.compile).{gain}")
    if captures(view):
        return Remedy(_outside_graphs(view))
    if (by := engine(view)) in GRAPHS_OF_ENGINES:
        of_tokens, of_prompts = GRAPHS_OF_ENGINES[by]
        if steps(view.trace)["phase"].is_in(GENERATES).any():
            what, how = "the steps that generate, one for each batch size that is served", of_tokens
        else:
            what, how = "what prompts run between two attentions", of_prompts
        return Remedy(f"Replay CUDA graphs of {what} ({by}: {how}).")
    mode = "reduce-overhead"
    snippet = f'model = torch.compile(model, mode="{mode}")'
    frames = view.run.compilation.frames if view.run.compilation else ()
    if why := next((frame.cudagraphs_skipped for frame in frames if frame.cudagraphs_skipped), None):
        return Remedy(f"CUDA graphs were requested and skipped: remove the reason ({why}).")
    if compiles(view, MOST):
        how = "Remove its graph breaks, then replay" if broken(view) else "Replay"
        advice = f"{how} the compiled code as a CUDA graph, if its shapes are fixed."
        return Remedy(advice, snippet, mode, of_graphs=True)
    if why := _on_the_host(view):
        return Remedy(
            f"Put more work behind each launch ({larger}torch.compile). One CUDA graph of the whole step is "
            f"not possible as it stands: {why}.{gain}",
            "model = torch.compile(model)",
            "default",
            COMPILED,
        )
    waits = view.per_step(_waits(view))
    fixed = "once its shapes are fixed (they vary now)" if shapes_vary(view) else "if its shapes are fixed"
    if round(waits):
        called = numbers.count(round(waits), "call")
        fixed += f" and nothing in it waits for the device ({called} per {view.unit} now)"
    advice = (
        f"Put more work behind each launch ({larger}torch.compile), or replay the whole step as a CUDA graph "
        f"{fixed}.{gain}"
    )
    return Remedy(advice, snippet, mode)


def _on_the_host(view: RankView) -> str | None:
    """Why the host decides in the middle of a step what comes next, so that no graph can hold all of it."""
    if len(view.host(SCALER)):
        return "its gradient scaler decides on the host whether the optimizer steps"
    if len(view.inside(recomputed(view.trace))):
        return "checkpointing sets the random numbers' state from the host"
    if trains(view) and (waits := round(view.per_step(_waits(view)))) > MANY_WAITS:
        return f"{waits} calls in it wait for the device; a graph can hold what lies between two of them"
    each = passes(view.trace).drop_nulls("step").group_by("step").agg(pl.len(), pl.n_unique("shape"))
    if len(each) and whole(each["len"].min()) > 1 and whole(each["shape"].max()) == 1:
        return f"it accumulates the gradients of {each['len'].min()} batches"
    return None


def shapes_vary(view: RankView) -> bool:
    """Whether kernels' grids differ from step to step."""
    kernels = view.work.select("name", "grid", "step").filter(view.work["kind"] == "kernel")
    times = kernels.group_by("name", "grid", "step").len("times").group_by("name", "grid")
    counts = times.agg(same=(pl.len() == view.steps) & (pl.n_unique("times") == 1), launches=pl.sum("times"))
    return whole(counts.filter(~pl.col("same"))["launches"].sum()) > A_TENTH * len(kernels)


def larger_batch(view: RankView) -> str:
    """The time that a sample would take in larger batches, in a sentence; empty where it is not known to be
    less. The host does the same for a larger batch, and a kernel that does not fill the device takes no
    longer until it does. All memory is taken to grow with it."""
    device, memory = view.device, view.peak_and_room
    if device is None or memory is None:
        return ""
    work = filled(view.work, device)
    late = view.us_of(view.idle("launch-bound"), "idle_ns") / max(view.step_us, 1e-9)
    others_us = max(0.0, view.own_step_us * (1 - late) - view.own_busy_us)
    scale = view.own_busy_us / max(view.us_of(work), 1e-9)
    is_fixed = matching(work, "category", "^optimizer$")
    found: list[tuple[int, float]] = []
    for times in (2, 4, 8):
        longer = pl.when(is_fixed).then(1.0).otherwise(pl.max_horizontal(1.0, times * pl.col("filled")))
        busy_us = view.us(work.select((pl.col("duration_ns") * longer).sum()).item()) * scale
        share = max(view.own_step_us, busy_us + times * others_us) / (times * view.own_step_us)
        if times * memory[0] <= memory[1] and share < WORTH * (found[-1][1] if found else 1.0):
            found.append((times, share))
    if not found:
        return ""
    times, share = found[0]
    first = f"{share:.0%} of its time at {times} times the batch"
    more = "".join(f", {share:.0%} at {times}" for times, share in found[1:])
    return f" By the kernels' grids a sample takes {first}{more}, which the memory allows."


def _waits(view: RankView) -> int:
    """The ops that wait for the device, such as ``nonzero``: no graph can contain them."""
    host = view.trace.host_events
    calls = view.inside(view.host(SYNCHRONIZATION))
    callers = host.select("name")[calls["parent"].drop_nulls()]
    return int(matching(callers, "name", "^aten::").sum())


def _outside_graphs(view: RankView) -> str:
    """The advice where graphs are replayed already: take the ops that launch most other work into them."""
    if prompts_alone(view):
        how = GRAPHS_OF_ENGINES[by][1] if (by := engine(view)) in GRAPHS_OF_ENGINES else ""
        asked_for = f" ({by}: {how})" if how else ""
        return (
            "Steps that generate are replayed as CUDA graphs already; those that read prompts are launched "
            f"one by one: compile the model, and replay what runs between two attentions{asked_for}."
        )
    host = view.trace.host_events
    launched = view.work.drop_nulls("launch")
    by_graph = matching(host, "name", GRAPH_LAUNCH).gather(launched["launch"])
    ops = launched.filter(~by_graph).drop_nulls("op_name").group_by(pl.col("op_name").cast(pl.String)).len()
    names = ops.sort("len", "op_name", descending=[True, False])
    if not len(names):
        return "CUDA graphs launch nearly all of it already: replay fewer and larger ones."
    share = whole(names["len"].sum()) / max(1, len(launched))
    return (
        f"CUDA graphs are replayed already. Launched one by one are {share:.0%} of the work, most by "
        f"{', '.join(names['op_name'].head(LISTED))}: capture that as well, or compile it."
    )


def prompts_alone(view: RankView) -> bool:
    """Whether a server replays steps that generate, each as one graph, and launches prompts one by one."""
    found = steps(view.trace)
    generates = found["phase"].is_in(GENERATES)
    graphs, others = found.filter(generates)["graph"], found.filter(~generates)["graph"]
    return set(graphs) == {"full"} and set(others) == {"eager"}
