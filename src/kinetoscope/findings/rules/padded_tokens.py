"""Much of a program's batches is padding.

What it finds
    Batches of texts or histories that are filled up to a fixed length, or to the longest, by the mask that
    tokenizers make next to their tokens (``attention_mask``) or by lengths, in training as in serving. Needs
    a recording of ``kinetoscope run``.

Why it is slow
    Products, attention, norms and the loss are computed for each token, and what comes out for padding is
    thrown away.

How it decides
    The first batches of a ``DataLoader`` with a mask next to their tokens, or with labels that torch's losses
    ignore (-100): a tenth of the tokens or more are padding. Where there are none, the tables of integers
    that models are called with in one step, if one is another's mask; or, where the step trains and no op of
    it takes padding out, if as many integers as a table has rows are their lengths, or a table's rows are of
    several lengths, filled up with a token that is nowhere else. All device work but the optimizer's is taken
    to be of tokens; 3 µs of each kernel stay. Where half of the padding lies beyond the longest text of its
    batch, that part is saved; else all of it, which batches of like length nearly do. Half of the multiple to
    which lengths are rounded up stays in each row, but on a CPU; places that lengths tell are taken out, all
    of their padding.

What to do
    Pad to the longest of a batch (``padding="longest"``, ``DataCollatorWithPadding``) rounded up to a
    multiple of 64 (an eighth of narrow batches), so that few lengths occur. Then batches of texts of like
    length (``TrainingArguments(group_by_length=True)``), or several texts in one row without padding. Where
    lengths are at hand, take the places that are there out of the tables first, and add up by row.

Source
    Hugging Face transformers, "Padding and truncation"; Krell et al., "Efficient Sequence Packing without
    Cross-contamination" (2021).
"""

from kinetoscope.findings.rule import *

WORTH = 0.1  # of the tokens
MULTIPLES = (64, 32, 16)  # of which lengths are to be, the first that is an eighth of the width, …
LEAST = 8  # … or else this
TAKES_OUT = r"^aten::(nonzero|masked_select|repeat_interleave|_pack_padded_sequence|_nested_\w+)$"
TAKEN_OUT = (
    "row, place = (torch.arange(width) < lengths[:, None]).nonzero(as_tuple=True)\n"
    "found = network(table[row, place])\n"
    "sums = torch.zeros(len(table), found.shape[1]).index_add(0, row, found)"
)
LONGEST = 'tokenizer(texts, padding="longest", pad_to_multiple_of={})  # or DataCollatorWithPadding'
CUT = "longest = -(-lengths.max() // {0}) * {0}\ntokens = tokens[:, :longest]  # of each batch"


def find(view: RankView) -> Findings:
    seen = view.record.steps.padding if view.record else None
    if seen is None or seen.padding < WORTH * seen.tokens:
        return
    # Without training, answers may be written into such a table, and their newest token looked at alone.
    taken_out = not trains(view) or matching(view.trace.host_events, "name", TAKES_OUT).any()
    if (seen.by_lengths or seen.by_ends) and taken_out:
        return
    to_longest = 2 * seen.beyond >= seen.padding and not seen.by_lengths
    # A CPU's ops take any length, and what is taken out has none.
    rows = 0 if view.on_cpu or seen.by_lengths else seen.rows
    width = seen.tokens / max(rows, 1)
    multiple = next((one for one in MULTIPLES if 8 * one <= width), LEAST)
    gone = (seen.beyond if to_longest else seen.padding) - rows * multiple // 2
    if gone <= 0:  # rounded up, lengths are as they are
        return
    share = gone / seen.tokens
    work = view.computed.filter(view.computed["kind"] == "kernel")
    work = work.filter(~matching(work, "category", "^optimizer$"))
    saved = share * (pl.col("duration_ns") - FIXED_NS).clip(0)
    places = "places" if seen.by_lengths else "tokens"
    what = "beyond the longest of its batch" if to_longest else "padding"
    what += ", lengths rounded up" * bool(rows)
    few = "" if view.on_cpu else f", in multiples of {multiple}, so that few lengths occur"
    rest = (seen.padding - seen.beyond) / seen.tokens
    title = f"{numbers.percent(seen.padding / seen.tokens)} of the {places} in a batch are padding"
    advice = f"Put texts of like length into a batch, or several into one row without padding{few}."
    snippet = "TrainingArguments(group_by_length=True)"
    if seen.by_lengths:
        advice = (
            "Take the places that are there out of the tables before anything is computed of them, and add "
        )
        advice += "up by row; or put rows of like length into a batch."
        snippet = TAKEN_OUT
    elif to_longest:
        title += f", {numbers.percent(seen.beyond / seen.tokens)} beyond the longest text of their batch"
        advice = f"Pad to the longest text of a batch, not to a fixed length{few}."
        advice += f" Texts of like length in a batch save up to {numbers.percent(rest)} more." if rest else ""
        snippet = (CUT if seen.by_ends else LONGEST).format(multiple)
    yield Finding(
        title=title,
        saving=savings.device(view, work, f"work on the {numbers.percent(share)} that are {what}", saved),
        evidence=[evidence.of(view, f"{seen.padding:,} of {seen.tokens:,} {places}", work.head(0))],
        advice=advice,
        snippet=snippet,
    )
