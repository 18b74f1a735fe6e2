"""The device waits, and the recording does not show what for.

What it finds
    A tenth of the step or more in which the device does nothing, and either the thread that launches its work
    is silent (no op, no runtime call, no wait was recorded there), or the work had been launched and the
    device did not start it.

Why it is slow
    The thread runs code that a profiler of ops does not see: Python of the program (tokenising, logging,
    metrics, augmentation), NumPy and other libraries, file and network access. A device that does not start
    what it has loads a kernel's code for the first time, is shared with another process, or waits for what
    the recording does not show.

How it decides
    Idle time of the cause ``unexplained``: silence, where it ends with a launch made too late, and delay,
    where it ends with one made in time. Silence after reading results is ``results-on-host``'s, most of it in
    which lists become tensors ``tensors-of-lists``'s. What silence costs is a ceiling. Where most of it ends
    with copies to the device, ops of the CPU before the same copies count here as well (``host-op-stall``),
    and what page-locked memory saves of these (``pageable-copy``), each if it takes less. How delay could be
    ended is not known.

What to do
    Silence that ends with a copy to the device (decoding, ``astype``, normalising in NumPy): copy bytes, and
    convert them on the device. Other silence: see the line in which it passes, or record it with stacks
    (``kinetoscope run --stacks``), which name the functions; take that out of the step, have the device do
    it, do it less often or in another thread. Delay: record later steps, and see who else uses the device.

Source
    "Profiling in PyTorch", part 1: gaps between kernels in a step.
"""

from kinetoscope.findings.in_force import trains
from kinetoscope.findings.program_lines import never_waits, that_computes, waits_at
from kinetoscope.findings.rule import *
from kinetoscope.findings.rules import tensors_of_lists
from kinetoscope.findings.rules.pageable_copy import prepared
from kinetoscope.findings.rules.results_on_host import on_the_main_thread, silences, worked_on

SHOWN = 3  # gaps
UNSEEN = "for code that was not recorded: Python, or a library that is not profiled"
AHEAD = "while Python or a library such as NumPy prepares what is then copied to it"
CONVERT = (
    "make it on the device (random numbers, arithmetic), copy the data as they are (bytes) and convert them "
    "there, or have workers of a data loader do it ahead"
)
AWAY = "take it out of the step, have the device do it, do it less often, or in another thread"


def find(view: RankView) -> Findings:
    gaps = _unexplained(view)
    late = pl.col("launched_ns") >= pl.col("start_ns")
    silent, delayed = gaps.filter(late), gaps.filter(~late)
    if max(view.us_of(one, "idle_ns") for one in (silent, delayed)) < HIGH * view.step_us:
        return
    after_reading, of_lists = (
        2 * intervals.covered(intervals.union(spans(others)), silent) >= silent["idle_ns"]
        for others in (worked_on(view), tensors_of_lists.reading(view))
    )
    if 2 * int(silent["idle_ns"].filter(of_lists).sum()) > int(silent["idle_ns"].sum()):
        after_reading |= of_lists
    silent = silent.filter(~after_reading)
    if view.us_of(silent, "idle_ns") >= HIGH * view.step_us:
        yield _silence(view, silent)
    if (us := view.us_of(delayed, "idle_ns")) >= HIGH * view.step_us:
        yield Finding(
            subject="device",
            title="The device starts work late that had been launched in time",
            affected_us=us,
            saving=savings.nothing("the cause of the delay was not recorded"),
            at_least="low",
            evidence=_longest(view, delayed),
            advice="Record later steps, when all code is loaded; see whether others use the device.",
        )


def _silence(view: RankView, silent: pl.DataFrame) -> Finding:
    us, at = view.us_of(silent, "idle_ns"), _line_before(view, silent)
    line = at.split(" ")[0] if at else None
    basis = "the idle time in which the launching thread recorded nothing"
    saving, is_sent, and_pin = prepared(view, silent, basis, "host-op")
    if at and waits_at(view, line):
        return Finding(
            subject="waits",
            title=f"The device waits for {numbers.time(us)} per {view.unit} while the thread that launches "
            f"waits for others in {at}",
            affected_us=us,
            saving=savings.not_predicted(saving, "what it waits for may not be there any earlier"),
            at_least="medium",
            evidence=_longest(view, silent),
            advice="If it waits for a batch to fill, take what is there; if for another thread or process, "
            "have that one work ahead. Waiting while there are no requests costs nothing.",
            source=line,
        )
    look = f"Most of it passes in {at}" if at else "Record with --stacks to see which function it is"
    if (computes := that_computes(view)) is not None:
        if not at:
            look = computes.sentence
        elif computes.function not in at.split(" ")[1:]:
            look += f". {computes.sentence}"
    serves = not (trains(view) or on_the_main_thread(view, silent["op"]) or never_waits(view))
    return Finding(
        title=f"The device waits {AHEAD if is_sent else UNSEEN}" + (", or for requests" if serves else ""),
        affected_us=us,
        saving=savings.not_predicted(saving, "the thread may wait for requests") if serves else saving,
        at_least="medium" if serves else None,
        at_most="medium" if view.unprofiled_us is None else "high",
        evidence=_longest(view, silent),
        advice=f"{look}: {CONVERT if is_sent else AWAY}{and_pin}."
        + (" If it steps an environment, step several at once." if _answers(view, silent) else ""),
        source=line or evidence.source(view, silent.sort("idle_ns", descending=True)["op"]),
    )


def _answers(view: RankView, silent: pl.DataFrame) -> bool:
    """Whether most of this idle time comes directly after the thread read results, to act on them."""
    if trains(view):
        return False
    after_reading = intervals.covered(intervals.union(spans(silences(view))), silent)
    return 2 * int(after_reading.sum()) > int(silent["idle_ns"].sum())


def _line_before(view: RankView, gaps: pl.DataFrame) -> str | None:
    """The line of the program in which its thread was in the longest of these gaps, where that is known."""
    if view.lines is None:
        return None
    host = view.trace.host_events.select("start_ns").with_columns(view.lines.rows["before"])
    for gap in gaps.sort("idle_ns", descending=True).head(SHOWN).iter_rows(named=True):
        meanwhile = host.filter(
            pl.col("start_ns").is_between(gap["start_ns"], gap["launched_ns"]),
            pl.col("before").is_not_null(),
        )
        if len(meanwhile):
            return meanwhile["before"][0]
    return None


def _unexplained(view: RankView) -> pl.DataFrame:
    """Unexplained idle time before work whose launch was recorded: with its ``op`` and ``launched_ns``."""
    device, host = view.trace.device_events, view.trace.host_events
    gaps = view.idle("unexplained").filter(pl.col("start_ns") > view.first_work_ns)
    ended = device.select("op", "launch")[gaps["next"]]
    return gaps.with_columns(
        ended.select(op=pl.coalesce("op", "launch")).to_series(),
        launched_ns=host["start_ns"][ended["launch"]],
    ).drop_nulls("launched_ns")


def _longest(view: RankView, gaps: pl.DataFrame) -> list[Evidence]:
    notable = gaps.filter(pl.col("idle_ns") >= LOW * view.step_us * 1000)
    longest = notable.sort("idle_ns", descending=True).head(SHOWN)
    return [_gap(view, gap) for gap in longest.iter_rows(named=True)]


def _gap(view: RankView, gap: dict[str, int | None]) -> Evidence:
    op, start, end = gap["op"], gap["start_ns"] or 0, gap["end_ns"] or 0
    name = "" if op is None else f" before {view.trace.host_events['name'][op]}"
    shown = () if op is None else (int(view.trace.host_events["event"][op]),)
    return Evidence(f"idle {numbers.time((end - start) / 1000)}{name}", start / 1000, end / 1000, shown)
