"""A server computes rows that no request asked for.

What it finds
    Steps whose batch was padded: graphs are captured for some sizes, and a batch runs in the next larger one.

Why it is slow
    Rows that were added are computed like all others, and thrown away. Products that read more weights than
    they compute hardly notice; attention, norms and products of large batches take as much longer.

How it decides
    The batch that the engine says it padded to, or the rows of most of the step's products where shapes were
    recorded, at 1.25 times the tokens that were asked for or more. Products that arithmetic bounds, by their
    shapes, are taken to shrink with their rows; others save nothing.

What to do
    Capture graphs for the sizes that are served (vLLM ``cudagraph_capture_sizes``, SGLang
    ``--cuda-graph-bs``); batch prompts of similar length, or pack them without padding.

Source
    vLLM, "CUDA Graphs"; SGLang, server arguments.
"""

from kinetoscope.analysis.serving.parts import costs, parted
from kinetoscope.analysis.serving.rows import ServingRow
from kinetoscope.analysis.serving.steps import steps
from kinetoscope.analysis.serving.table import READS, serving
from kinetoscope.findings.rule import *

PADDED = 1.25  # a power of two is 1.33 times its mean batch at the mean

SIZES = {
    "vLLM": "cudagraph_capture_sizes",
    "SGLang": "--cuda-graph-bs",
    "TensorRT-LLM": "cuda_graph_config: batch_sizes",
    "ATOM": "--cudagraph-capture-sizes",
}


def find(view: RankView) -> Findings:
    found = serving(view.run)
    for row in found.steps if found else ():
        tokens = row.query_tokens
        if row.rank != view.rank or not row.padded_to or not tokens or row.padded_to < PADDED * tokens:
            continue
        kind = steps(view.trace).filter(phase=row.phase, graph=row.graph_mode, batch=row.batch)
        if kind.is_empty():  # of another stage
            continue
        work = parted(view.trace).filter(pl.col("step").is_in(kind["step"].implode()), part="matmul")
        bound = work.join(
            costs(view.trace).filter(pl.col("compute_ns") > pl.col("memory_ns")).select("id"),
            on="id",
            how="semi",
        )
        share = 1 - tokens / row.padded_to
        saving = savings.nothing("its products read weights for longer than they compute: rows cost little")
        if len(bound):
            saved = bound.with_columns(saved_ns=pl.col("duration_ns") * share)
            saving = savings.device(view, saved, "products that arithmetic bounds, without the added rows")
        yield Finding(
            subject=f"{row.phase} {row.batch} {row.graph_mode}",
            title=f"{row.phase.capitalize()} of {tokens:,.0f} tokens computes {row.padded_to:,.0f}: "
            f"{share:.0%} of its rows are padding",
            saving=saving,
            at_least="info",
            at_most="medium",
            evidence=[evidence.of(view, f"{row.n} steps, products of {row.padded_to:,.0f} rows", work)],
            advice=_advice(view, row),
            by_phase={row.phase: 1.0},
        )


def _advice(view: RankView, row: ServingRow) -> str:
    if row.graph_mode != "eager":
        return f"Capture graphs for the sizes that are served{asked(view, SIZES)}."
    if row.phase in READS:
        return "Pack prompts without padding."
    return "Take requests that have ended out of the batch, and let others in."
