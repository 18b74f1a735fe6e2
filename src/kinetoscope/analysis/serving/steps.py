"""The steps of a server, by where their work was launched: as its engine marks them, else as the calls of its
model recur, else as the launches do."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.cost.formulas import ABSURD
from kinetoscope.analysis.events.enclosing import nearest
from kinetoscope.analysis.events.rows import END, matching
from kinetoscope.analysis.events.torch_names import (
    AUTOGRAD_NODE,
    DEVICE_WAIT,
    GRAPH_LAUNCH,
    MODULE,
    NOT_AN_ANNOTATION,
    OPTIMIZER,
)
from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.serving.shapes import Shape, shapes
from kinetoscope.analysis.serving.worked import on_host, worked
from kinetoscope.analysis.time import intervals
from kinetoscope.trace.captures import is_capture
from kinetoscope.trace.engines import DRAFTING, FAMILIES, SGLANG, SGLANG_DRAFT, EngineStep, Phase, engine_step
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import whole

UNKNOWN = "unknown"
# What is known of a step by its annotation or its shapes.
SAID: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("engine", "phase"), pl.String),
    **dict.fromkeys(
        ("context_requests", "generation_requests", "query_tokens", "kv_tokens", "attention_pairs", "padded"),
        pl.Int64,
    ),
}
COUNTS = list(SAID)[2:]
MARKED = {"name": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64, **SAID}
# A step that takes so many times the median of its like, before two others like it, is warming up.
WARMING = 1.5
LIKE = ["engine", "phase", "batch", "graph"]

# A call of the whole model runs attention in several layers; of one layer in no more than three kernels.
LAYERS = 4
RECURRING = 3  # what recurs less often may be anything
AS_LONG = 0.5  # of the longest pause between launches: pauses this long are between steps as well
ATTENTION = r"(?i)^attention$"
CACHE = r"(?i)cache"  # writes keys and values
BACKWARD = r"(?i)bwd|backward"
# Ranges and functions that say which phase runs in them; of a function its name, not its file's.
PHASE = r"(?i)(?:^|: )(?:[^:]*[^a-z:])?{}(?:ing|d)?(?:[^a-z:][^:]*)?$"
PHASES: dict[Phase, str] = {"prefill": PHASE.format("prefill"), "decode": PHASE.format("decod(?:e)?")}
TRANSFORMERS = r"(^|/)transformers/(generation|models)/"
DIFFUSERS, DENOISING = r"(^|/)diffusers/pipelines/", EngineStep("diffusers", "diffusion")


class Marks(NamedTuple):
    """Steps by the host's clock: ``step`` (its number), ``start_ns``, ``end_ns``, the columns of ``SAID``.

    ``found_by``: ``annotation`` of the engine, ``calls`` of the model, ``graphs`` or ``kernels`` whose
    launches recur; empty where there are no steps. ``phases_by``: ``annotation``, ``shapes`` of what they
    compute, or ``names`` of the program's ranges and functions; empty where nothing tells their phases.
    """

    table: pl.DataFrame
    found_by: str
    phases_by: str = ""


@remembered
def marks(trace: Trace) -> Marks:
    """The steps of a server; none where it trains, no attention recurs, or graphs are only captured."""
    host = trace.host_events
    table = _annotated(trace)
    if is_capture(trace):
        return Marks(table.clear(), "")
    if len(table):
        return Marks(table, "annotation", "annotation")
    attention = _attention(trace)
    trains = matching(host, "name", f"{AUTOGRAD_NODE}|{OPTIMIZER}").any()
    if trains or len(attention) < LAYERS or matching(trace.device_events, "name", BACKWARD).any():
        return Marks(table, "")
    found_by, bounds = "calls", _called(trace, attention)
    if bounds.is_empty() and not on_host(trace):
        found_by, bounds = _launched(trace, attention)
    # As many as the program's own: these are the steps, which have views of their own, but for a server's.
    of_program = len(bounds) <= len(trace.steps)
    if of_program:
        found_by, bounds = "calls", trace.steps.sort("start_ns").select("start_ns", end_ns=END)
    found = _shaped(trace, bounds.with_row_index("step"))
    by_shape = (found["phase"] != UNKNOWN) & (found["engine"] != DENOISING.engine)
    phases_by = "shapes" if by_shape.any() else "names"
    found = _named(trace, attention, found)
    known = set(found["phase"]) - {UNKNOWN}
    # Without a device, what runs a model again and again may be anything: a server decodes.
    if (of_program or on_host(trace)) and not known & {"decode", "mixed", "diffusion"}:
        return Marks(table, "")
    return Marks(found, found_by, phases_by if known else "")


def _annotated(trace: Trace) -> pl.DataFrame:
    """The steps that an engine marks; what its annotation leaves open is what others around it say."""
    host = trace.host_events
    marked = (family for family in FAMILIES if matching(host, "name", family).any())
    families = [_outermost(_of_family(host, family)) for family in marked]
    found = next((family for family in families if len(family)), pl.DataFrame(schema=MARKED))
    for other in families:
        if other is not found and len(other):
            around = found.select("start_ns").join_asof(
                other.select("start_ns", *COUNTS, until_ns="end_ns"), on="start_ns"
            )
            open_then = pl.col("start_ns") < pl.col("until_ns")
            said = around.select(pl.when(open_then).then(pl.col(COUNTS)))
            found = found.with_columns(pl.coalesce(found[name], said[name]).alias(name) for name in COUNTS)
    if len(found) > 1 and _is_open_at_the_end(host, *found.select("start_ns", "end_ns").row(-1)):
        found = found[:-1]
    return found.with_row_index("step")


def _is_open_at_the_end(host: pl.DataFrame, start_ns: int, end_ns: int) -> bool:
    """Whether the recording ended within an annotation: the profiler's last wait lies inside of it."""
    waits = host.filter(matching(host, "name", DEVICE_WAIT))["start_ns"]
    return bool(waits.is_between(start_ns, end_ns).any()) and host.filter(end_ns < END).is_empty()


def _of_family(host: pl.DataFrame, family: str) -> pl.DataFrame:
    marked = matching(host, "name", family)
    if family == SGLANG and marked.any():
        marked |= matching(host, "name", SGLANG_DRAFT)
    marked = host.filter(marked).select(pl.col("name").cast(pl.String), "lane", "start_ns", END)
    steps = [DRAFTING if re.match(SGLANG_DRAFT, name) else engine_step(name) for name in marked["name"]]
    said = [(None,) * len(SAID) if step is None else _said(step) for step in steps]
    return marked.hstack(pl.DataFrame(said, SAID, orient="row")).filter(pl.col("engine").is_not_null())


def _outermost(marked: pl.DataFrame) -> pl.DataFrame:
    """Marks within no other of their thread: a drafting model's own steps are parts of the draft."""
    return intervals.outermost(marked, ["lane"]).sort("start_ns", maintain_order=True).drop("lane")


def _said(step: EngineStep) -> tuple[str | int | None, ...]:
    counts = (
        step.context_requests, step.generation_requests,
        step.query_tokens, step.kv_tokens, step.attention_pairs, step.padded,
    )  # fmt: skip
    return step.engine, step.phase, *(None if n is None or n >= ABSURD else n for n in counts)


def _attention(trace: Trace) -> pl.DataFrame:
    """Launched kernels of attention; without a device its ops."""
    table = worked(trace)
    attends = matching(table, "category", ATTENTION) & ~matching(table, "name", CACHE)
    return table.filter(attends & table["launch"].is_not_null())


def _called(trace: Trace, attention: pl.DataFrame) -> pl.DataFrame:
    """From each call of the model (its module, or a range that the program names) to the next one: of those
    that hold several layers' attention the most frequent, of these the outermost. What says a phase is one
    call, whichever it says: prefill and decode take turns."""
    host = trace.host_events
    says = _says_a_phase(host)
    named = matching(host, "category", "^user_annotation$") & ~matching(host, "name", NOT_AN_ANNOTATION)
    named |= says | (matching(host, "category", "^python_function$") & matching(host, "name", f"^{MODULE}"))
    if not named.any():
        return pl.DataFrame(schema={"start_ns": pl.Int64, "end_ns": pl.Int64})
    level = attention.group_by(row="launch").agg(kernels=pl.len())
    calls: list[pl.DataFrame] = []
    while len(level):
        calls.append(level.filter(named.gather(level["row"])))
        level = (
            level.with_columns(row=host["parent"].gather(level["row"]))
            .drop_nulls("row")
            .group_by("row")
            .agg(pl.col("kernels").sum())
        )
    found = pl.concat(calls).group_by("row").agg(pl.col("kernels").sum())
    found = found.filter(pl.col("kernels") >= LAYERS)
    inner = nearest(host, says).gather(host["parent"].gather(found["row"].filter(says.gather(found["row"]))))
    found = found.filter(~pl.col("row").is_in(inner.drop_nulls().implode()))
    found = found.hstack(host.select("name", "depth", "start_ns")[found["row"]])
    found = found.with_columns(
        name=pl.when(says.gather(found["row"]))
        .then(pl.lit("phase"))
        .otherwise(pl.col("name").cast(pl.String))
    )
    most = (
        found.group_by("name")
        .agg(n=pl.len(), depth=pl.col("depth").min(), kernels=pl.col("kernels").sum())
        .filter(pl.col("n") >= RECURRING, pl.col("kernels") >= len(attention) // 2)
        .sort("n", "depth", "name", descending=[True, False, False])
    )
    starts = found.filter(pl.col("name").is_in(most["name"].head(1).implode()))["start_ns"].sort()
    return _until_next(starts, trace)


def _says_a_phase(host: pl.DataFrame) -> pl.Series:
    """Which ranges and functions of the program are called after a phase."""
    is_code = matching(host, "category", "^(user_annotation|python_function)$")
    # What encodes and decodes makes something of an image, say, and no tokens.
    return is_code & matching(host, "name", "|".join(PHASES.values())) & ~matching(host, "name", "(?i)encod")


def _named(trace: Trace, attention: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """The steps, those of unknown phase with that of the range or function in which they attend, if it holds
    no other step; ``mixed`` where there are both."""
    host = trace.host_events
    launches = attention["launch"]
    row = nearest(host, _says_a_phase(host)).gather(launches)
    attends = pl.DataFrame({"row": row, "start_ns": host["start_ns"].gather(launches)})
    attends = intervals.beginning_in(attends, found.select("step", "start_ns", "end_ns"))
    attends = attends.with_columns(
        of_step=pl.len().over("step"), alone=pl.col("step").n_unique().over("row") == 1
    )
    said = attends.filter(pl.col("row").is_not_null() & pl.col("alone"))
    # A step that attends elsewhere is not the one that is called so: of images as well there is a ``decode``.
    said = said.filter(2 * pl.len().over("step") > pl.col("of_step"))
    names = host.select(pl.col("name").cast(pl.String))[said["row"]]
    said = said.hstack(names).with_columns(
        pl.col("name").str.contains(pattern).alias(phase) for phase, pattern in PHASES.items()
    )
    both = pl.all_horizontal(pl.col(phase).any() for phase in PHASES)
    phase = pl.when(both).then(pl.lit("mixed"))
    for one in PHASES:
        phase = phase.when(pl.col(one).any()).then(pl.lit(one))
    by_name = said.group_by("step").agg(named=phase)
    joined = found.join(by_name, on="step", how="left", maintain_order="left")
    unknown = pl.col("phase") == UNKNOWN
    known = pl.when(unknown).then(pl.coalesce("named", "phase")).otherwise("phase")
    return joined.with_columns(phase=known).drop("named")


def _until_next(starts: pl.Series, trace: Trace) -> pl.DataFrame:
    """Each start until the next one, the last until nothing is launched any more."""
    end = whole(trace.host_events.select(END.max()).item()) + 1
    return pl.DataFrame({"start_ns": starts, "end_ns": starts.shift(-1, fill_value=end)})


def _launched(trace: Trace, attention: pl.DataFrame) -> tuple[str, pl.DataFrame]:
    """Steps between those launches where the host pauses longest, time and again: between the same two
    launches each time, it launches nothing for longer than between any others. A pause is between steps only
    if what is cut by all such holds several layers' attention. One replay of one graph is one step."""
    calls = _calls(trace)
    in_graphs = whole(calls.filter("replays")["device_ns"].sum()) > calls["device_ns"].sum() // 2
    found_by = "graphs" if in_graphs else "kernels"
    weights = attention.group_by("launch").agg(kernels=pl.len().cast(pl.Int64))
    calls = calls.join(weights, on="launch", how="left", maintain_order="left").with_columns(
        pl.col("kernels").fill_null(0),
        pair=pl.concat_str(pl.col("does").shift(1), pl.lit("\n"), pl.col("does")),
        pause_ns=pl.col("start_ns") - pl.col("end_ns").shift(1),
    )
    cuts = _cuts(calls)
    whole_graphs = calls.filter(pl.col("replays") & (pl.col("kernels") >= LAYERS))
    if not cuts and not (found_by == "graphs" and len(whole_graphs) == 1):
        return "", pl.DataFrame(schema={"start_ns": pl.Int64, "end_ns": pl.Int64})
    groups = calls.with_columns(step=pl.int_range(pl.len()).is_in(cuts).cum_sum())
    held = (
        groups.with_columns(_stray(groups))
        .group_by("step", maintain_order=True)
        .agg(
            pl.col("start_ns").min().alias("first_ns"),
            pl.col("start_ns").filter(~pl.col("stray")).min(),
            pl.col("kernels").sum(),
        )
    )
    bounds = _until_next(held["first_ns"], trace).with_columns(held["start_ns"])
    # At the ends of the recording steps are cut off.
    enough = 2 * held["kernels"] >= whole(held["kernels"].median())
    return found_by, bounds.filter(enough)


def _calls(trace: Trace) -> pl.DataFrame:
    """One row per launch of the thread that launches most: ``launch``, ``does`` (its op, else kernel),
    ``replays`` a graph, ``start_ns`` and ``end_ns`` of the call, ``began_ns`` and ``ended_ns`` of its work,
    ``device_ns``."""
    host, table = trace.host_events, work(trace).filter(pl.col("launch").is_not_null())
    ops = host["name"].gather(table["op"]).cast(pl.String)
    calls = (
        table.with_columns(does=pl.coalesce(ops, pl.col("name").cast(pl.String)))
        .group_by("launch")
        .agg(
            pl.col("does").first(),
            began_ns=pl.col("start_ns").min(),
            ended_ns=pl.col("end_ns").max(),
            device_ns=pl.col("duration_ns").sum(),
        )
    )
    calls = calls.hstack(host.select("lane", "start_ns", END)[calls["launch"]])
    most = calls.group_by("lane").agg(pl.col("device_ns").sum()).sort("device_ns", "lane").tail(1)
    replays = matching(host, "name", GRAPH_LAUNCH).gather(calls["launch"]).alias("replays")
    return (
        calls.with_columns(replays)
        .join(most.select("lane"), on="lane", how="semi")
        .with_columns(does=pl.when("replays").then(pl.lit("graph")).otherwise("does"))
        .sort("start_ns")
    )


def _cuts(calls: pl.DataFrame) -> list[int]:
    """The rows of ``calls`` with which steps begin; none where no pause is between steps."""
    place = pl.int_range(pl.len())
    pairs = (
        calls.with_columns(place=place)
        .drop_nulls("pair")
        .group_by("pair")
        .agg(
            n=pl.len(),
            pause_ns=pl.col("pause_ns").median(),
            places="place",
            reach_ns=pl.col("start_ns").max() - pl.col("start_ns").min(),
        )
    )
    length = whole(calls["start_ns"].max()) - whole(calls["start_ns"].min())
    # Twice: three steps have two pauses between them.
    pairs = pairs.filter(pl.col("n") >= RECURRING - 1, 3 * pl.col("reach_ns") >= length)
    before = [0, *calls["kernels"].cum_sum()]

    def of_steps(places: list[int]) -> bool:
        """Whether every step between two of these pauses runs attention in several layers."""
        return all(before[b] - before[a] >= LAYERS for a, b in pairwise(places))

    pairs = pairs.sort("pause_ns", "pair", descending=[True, False])
    between = [row for row in pairs.iter_rows(named=True) if of_steps(row["places"])]
    if not between:
        return []
    limit = AS_LONG * between[0]["pause_ns"]
    most = max((row for row in between if row["pause_ns"] >= limit), key=lambda row: row["n"])
    return most["places"]


def _stray(calls: pl.DataFrame) -> pl.Series:
    """Which calls begin a step, hold no layers, and end longer before the rest of it than that takes: what a
    recording has of an earlier step, or the host did before it waited for requests."""
    gap_ns = pl.col("began_ns").shift(-1) - pl.col("ended_ns").cum_max()
    after_ns = pl.col("ended_ns").max() - pl.col("began_ns").shift(-1)
    few = pl.col("kernels").cum_sum() < LAYERS
    apart = ((gap_ns > after_ns) & few).fill_null(False)
    return calls.select(stray=apart.reverse().cum_max().reverse().over("step")).to_series()


def _shaped(trace: Trace, bounds: pl.DataFrame) -> pl.DataFrame:
    """The steps with what shapes tell of them: requests by one token are decoded, of one request several
    are read. Those of a pipeline of diffusers make an image, whatever their shapes."""
    host = trace.host_events
    if matching(host, "name", DIFFUSERS).any():
        return bounds.hstack(pl.DataFrame([_said(DENOISING)] * len(bounds), SAID, orient="row"))
    engine = "transformers" if matching(host, "name", TRANSFORMERS).any() else UNKNOWN
    known = shapes(trace, bounds)
    said = [_of_shape(engine, known.get(step)) for step in bounds["step"]]
    return bounds.hstack(pl.DataFrame(said, SAID, orient="row"))


def _of_shape(engine: str, shape: Shape | None) -> tuple[str | int | None, ...]:
    if shape is None:
        return (engine, UNKNOWN, *[None] * len(COUNTS))
    requests, each, captured, mixed = shape
    if mixed:
        return _said(EngineStep(engine, "mixed", query_tokens=requests * each))
    decodes = each == 1
    phase: Phase = "decode" if decodes else "prefill"
    if captured:
        return _said(EngineStep(engine, phase, padded=requests if decodes else None))
    return _said(
        EngineStep(engine, phase, 0 if decodes else requests, requests if decodes else 0, requests * each)
    )


@remembered
def own(trace: Trace) -> pl.DataFrame:
    """Work (``worked``) that was launched within a step, with its ``step``."""
    found = marks(trace).table
    table = worked(trace).filter(pl.col("launch").is_not_null()) if len(found) else work(trace).clear()
    at = trace.host_events["start_ns"][table["launch"]]
    row = found["start_ns"].search_sorted(at, side="right").cast(pl.Int64) - 1
    row = row.set(row < 0, None)
    inside = (at < found["end_ns"][row]).fill_null(False)
    return table.with_columns(step=found["step"][row]).filter(inside)


@remembered
def steps(trace: Trace) -> pl.DataFrame:
    """One row per step that did any device work, in order: ``step``, the columns of ``SAID``, ``requests``,
    ``batch`` (requests that generate, else tokens, up to a power of two), ``start_ns`` and ``end_ns`` of its
    work, ``kernels``, ``launches``, ``graph`` (full, piecewise, eager), ``busy_ns``, ``span_ns``,
    ``period_ns`` and ``between_ns`` (to the next step's first work, from this one's first and last; null of
    the last), and ``warming``."""
    table = own(trace)
    busy = intervals.length(intervals.union(table, ["step"]), ["step"]).rename({"length_ns": "busy_ns"})
    is_replay = matching(trace.host_events, "name", GRAPH_LAUNCH)
    worked = (
        table.with_columns(replayed=is_replay[table["launch"]])
        .group_by("step")
        .agg(
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            kernels=pl.len(),
            launches=pl.col("launch").n_unique(),
            graphs=pl.col("launch").filter("replayed").n_unique(),
            inside=pl.col("replayed").sum(),
        )
    )
    following = pl.col("start_ns").shift(-1)
    graph = (
        pl.when(pl.col("graphs") == 0)
        .then(pl.lit("eager"))
        .when(pl.col("inside") >= 0.9 * pl.col("kernels"), pl.col("graphs") == 1)
        .then(pl.lit("full"))
        .otherwise(pl.lit("piecewise"))
    )
    requests = pl.sum_horizontal("context_requests", "generation_requests")
    known = pl.any_horizontal(pl.col("context_requests", "generation_requests").is_not_null())
    of_requests = pl.col("phase").is_in(["decode", "verify", "diffusion"])
    size = pl.when(of_requests).then(pl.coalesce("requests", "padded")).otherwise("query_tokens")
    place = pl.int_range(pl.len()).over(LIKE)
    slow = pl.col("span_ns") > WARMING * pl.col("span_ns").median().over(LIKE)
    return (
        marks(trace)
        .table.drop("start_ns", "end_ns")
        .join(worked, on="step", maintain_order="left")
        .join(busy, on="step", maintain_order="left")
        .sort("start_ns")
        .with_columns(requests=pl.when(known).then(requests))
        .with_columns(
            graph=graph,
            batch=pl.lit(2, pl.Int64).pow(64 - (size.cast(pl.Int64) - 1).clip(0).bitwise_leading_zeros()),
            span_ns=pl.col("end_ns") - pl.col("start_ns"),
            period_ns=following - pl.col("start_ns"),
            between_ns=following - pl.col("end_ns"),
        )
        .with_columns(warming=slow & (place < 2) & (pl.len().over(LIKE) > 2))
    )
