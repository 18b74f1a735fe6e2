"""Findings: what is slow, why, what to change, what that saves, and how it was decided."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from kinetoscope import __version__, numbers
from kinetoscope.document import FindingRow, FindingsListing, Report, SecondRecording
from kinetoscope.render import names, palette
from kinetoscope.render.blocks import *
from kinetoscope.render.sarif import SarifResult

STYLES = {"high": "bold red", "medium": "yellow", "low": "blue", "info": "dim"}
INDENT = 3
SIMILAR = 0.25  # savings that differ by less are not distinguished
UNLIKE = 0.1  # mean and median of steps that are so far apart are both given
EVENTS = 4  # event numbers that a line of evidence shows
LINES = 3  # lines of the program that a finding names
ROUGH = 0.1  # an error of the replay above which figures have one digit
# A finding's saving is worded differently where so much of it is another's, or only comes with others'.
OWNED, WORTH = 0.5, 0.005


def section(report: Report, most: int, *, everything: bool = False) -> Iterable[Block]:
    """The report's section: what to change; with ``everything`` also what only informs, and all evidence."""
    if shown := (report.findings if everything else worth_doing(report))[:most]:
        yield Heading("Findings", "what to change, in this order")
        if words := little(report):
            yield Prose(words)
        yield Labelled(tuple((_severity(row), tuple(_entry(report, row, everything))) for row in shown))
        if all_of_it := together(report):
            yield Prose(all_of_it)
        yield from rest(len(report.findings) - len(shown), "finding")
    yield from (line(Text(names.ended_early(problem, 300), "yellow")) for problem in report.unread)


def _severity(row: FindingRow) -> Text:
    return Text(row.severity, STYLES[row.severity] if row.severity in ("high", "medium", "low") else "")


def _entry(report: Report, row: FindingRow, everything: bool) -> Iterable[Prose | Items]:
    where = f" ({row.source})" if row.source else ""
    saves = saving(report, row)
    saves = f"{saves[0].upper()}{saves[1:]}. " if saves else ""
    yield Prose(names.shorten(row.title, 240), "bold" if everything else "")
    yield Prose(f"{saves}{names.ended_early(row.advice, 300)}{where}", "dim")
    if found := measured(row):
        basis = f" ({row.measured_basis})" if everything and row.measured_basis else ""
        yield Prose(f"M{found[1:]}{basis}.", palette.verdict(row.measured_verdict))
    if everything and row.evidence:
        yield Items(tuple(item.text for item in row.evidence))


def document(found: FindingsListing) -> dict[str, object]:
    """The contract's rows, what their savings are per, what cannot be read, what a second recording shows."""
    return {
        "kinetoscope": __version__,
        "findings": found.findings,
        "savings_per": found.unit,
        "unread": found.unread,
        "after": found.after,
    }


def listing(found: FindingsListing, most: int = 0) -> Iterable[Block]:
    """Findings, ``most`` of them (0: all), each with its saving, advice, code, evidence and command."""
    if found.after is not None:
        yield line(_after(found.after))
        yield Line()
    yield from (line(Text(problem, "yellow")) for problem in found.unread)
    if not found.findings:
        yield line(Text("Nothing found: no rule has anything to say about this recording.", "green"))
        return
    counted = [(level, sum(row.severity == level for row in found.findings)) for level in STYLES]
    levels = " · ".join(f"{count} {level}" for level, count in counted if count)
    yield line(Text(f"{numbers.count(len(found.findings), 'finding')}  ", "bold"), Text(levels, "dim"))
    shown = found.findings[: most or None]
    for number, row in enumerate(shown, 1):
        yield Line()
        yield from _finding(found, number, row)
    yield Line()
    if left := rest(len(found.findings) - len(shown), "finding"):
        yield from (*left, Line())
    command = f"kinetoscope explain {shlex.quote(names.plain(found.findings[0].rule))}"
    yield Commands(((command, "what the first one is, and how it was decided"),))


def _after(after: SecondRecording) -> str:
    together = numbers.count(len(after.gone), "finding")
    promised = f"{together} gone, which promised {numbers.time(after.predicted_us)} per step"
    if not after.gone:
        promised = "No finding is gone"
    return f"{promised}; measured {numbers.time(after.saving_us)}, {after.verdict} ({after.basis})"


def _finding(found: FindingsListing, number: int, row: FindingRow) -> Iterable[Block]:
    ranks = f"  ranks {_ranks(row.ranks)}" if len(row.ranks) > 1 else ""
    yield line(
        f"{number}  ",
        Text(f"{names.plain(row.severity):<6} ", STYLES.get(row.severity, "")),
        Text(row.rule, "bold", "finding", row.rule),
        Text(ranks, "dim"),
    )
    yield Line((numbers.together(names.plain(row.title)),), INDENT)
    yield Labelled(tuple((Text(label, "dim"), (words,)) for label, words in _lines(found, row)), INDENT)


def _lines(found: FindingsListing, row: FindingRow) -> Iterable[tuple[str, Line]]:
    """The facts of a finding, each behind its label; what is to be copied is never folded."""
    share = f"{numbers.percent(row.share_of_step)} of the {found.unit}; " if row.saving_us > 0 else ""
    basis = Text(f"  ({share}{row.saving_basis})", "dim")
    # What is only a question ("what if it were twice as fast?"), or not sure, is not promised in green.
    words = saving(found, row)
    style = "" if row.severity == "info" or row.saving_condition else "green"
    label = "affects" if words.startswith("affects ") else "saves"
    yield label, line(Text(words.removeprefix(f"{label} ") or "–", style if words else ""), basis)
    if row.stands_below:
        yield "place", line(row.stands_below)
    if result := measured(row):
        words = result.removeprefix("measured").lstrip(": ")
        style = palette.verdict(row.measured_verdict)
        yield "measured", line(Text(words, style), Text(f"  ({row.measured_basis or ''})", "dim"))
    yield "do", line(row.advice)
    for code in names.printable(row.snippet or "").splitlines():
        yield "", Line((Text(code, "cyan"),), overflow="whole")
    if row.source:
        function = next(
            (text.partition(" ")[2] for text in row.lines if text.startswith(f"{row.source} ")), ""
        )
        yield "where", line(place(row.source), Text(f"  in {function}" if function else "", "dim"))
    others = [text for text in row.lines if text.partition(" ")[0] != row.source]
    for i, text in enumerate(others[:LINES]):
        yield "" if i else "also at", line(text)
    yield from (("", left) for left in rest(len(others) - LINES, "line"))
    for i, seen in enumerate(row.evidence):
        events = ", ".join(map(str, seen.events[:EVENTS])) + ("…" if len(seen.events) > EVENTS else "")
        at = numbers.time(max(seen.start_us - found.start_us, 0.0))
        where = Text(f"  at {at}" + (f", events {events}" if events else ""), "dim")
        yield "" if i else "see", line(seen.text, where)
    if row.proof and not row.is_measured:
        yield "prove", Line((Text(row.proof, "cyan", "command", row.proof),), overflow="whole")
        if row.proof_lacks:
            yield "", line(f"it needs {names.plain(row.proof_lacks)}, which is not here", style="dim")


def _ranks(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + ("…" if len(ranks) > 8 else "")


def results(report: Report, inputs: Sequence[str]) -> list[SarifResult]:
    """The findings as a code host shows them: those without a line stand at the recording itself."""
    return [_result(report, row, inputs) for row in report.findings]


def _result(report: Report, row: FindingRow, inputs: Sequence[str]) -> SarifResult:
    saves = saving(report, row)
    file, _, number = (row.source or "").rpartition(":")
    if not number.isdigit():
        file, number = row.source or (inputs[0] if inputs else "recording"), ""
    return SarifResult(
        rule=row.rule,
        severity=row.severity,
        text=f"{row.title}{f' ({saves})' if saves else ''}. {row.advice}",
        file=file,
        line=max(1, int(number)) if number else None,
        properties={"saving_us": row.saving_us, "share_of_step": row.share_of_step},
    )


def worth_doing(report: Report) -> list[FindingRow]:
    """The findings that ask for a change of the program; those that only inform are left out, and those of
    the profiler's own cost, which the notes on the recording's health mention."""
    return [row for row in report.findings if row.severity != "info" and not row.of_the_profiler]


def saving(of: Report | FindingsListing, row: FindingRow) -> str:
    """The estimated saving of a finding's advice, and of what; empty where it claims none."""
    return plain(saving_parts(of, row))


def saving_parts(of: Report | FindingsListing, row: FindingRow) -> tuple[Inline, ...]:
    """The same with a link to the finding above that saves most of it already: the time that the finding is
    about, what its advice saves by itself, and what on top of the findings above."""
    per = " per step" if _per_step(of) else ""
    amount = numbers.roughly if _is_rough(of) else numbers.time
    # What goes with it (calls, Python) and the pace of the program may make it less than what is saved.
    partly = row.affected_us > row.saving_alone_us
    affects = f"affects {numbers.time(row.affected_us)}{per}, " if partly else ""
    if row.saving_us <= 0 and row.saving_bytes:
        return (f"frees {freed(row)}",)
    if row.saving_us <= 0 and not row.also and row.paced_by is None and not row.saving_condition:
        return (affects.removesuffix(", "),) if affects else ()
    left = amount(row.saving_us)
    alone = amount(row.saving_alone_us) if row.saving_alone_us else "nothing"
    if row.saving_condition:
        whose = f" {of_its_own(row)}," if row.paced_by is not None else per
        return (f"{affects}saves about {alone}{whose} if {names.plain(row.saving_condition)}",)
    if row.paced_by is not None:
        more = f"{left}{per}, " if row.share_of_step >= WORTH else ""
        return (f"{affects}saves about {more}{alone} {of_its_own(row)}",)
    if row.also and row.saving_us < OWNED * row.saving_alone_us:
        left = left if row.share_of_step >= WORTH else "nothing"
        start = f"{affects}saves about {alone}{per} alone, {left} on top of those above: most of it is what "
        return start, Text(names.plain(row.also), "", "finding", row.also), " saves"
    if abs(row.saving_alone_us - row.saving_us) > SIMILAR * row.saving_us:
        return (f"{affects}saves about {alone}{per} alone, {left} on top of those above",)
    if row.saving_on_critical_path:
        return (f"{affects}saves about {left}{per}",)
    return (f"{affects}frees about {left} of device time{per}",)


def _per_step(of: Report | FindingsListing) -> bool:
    return bool(of.steps) if isinstance(of, Report) else of.unit == "step"


def _is_rough(of: Report | FindingsListing) -> bool:
    error = (of.replay.error if of.replay else 0.0) if isinstance(of, Report) else of.replay_error
    return abs(error) > ROUGH


def freed(row: FindingRow) -> str:
    """The memory of the device that a finding's advice frees."""
    about = "at most" if row.saving_bytes_at_most else "about"
    return f"{about} {numbers.size(row.saving_bytes)} at the peak{enough(row)}"


def enough(row: FindingRow) -> str:
    """Whether the allocation that failed would have had room; empty where none failed."""
    if row.saving_is_enough is None:
        return ""
    what = "for the allocation that failed"
    return f": enough {what}, if in one piece" if row.saving_is_enough else f": not enough alone {what}"


def of_its_own(row: FindingRow) -> str:
    """The rank whose step ``saving_alone_us`` is of, where another rank sets the pace."""
    whose = f"rank {row.ranks[0]}'s own step" if len(row.ranks) == 1 else "these ranks' own steps"
    return f"of {whose}: rank {row.paced_by} sets the pace of all"


def little(report: Report) -> str:
    """A sentence where no finding saves more than runs differ by; empty where one does, or may."""
    rows = worth_doing(report)
    most = max(rows, key=lambda row: row.saving_us, default=None)
    if most is None or most.saving_us <= 0:
        return ""
    for row in rows:
        may_save = row.saving_us <= 0 and (row.saving_high_us or 0.0) > most.saving_us
        if row.severity in ("high", "medium") or row.saving_bytes or row.paced_by is not None or may_save:
            return ""
    what = "step" if report.steps else "recording"
    return (
        f"There is little to gain here: none of these saves more than {numbers.percent(most.share_of_step)} "
        f"of the {what}, and runs of one program differ by as much."
    )


def together(report: Report) -> str:
    """The saving of all findings together, and how far its replay can be trusted; empty of one at most."""
    replay, saves = report.replay, [row for row in worth_doing(report) if row.saving_us > 0]
    if replay is None or not replay.joint_saving_us or len(saves) < 2:
        return ""
    typical = report.as_it_runs.step_us.median if report.as_it_runs else replay.recorded_us
    # What savings are shares of: with a cold start in it the mean is far from what a step usually takes.
    step = replay.savings_of_us or typical
    saved_us, left_us = replay.joint_saving_us, max(0.0, step - replay.joint_saving_us)
    saved, left = numbers.time(saved_us), numbers.time(left_us)
    if _is_rough(report):
        saved, left = numbers.roughly(saved_us), numbers.roughly(left_us, like=saved_us)
    what = "step" if report.steps else "recording"
    before = numbers.time(step)
    if abs(step - typical) > UNLIKE * typical:
        before += f" at the mean ({numbers.time(typical)} at the median)"
    error = numbers.percent(abs(replay.error))
    return (
        f"All together they save about {saved}: a {what} of {before} would take "
        f"about {left}. Savings overlap, so each figure is what that fix adds to those above it. Error of "
        f"the model: {error}{', so that figures are rough' if _is_rough(report) else ''}."
    )


def measured(row: FindingRow) -> str:
    """The measured saving of a finding, next to the predicted one; empty where it was not measured."""
    if row.measured_verdict is None:
        return ""
    saved = row.measured_saving_us
    if saved is None:
        return "measured: it cannot be had"
    amount = f"measured {'' if saved >= 0 else 'a loss of '}{numbers.time(abs(saved))}"
    if row.measured_interval_us is not None:
        low, high = row.measured_interval_us
        amount += f" ({numbers.time(low)} to {numbers.time(high)})"
    # What is only a question ("what if it were twice as fast?") predicts nothing.
    if row.measured_verdict == "faster" and row.severity != "info" and saved > 0 and row.saving_alone_us > 0:
        return f"{amount}; predicted/measured {row.saving_alone_us / saved:.2f}"
    verdict = {"faster": "", "differs": ", but its output differs"}
    return amount + verdict.get(row.measured_verdict, f", {names.plain(row.measured_verdict)}")


def unproved(report: Report) -> FindingRow | None:
    """The finding that promises most of those whose command can be run here and has not been; None: none."""
    open_ones = [
        row
        for row in worth_doing(report)
        if row.proof and not row.proof_lacks and not row.is_measured and row.saving_us > 0
    ]
    return open_ones[0] if open_ones else None
