"""Entering compiled code costs more than what it does.

What it finds
    Compiled functions that are entered many times per step for one to three kernels each.

Why it is slow
    Each call checks its guards (TorchDynamo Cache Lookup), goes through AOTAutograd's prologue and the
    generated wrapper: 30 to 60 µs of host time, where the eager op takes ten.

How it decides
    At least five entries per step, a median of at most three launches per entry, and host time that shortens
    the step when it is taken down to 10 µs a launch.

What to do
    Compile the caller instead: the loop, the block, the whole model. Or leave the tiny function eager. CUDA
    graphs (``mode="reduce-overhead"``) help if the shapes are fixed.

Source
    "Profiling in PyTorch", part 1: "CPU overhead went up, not down".
"""

from kinetoscope.analysis.compiled.regions import region_of_work, regions
from kinetoscope.analysis.events.torch_names import CACHE_LOOKUP
from kinetoscope.findings.rule import *

ENTRIES = 5  # per step: below, the tax is a few hundred microseconds at most
LAUNCHES = 3
EAGER_NS = 10_000  # what an eager op takes on the host, its launch included

ROLE = "symptom"


def find(view: RankView) -> Findings:
    entered = view.inside(regions(view.trace))
    if len(entered) < ENTRIES * view.steps:
        return
    launches = region_of_work(view.trace).rename("id").drop_nulls().value_counts(name="launches")
    entered = entered.join(launches, on="id", how="left").with_columns(pl.col("launches").fill_null(0))
    small = entered.filter(pl.col("launches").is_between(1, LAUNCHES))
    if len(small) < ENTRIES * view.steps or entered.select(pl.median("launches")).item() > LAUNCHES:
        return
    lookup = view.inside(view.host(CACHE_LOOKUP)).select(pl.median("duration_ns")).item() or 0.0
    beyond = pl.col("duration_ns") + lookup - EAGER_NS * pl.col("launches")
    saved = small.with_columns(share=(beyond / pl.col("duration_ns")).clip(0, 1))
    each, launched = small.select(pl.median("duration_ns"), pl.mean("launches")).row(0)
    names = small["name"].cast(pl.String).unique(maintain_order=True).head(2).to_list()
    yield Finding(
        title=f"Compiled code is entered {view.per_step(len(small)):,.0f} times per {view.unit} for "
        f"{launched:,.0f} launches each, at {numbers.time(each / 1000 + lookup / 1000)} of host time",
        saving=savings.host(view, saved, "host time of the entries beyond 10 µs a launch"),
        evidence=[evidence.of(view, f"entries of {', '.join(names)}", small)],
        advice="Compile what calls these functions, so that one entry does all of it.",
        snippet="model = torch.compile(model)  # not each of its helpers",
        source=evidence.source(view, small["id"]),
    )
