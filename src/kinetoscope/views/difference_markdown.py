"""A comparison as Markdown, small enough for a comment on a pull request."""

from __future__ import annotations

from collections.abc import Iterable

from kinetoscope import numbers
from kinetoscope.document.difference import ChangePart, Difference
from kinetoscope.render import names
from kinetoscope.render.markdown import code, escape
from kinetoscope.views import difference_words as words

CHANGES, COUNTS, FINDINGS, CODE_LINES = 8, 12, 6, 60
PARTS = 3  # of each
MARKS = {"faster": "🟢", "slower": "🔴", "same": "⚪", "cannot tell": "🟡"}


def render(found: Difference) -> str:
    """Headline, gates, causes and counts; the rest is folded."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Difference) -> Iterable[str]:
    mark = "⚠️" if found.lost else MARKS.get(found.step.verdict, "⚪") if found.step else "⚪"
    yield f"### {mark} {escape(words.headline(found))}"
    yield ""
    yield f"{escape(words.title(found))}"
    if found.step:
        notes = [found.step.basis, words.REMARKS[found.comparability], words.next_step(found)]
        yield f"<sub>{escape('; '.join(filter(None, notes)))}</sub>"
    if why := [why for why in found.why if why not in found.lost[:1]]:  # the headline says that one
        yield from ("", *(f"- ⚠️ {escape(one)}" for one in why))
    if found.gates:
        yield ""
    yield from _gates(found)
    yield from _changes(found)
    yield from _counts(found)
    yield from _findings(found)
    if found.code:
        lines = found.code.splitlines()
        shown = [names.printable(line).replace("```", "'''") for line in lines[:CODE_LINES]]
        yield from (
            "",
            "<details><summary>The generated kernel, before and now</summary>",
            "",
            "```diff",
            *shown,
        )
        yield from ("```", "", "</details>")


def _gates(found: Difference) -> Iterable[str]:
    for gate in found.gates:
        culprit = f": **{escape(gate.culprit)}**" if gate.culprit else ""
        place = f" ({code(gate.source)})" if gate.source else ""
        yield f"- {'❌' if gate.failed else '✅'} {code(gate.gate)}: {escape(gate.words)}{culprit}{place}"


def _changes(found: Difference) -> Iterable[str]:
    if not found.changes:
        return
    yield from ("", f"| {words.reason(found)[0].lower()} | step | |", "|---|---:|---|")
    for change in found.changes[:CHANGES]:
        yield f"| {code(change.name)} | {words.signed(change.delta_us)} | {_detail(change)} |"
    left = found.changes[CHANGES:]
    if left:
        together = words.signed(sum(change.delta_us for change in left))
        yield f"| {numbers.count(len(left), 'smaller change')} together | {together} | |"


def _detail(change: ChangePart) -> str:
    place = words.where(change)
    parts = "".join(f"<br>{words.signed(part.delta_us)} {code(part.name)}" for part in change.parts[:PARTS])
    return escape(words.did(change)) + (f", {code(place)}" if place else "") + parts


def _counts(found: Difference) -> Iterable[str]:
    differing = list(words.counts(found))
    if not differing:
        return
    yield from ("", "| counted | base | new |", "|---|---:|---:|")
    yield from (f"| {escape(row.words)} | {base} | {new} |" for row, base, new in differing[:COUNTS])


def _findings(found: Difference) -> Iterable[str]:
    rows = [*(("new", row) for row in found.findings_come), *(("gone", row) for row in found.findings_gone)]
    if rows:
        yield ""
    for sign, row in rows[:FINDINGS]:
        where = f" ({code(row.source)})" if row.source else ""
        yield f"- finding {sign}: **{escape(row.rule)}** {escape(row.title)}{where}"
