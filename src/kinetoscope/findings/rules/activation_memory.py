"""Activations of repeated layers take most of the memory.

What it finds
    Tensors of the forward pass that wait for the backward pass, of lines that every layer runs.

Why it is slow
    It is not: it limits the batch. Checkpointing keeps a layer's input alone, and computes the rest again
    in the backward pass, at a third more time for what is checkpointed.

How it decides
    The activations at the peak of which every layer has as many of a stack and a size, with four layers or
    more. Played again with each layer's gone from the next layer's beginning to its own backward pass, but
    for what a layer makes last: the next layer's input.

What to do
    ``torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)`` around each layer, or around
    every other one; in compiled code ``torch._functorch.config.activation_memory_budget = 0.5``.

Source
    Chen et al., "Training Deep Nets with Sublinear Memory Cost"; PyTorch, torch.utils.checkpoint.
"""

from kinetoscope.findings.rule import *

LAYERS = 4
STATISTICS = (
    0.01  # of a layer's largest tensor: statistics that a norm keeps with its output are no layer's input
)
BEFORE = 2  # entries of the history: what a layer's backward pass allocates before it releases anything


def find(view: RankView) -> Findings:
    for one in view.memory:
        here = one.history.at_peak.filter((pl.col("role") == "activation") & pl.col("forward"))
        if one.history.failed_bytes:  # then none was given back any more
            here = here.with_columns(pl.col("end").fill_null(one.history.place + 1 + BEFORE))
        here = here.filter(pl.col("end").is_not_null())
        repeated = _of_layers(here)
        if repeated is None:
            continue
        layers, size = repeated["layer"].n_unique(), int(repeated["bytes"].sum())
        yield from memory.without(
            view,
            one,
            _absent(repeated, here),
            title=f"activations of {layers} layers take {numbers.size(size)} at the peak; checkpointed, the "
            "peak is {freed} lower",
            advice="Checkpoint the layers: their forward pass is computed again in the backward pass, about "
            "a third more time for them.",
            snippet="x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)",
            source=str(repeated.sort("bytes", descending=True)["line"][0]) or "",
        )


def _of_layers(here: pl.DataFrame) -> pl.DataFrame | None:
    """Activations that every layer has, with the number of their layer.

    A layer may have several of one stack and size: the number of layers divides most bytes evenly.
    """
    same = ["stack", "bytes"]
    counted = here.with_columns(times=pl.len().over(same)).filter(pl.col("times") >= LAYERS)
    sizes = {layers: whole(counted.filter(pl.col("times") % layers == 0)["bytes"].sum())
            for layers in counted["times"].unique()}  # fmt: skip
    if not sizes:
        return None
    layers = max(sizes, key=lambda layers: (sizes[layers], layers))
    place, each = pl.int_range(pl.len()).over(same), pl.col("times") // layers
    return counted.filter(pl.col("times") % layers == 0).sort("start").with_columns(layer=place // each)


def _absent(repeated: pl.DataFrame, here: pl.DataFrame) -> pl.DataFrame:
    """The allocations that are gone once layers are checkpointed: from the next layer's beginning until that
    layer's backward pass is through with its input, and this one is computed again."""
    begins, freed = pl.col("start").min().alias("begins"), pl.col("end").min().alias("freed")
    layers = repeated.group_by("layer").agg(begins, freed).sort("layer")
    # What a layer passes on may be a tensor that not every layer holds: the last one's is no layer's input.
    large = here.filter(pl.col("bytes") > STATISTICS * pl.col("bytes").max()).sort("start")
    passed = large.join_asof(layers, left_on="start", right_on="begins", check_sortedness=False)
    passed = passed.group_by("layer").agg(pl.col("start", "end").sort_by("start").last()).drop_nulls()
    layers = layers.join(passed, on="layer").select(
        "layer",
        pl.coalesce(pl.col("begins").shift(-1), pl.col("begins").max() + 1).alias("from"),
        until=pl.min_horizontal(pl.col("freed") - BEFORE, "end"),
    )
    gone = repeated.join(passed, on="start", how="anti").join(layers, on="layer")
    return gone.select("bytes", start="from", end="until").filter(pl.col("start") < pl.col("end"))
