"""Much of a loader's batches is padding.

What it finds
    Batches of texts that are filled up to a fixed length, or to their longest text, by the mask that
    tokenizers make next to their tokens (``attention_mask``). Needs a recording of ``kinetoscope run``.

Why it is slow
    Products, attention, norms and the loss are computed for each token, and what comes out for padding is
    thrown away.

How it decides
    The program's first batches with a mask of as many tokens as they have, in the CPU's memory, and with
    nothing of more dimensions, such as pictures: a tenth of the tokens or more are padding. All device work
    but the optimizer's is taken to be of tokens, and to shrink as they get fewer; 3 µs of each kernel stay.
    Where half of the padding or more lies beyond the longest text of its batch, that part is saved; else all
    of it, which batches of like length nearly do.

What to do
    Pad to the longest of a batch (``padding="longest"``, ``DataCollatorWithPadding``) rounded up to a
    multiple of 64, so that few lengths occur. Then batches of texts of like length
    (``TrainingArguments(group_by_length=True)``), or several texts in one row without padding.

Source
    Hugging Face transformers, "Padding and truncation"; Krell et al., "Efficient Sequence Packing without
    Cross-contamination" (2021).
"""

from kinetoscope.findings.rule import *

WORTH = 0.1  # of the tokens
COLLATOR = "collate_fn = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=64)"


def find(view: RankView) -> Findings:
    seen = view.record.steps.padding if view.record else None
    if seen is None or seen.padding < WORTH * seen.tokens:
        return
    to_longest = 2 * seen.beyond >= seen.padding
    share = (seen.beyond if to_longest else seen.padding) / seen.tokens
    work = view.work.filter((view.work["kind"] == "kernel") & ~matching(view.work, "category", "^optimizer$"))
    saved = share * (pl.col("duration_ns") - FIXED_NS).clip(0)
    what = "beyond the longest of its batch" if to_longest else "padding"
    rest = (seen.padding - seen.beyond) / seen.tokens
    yield Finding(
        title=f"{numbers.percent(seen.padding / seen.tokens)} of the tokens that the loader gives are padding"
        + (f", {numbers.percent(share)} beyond the longest text of their batch" if to_longest else ""),
        saving=savings.device(view, work, f"work on the {numbers.percent(share)} that are {what}", saved),
        evidence=[evidence.of(view, f"{seen.padding:,} of {seen.tokens:,} tokens", work.head(0))],
        advice=(
            "Pad to the longest text of a batch, not to a fixed length, in multiples of 64, so that few "
            "lengths occur."
            + (f" Texts of like length in a batch save up to {numbers.percent(rest)} more." if rest else "")
            if to_longest
            else "Put texts of like length into a batch, or several into one row without padding; in "
            "multiples of 64, so that few lengths occur."
        ),
        snippet=COLLATOR if to_longest else "TrainingArguments(group_by_length=True)",
    )
