"""A model's outputs are copied into float32, and every later tensor of their size is twice as large.

What it finds
    After the last module, tensors of twice the size of what the model returned: ``logits.float()``, its
    log-softmax and their gradients.

Why it is slow
    In a language model the logits are the largest tensor, tokens times vocabulary; each of these copies
    is as large as many layers' activations.

How it decides
    At the peak, at least two allocations of one size that no module made, twice that of one that a module
    made before the first of them and that was there then. Played again with all of them at half their size,
    and without the first where the module's own is there at the peak as well.

What to do
    Leave the logits in bfloat16: ``cross_entropy`` sums in float32 by itself. Or compute the loss in
    chunks of tokens, or compiled, where the softmax is fused into the loss.

Source
    PyTorch, torch.nn.functional.cross_entropy; Wijmans et al., "Cut Your Losses in Large-Vocabulary
    Language Models".
"""

from kinetoscope.analysis.memory.peak import DeviceHistory
from kinetoscope.findings.rule import *


def find(view: RankView) -> Findings:
    for one in view.memory:
        copies = _copies(one.history)
        if len(copies) < 2:
            continue
        size, copied = whole(copies["bytes"].max()), copies.head(1)
        every = one.history.known.filter((pl.col("bytes") == size) & ~pl.col("forward"))
        # In every step: the output is there as well, or in the copy's stead.
        same_stack = copies.filter(pl.col("stack").is_in(copied["stack"].implode()))
        is_copy = every["start"].is_in(_again(every, copied, len(same_stack)).implode())
        is_copy &= not copied["replaces"][0]
        yield from memory.without(
            view,
            one,
            every.with_columns(bytes=pl.when(is_copy).then("bytes").otherwise(pl.col("bytes") // 2)),
            title=f"{len(copies)} tensors of {numbers.size(size)} are a model's output in float32 and "
            "what follows from it; in its own type the peak is {freed} lower",
            advice="Leave the model's output in its own type; cross_entropy sums in float32 by itself. Or "
            "take the loss of a chunk of tokens at a time.",
            source=str(copied["line"][0]),
        )


def _again(every: pl.DataFrame, copied: pl.DataFrame, at_once: int) -> pl.Series:
    """The copies of every step: of a stack that allocates so many at once, one of them."""
    same = every.filter(pl.col("stack").is_in(copied["stack"].implode())).sort("start")["start"]
    first = (same < copied["start"][0]).sum() % at_once
    return same.gather_every(at_once, first)


def _copies(history: DeviceHistory) -> pl.DataFrame:
    """The largest tensors at the peak that copy a module's output or follow from its copy, the copy first;
    ``replaces``: the output itself is gone by then."""
    here = history.at_peak.filter(pl.col("start").is_not_null(), ~pl.col("forward"), ~pl.col("optimizer"))
    outputs = history.known.filter(pl.col("forward"), ~pl.col("backward")).select(
        double=pl.col("bytes") * 2, made="start", gone=pl.col("end").fill_null(history.span[1] + 1)
    )
    outputs = outputs.filter(pl.col("made").is_not_null())
    copied = here.join(outputs, left_on="bytes", right_on="double")
    copied = copied.filter(pl.col("start").is_between(pl.col("made"), pl.col("gone")))
    if copied.is_empty():
        return here.clear()
    size = copied["bytes"].max()
    first = copied.filter(pl.col("bytes") == size).sort("start", "gone").group_by("bytes").first()
    replaces = (pl.col("gone") < whole(here["start"].max())).alias("replaces")
    later = here.join(first.select("bytes", replaces, first="start"), on="bytes")
    return later.filter(pl.col("start") >= pl.col("first")).sort("start")
