"""Norms, rotary positions and the like run as many small kernels inside a replayed graph.

What it finds
    Runs of four or more elementwise kernels and reductions after each other, in each layer of a graph that
    is replayed.

Why it is slow
    A graph takes the launches away, not the kernels: each still reads its operands, writes its result and
    waits until the one before has ended, which takes some 2 µs however small it is.

How it decides
    Consecutive kernels of a stream in one replay, of the categories elementwise, copy, reduction and
    normalization, at least as many such runs as a step has layers. Fused, a run is taken to need as long as
    its longest kernel.

What to do
    Compile the model before its graph is captured (``torch.compile``), or use fused ops: ``rms_norm``,
    ``fused_add_rms_norm``, ``silu_and_mul``, a rotary kernel (vLLM and SGLang have them as custom ops).

Source
    vLLM, "Fusion torch.compile passes"; "Profiling in PyTorch", part 2.
"""

from kinetoscope.analysis.events.torch_names import GRAPH_LAUNCH
from kinetoscope.analysis.serving.steps import LAYERS, marks, own
from kinetoscope.findings.rule import *

FUSIBLE = "^(elementwise|copy|reduction|normalization)$"
LENGTH = 4
COMPILED = {
    "vLLM": "without --enforce-eager; fusion passes of --compilation-config",
    "SGLang": "--enable-torch-compile",
}
GENERATED = "^triton_"  # a compiler fused what it could


def find(view: RankView) -> Findings:
    if marks(view.trace).table.is_empty():
        return
    work = own(view.trace)
    replayed = matching(view.trace.host_events, "name", GRAPH_LAUNCH)[work["launch"]].fill_null(False)
    fusible = (
        matching(work, "category", FUSIBLE) & (work["kind"] == "kernel") & ~matching(work, "name", GENERATED)
    )
    key = ["device", "stream", "launch"]
    table = work.with_columns(fusible=fusible, replayed=replayed).filter("replayed").sort(*key, "start_ns")
    if table.is_empty():
        return
    changes = (pl.col(name).ne_missing(pl.col(name).shift(1)) for name in (*key, "fusible"))
    duration = pl.col("duration_ns")
    runs = (
        table.with_columns(run=pl.any_horizontal(*changes).cum_sum())
        .filter("fusible", pl.len().over("run") >= LENGTH)
        .with_columns(saved_ns=duration * (1 - duration.max().over("run") / duration.sum().over("run")))
        .filter(pl.col("run").n_unique().over("step") >= LAYERS)
    )
    if runs.is_empty():
        return
    each = runs.group_by("run", maintain_order=True).agg(pl.len(), duration.sum())
    longest = runs.filter(pl.col("run") == each.sort("duration_ns", descending=True)["run"][0])
    names = longest["name"].cast(pl.String).map_elements(short_name, return_dtype=pl.String)
    number, how = runs["step"].n_unique(), asked(view, COMPILED)
    yield Finding(
        title=f"Inside its graph a step runs {len(each) / number:.0f} times {each['len'].median():.0f} small "
        "kernels that one could do: norms, rotary positions, activations",
        affected_us=view.us_of(runs),
        at_most="medium",
        saving=savings.device(view, runs, "each run in the time of its longest kernel"),
        evidence=[evidence.of(view, "the longest run: " + " → ".join(names.head(8)), longest)],
        advice=f"Compile the model before its graph is captured{how}, or use the engine's "
        "fused norms, activations and rotary positions.",
        snippet=None if how else "model = torch.compile(model)  # then capture",
        source=evidence.source(view, longest["op"]),
    )
