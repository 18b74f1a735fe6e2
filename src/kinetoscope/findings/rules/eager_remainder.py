"""Work that runs outside of the compiled regions.

What it finds
    Programs that use ``torch.compile``, where chains of eager elementwise kernels remain: a loss, a metric,
    gradient clipping or an augmentation outside of the compiled function, or a part behind a graph break.

Why it is slow
    Code that is not compiled is not fused: each op reads and writes memory, and pays its own launch.

How it decides
    Device work whose launch lies in no compiled region, nor in the backward of one, nor in an optimizer, nor
    is communication; it must be 5 % of device time or more. The saving counts its elementwise chains, as in
    ``unfused-elementwise``. From 30 % of device time on it is named even if there are none.

What to do
    Compile the loss together with the model, or move it inside: ``step = torch.compile(lambda x, y:
    loss(model(x), y))``. For breaks, see ``kinetoscope graphs``.

Source
    torch.compile troubleshooting guide, "Graph breaks".
"""

from kinetoscope.analysis.compiled.regions import compiled, regions
from kinetoscope.analysis.kernels.chains import elementwise_chains
from kinetoscope.findings.rule import *

SHARE = 0.05
LARGE = 0.3  # of device time: worth a line whatever fusing its elementwise work saves


def find(view: RankView) -> Findings:
    if regions(view.trace).is_empty():
        return
    work = view.work
    eager = work.filter(
        ~work["launch"].is_in(compiled(view.trace).implode()).fill_null(True)
        & (pl.col("part") == "compute")
        & (pl.col("category").cast(pl.String) != "optimizer")
    )
    share = int(eager["duration_ns"].sum()) / max(1, int(work["duration_ns"].sum()))
    chains = elementwise_chains(work, eager)
    if share < SHARE or (chains.is_empty() and share < LARGE):
        return
    by_op = eager.group_by("op_name").agg(pl.col("duration_ns").sum()).sort("duration_ns", descending=True)
    ops = by_op["op_name"].cast(pl.String).drop_nulls().head(3)
    yield Finding(
        title=f"{share:.0%} of device time runs outside of the compiled regions (most in {', '.join(ops)})",
        saving=savings.fused(view, chains),
        evidence=[
            evidence.of(
                view, "eager elementwise chains" if len(chains) else "eager work", _shown(chains, eager)
            )
        ],
        at_least="info" if share >= LARGE else None,
        advice="Take the eager part into the compiled function.",
        snippet="step = torch.compile(lambda x, y: loss_fn(model(x), y))",
        source=evidence.source(view, _shown(chains, eager)["op"]),
    )


def _shown(chains: pl.DataFrame, eager: pl.DataFrame) -> pl.DataFrame:
    return chains if len(chains) else eager.sort("duration_ns", descending=True)
