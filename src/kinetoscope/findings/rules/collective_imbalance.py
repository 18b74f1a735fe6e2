"""Ranks take turns in being late, or send uneven shares.

What it finds
    Waiting inside collectives without one straggler, and all-to-alls whose split sizes differ much: experts,
    shards or sequences of uneven load.

Why it is slow
    In each collective the most loaded rank sets the pace; the others wait, each in turn.

How it decides
    Recorded split sizes whose largest is at least 1.5 times their mean, or exposed waiting of 3 % of the step
    with no straggler, and no rank waited for in more than 60 % of it. Of ranks that take turns what that
    costs is saved; else what the job's step gains, all ranks replayed together, if no rank takes longer than
    the mean of all to reach a collective. With one rank's recording alone, half of the waiting.

What to do
    Balance what is sent: an auxiliary load-balancing loss or capacity limit for experts, sequences packed by
    length, embedding tables placed by their traffic.

Source
    The eight-rank DLRM recording of param; mixture-of-experts load balancing (Switch Transformer).
"""

from kinetoscope.analysis.ranks.comparison import RankComparison, comparison, culprit
from kinetoscope.analysis.replay.ranks import evenly_loaded, verdict_as_it_runs, without_lateness
from kinetoscope.findings.rule import *

UNEVEN = 1.5
MOSTLY = 0.6
GAIN = 0.5
# By the verdict of the comparison of ranks.
UNEVENLY = {"turns": "ranks take turns in being late", "unknown": "which rank they wait for is unknown"}
NEVER_LATE = "if no rank was ever late"
ADVICE = "Balance what the ranks send and compute."


def find(view: RankView) -> Findings:
    uneven = _uneven_splits(view)
    if uneven.is_empty() and view.waits.is_empty():
        return
    rank, share = culprit(view.run)
    verdict = verdict_as_it_runs(view.run)
    is_one = verdict.rank is not None or verdict.status == "link"
    turns = rank is not None and not is_one and (verdict.status == "turns" or share < MOSTLY)
    if uneven.is_empty() and not turns:
        return
    waited = view.waits if turns else _beyond_its_bytes(uneven)
    if uneven.is_empty() and _take_turns(comparison(view.run)):
        saving = savings.by_comparison(verdict, NEVER_LATE, without_lateness(view.run))
    else:
        saving = savings.device(view, waited, "half of the exposed waiting", saved=GAIN * pl.col("saved_ns"))
        saving = replace(saving, together=combined(evenly_loaded(view.run), _moved_evenly(view, waited)))
    if saving.share < (LOW if len(uneven) else MEDIUM):
        return
    us = view.us_of(waited, "saved_ns")
    longest = waited.sort("saved_ns", descending=True).head(6)
    shown = [evidence.of(view, "the collectives that waited longest", longest)]
    worst = UNEVENLY.get(verdict.status, "no rank stands out of those that are late")
    if verdict.status == "turns":
        worst += f", most often rank {rank}"
    if len(uneven):
        shown.append(evidence.of(view, f"splits {uneven['splits'][0]}", uneven))
        worst = f"split sizes up to {uneven['ratio'].max():.1f} times their mean"
    yield Finding(
        title=f"Uneven collectives: {worst}",
        affected_us=us,
        saving=saving,
        evidence=shown,
        advice=ADVICE,
    )


def compared(found: RankComparison) -> Findings:
    """The same of ranks of which nothing but their comparison is here."""
    if _take_turns(found):
        saving = savings.by_comparison(found.verdict, NEVER_LATE)
        yield Finding(
            title=f"Uneven collectives: {UNEVENLY['turns']}", saving=saving, evidence=[], advice=ADVICE
        )


def _take_turns(found: RankComparison) -> bool:
    """Whether ranks that do the same are late in turn, as stages of a pipeline do not."""
    return found.verdict.status == "turns" and found.verdict.cost_us is not None and found.longer.is_even


def _moved_evenly(view: RankView, waited: pl.DataFrame) -> Changes:
    """Half of the saved time that is no waiting, as a part of the transfer's if all ranks arrive at once."""
    waiting = view.waits.select("id", waited_ns="waiting_ns")
    table = waited.join(waiting, on="id", how="left").with_columns(pl.col("waited_ns").fill_null(0))
    moved, moving = ((pl.col(name) - pl.col("waited_ns")).clip(0) for name in ("saved_ns", "duration_ns"))
    saved = table.select(pl.col("duration_ns") * GAIN * (moved / moving).fill_nan(0).clip(0, 1)).to_series()
    return {view.rank: shorten(table["id"], saved)}


def _beyond_its_bytes(uneven: pl.DataFrame) -> pl.DataFrame:
    """``saved_ns``: the time beyond what the fastest of the uneven collectives takes for as many elements.

    Ranks cannot be compared one by one here: the same collective has another size on each."""
    sizes = (_recorded(f"{side} msg nelems").cast(pl.Float64, strict=False) for side in ("In", "Out"))
    sized = uneven.with_columns(elements=pl.max_horizontal(*sizes)).filter(pl.col("elements") > 0)
    fastest = (pl.col("duration_ns") / pl.col("elements")).min()
    return sized.with_columns(saved_ns=pl.col("duration_ns") - fastest * pl.col("elements"))


def _uneven_splits(view: RankView) -> pl.DataFrame:
    """Collectives with recorded split sizes whose largest is far above their mean, the most uneven first."""
    sent, received = (_recorded(f"{side} split size").fill_null("") for side in ("In", "Out"))
    sizes = [
        text.str.extract_all(r"\d+").list.eval(pl.element().cast(pl.Float64)) for text in (sent, received)
    ]
    return (
        view.work.filter(pl.col("collective").is_not_null())
        .with_columns(
            ratio=pl.max_horizontal(*(size.list.max() / size.list.mean() for size in sizes)),
            splits=pl.concat_str("in " + sent, "out " + received, separator=", "),
        )
        .filter(pl.col("ratio") >= UNEVEN)
        .sort("ratio", descending=True)
    )


def _recorded(argument: str) -> pl.Expr:
    """A recorded argument of a collective, as text."""
    return pl.col("collective").cast(pl.String).str.json_path_match(f"$['{argument}']")
