"""Each new token is computed with all the tokens before it.

What it finds
    A loop that generates, whose net is called with the whole sequence for each token.

Why it is slow
    Keys and values of the tokens before do not change. Without a cache of them each pass multiplies all those
    rows again: the hundredth token costs a hundred times the arithmetic that it needs.

How it decides
    Norms of rows, whose grids tell how many: from pass to pass they grow by the same number, one token of
    each sequence, and are 16 times that or more; in three passes, eight in a program that trains. With a
    cache a product still reads its weights, as long as arithmetic on ``FLOP/s x bytes of a number / (2 x
    bandwidth)`` rows takes; all others take the new token's share. 3 µs of every kernel stay. That no token
    attends to later ones is the condition.

What to do
    Keep keys and values from call to call and give the net the new token alone (``use_cache=True`` in
    transformers); in a net of one's own concatenate, or better write into, a cache of each attention layer.
    Where the sequence is longer than the net's positions and is cut at its beginning, all of it does change.

Source
    "Fast Transformer Decoding" (Shazeer, 2019), section 2.4.1; transformers, "Caching".
"""

from kinetoscope.findings.rule import *
from kinetoscope.findings.rules.no_tensor_cores import ROUNDED, SIXTEEN_BITS
from kinetoscope.hardware import find as device_named

PASSES, IN_TRAINING = 3, 8
LONGER = 16  # times the new tokens
SAME = 0.9  # of the times that they get longer: what is learned from the answers is a pass as well
# A block for each row; of other norms, blocks are channels.
OF_ROWS = r"(?i)layer_?norm|rms_?norm|RowwiseMoments"
MEAN = r"reduce_kernel<.*MeanOps"  # of a norm that is written out; a row for each row of its block


def find(view: RankView) -> Findings:
    spec = device_named(view.device.name) if view.device is not None else None
    passes = growing_passes(view)
    if passes is None or spec is None:
        return
    new = whole(passes["rows"].diff().max())
    work = view.work.sort("start_ns").join_asof(passes, left_on="start_ns", right_on="from_ns")
    work = work.filter((pl.col("start_ns") <= pl.col("to_ns")) & (pl.col("kind") == "kernel"))
    is_short, is_rounded = matching(work, "name", SIXTEEN_BITS), matching(work, "name", ROUNDED)
    bf16, tf32, fp32 = (spec.peak(name) or spec.peak("fp32") or 0.0 for name in ("bf16", "tf32", "fp32"))
    flops = pl.when(is_short).then(2 * bf16).when(is_rounded).then(4 * tf32).otherwise(4 * fp32)
    is_product = matching(work, "category", "^matmul$")
    needed = pl.when(is_product).then(flops / (2 * spec.bandwidth)).otherwise(0.0)  # rows
    share = pl.max_horizontal(needed, new) / pl.col("rows")
    left = pl.max_horizontal(pl.col("duration_ns") * share, FIXED_NS)
    work = work.with_columns(saved_ns=(pl.col("duration_ns") - left).clip(0))
    work = work.filter(pl.col("saved_ns") > 0)
    basis = "products that read their weights for the new token, and its share of all others"
    saving = savings.device(view, work, basis)
    before = whole(passes["rows"].median()) // new - 1
    tokens = "a token" if new == 1 else f"a token of each of {new} sequences"
    yield Finding(
        title=f"Each pass computes {before:,} tokens again to make {tokens}: keys and values are not kept",
        affected_us=view.us_of(work),
        saving=savings.if_so(saving, "tokens attend to those before them alone"),
        evidence=[evidence.of(view, f"{len(passes)} passes, each {new} rows longer", work.head(8))],
        advice="Keep the keys and values of each attention layer from call to call, and call the net with "
        "the new token alone; nothing else changes unless the sequence is cut at its beginning.",
        source=evidence.source(view, work["op"]),
    )


def growing_passes(view: RankView) -> pl.DataFrame | None:
    """The passes of a net whose input grows: ``rows``, ``from_ns`` and ``to_ns`` (first and last norm)."""
    is_kernel, is_mean = view.work["kind"] == "kernel", matching(view.work, "name", MEAN)
    for is_norm in (matching(view.work, "name", OF_ROWS), is_mean):
        passes = _growing(view.work.filter(is_norm & is_kernel), IN_TRAINING if trains(view) else PASSES)
        if passes is not None:
            return passes
    return None


def _growing(norms: pl.DataFrame, least: int) -> pl.DataFrame | None:
    if norms.is_empty():
        return None
    blocks = pl.col("grid").cast(pl.String).str.extract(r"^\[(\d+), *1, *1\]").cast(pl.Int64, strict=False)
    in_block = pl.col("block").cast(pl.String).str.extract(r"^\[\d+, *(\d+)").cast(pl.Int64, strict=False)
    rows = blocks * pl.when(matching(norms, "name", MEAN)).then(in_block).otherwise(1)
    runs = (
        norms.sort("start_ns")
        .with_columns(rows=rows)
        .drop_nulls("rows")
        .with_columns(run=pl.col("rows").rle_id())
        .group_by("run", "rows")
        .agg(norms=pl.len(), from_ns=pl.min("start_ns"), to_ns=pl.max("start_ns"))
        .sort("from_ns")
    )
    # A last norm of the newest token alone is a run of its own.
    sizes = runs.group_by("norms").agg(total=pl.sum("norms")).sort("total", "norms", descending=True)
    if sizes.is_empty() or sizes["norms"][0] < 2:
        return None
    passes = runs.filter(pl.col("norms") == sizes["norms"][0])
    added = passes["rows"].diff()
    longer = added.filter(added > 0)  # a sequence that is done gives way to the next, which is shorter
    new = longer.mode().min()
    if new is None or (longer == new).sum() < max(least - 1, SAME * len(longer)):
        return None
    passes = passes.filter((added == new).fill_null(False) | (added.shift(-1) == new).fill_null(False))
    return passes if whole(passes["rows"].min()) >= LONGER * int(new) else None
