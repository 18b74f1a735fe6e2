"""Two runs compared: what changed in the step, by how much, because of what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TextIO

from rich.console import Console

from kinetoscope import numbers
from kinetoscope.comparison.account import OUTSIDE_OF_OPS
from kinetoscope.comparison.changes import KERNEL, OF_TIMES
from kinetoscope.comparison.compiler import Fact
from kinetoscope.comparison.gates import interval_words
from kinetoscope.document import difference as document
from kinetoscope.render import names, palette, terminal
from kinetoscope.render.blocks import *
from kinetoscope.render.formats import Extent, View
from kinetoscope.render.terminal import LISTING_WIDTH, Screen, Section
from kinetoscope.views import memory_change
from kinetoscope.views.gates import gate_lines, mark

SCREEN = Screen(
    least={"lead": 3, "changes": 3, "counts": 3, "gates": 9},
    less=(("counts", 0), ("lead", 1), ("changes", 1), ("gates", 4)),
    more=(
        ("changes", 5), ("memory", 6), ("counts", 6), ("findings", 2), ("categories", 3), ("idle", 2),
        ("changes", 8), ("lead", 6), ("findings", 4), ("counts", 12), ("categories", 5), ("modules", 3),
        ("lines", 4), ("idle", 4), ("changes", 10),
    ),
)  # fmt: skip
WHOLE = {
    "lead": 99, "changes": 60, "counts": 99, "findings": 99, "categories": 99, "ops": 30, "modules": 30,
    "graphs": 30, "lines": 30, "idle": 20, "code": 200, "gates": 99, "memory": 30,
}  # fmt: skip
# A file is small enough for a comment on a pull request.
FILE = {"lead": 99, "gates": 99, "changes": 8, "memory": 8, "counts": 12, "findings": 6, "code": 60}
PARTS, FILE_PARTS = 2, 3  # of each change
LEADING = 2  # failed gates that the heading names
OF_IDLE = {
    "added": "idle time added", "removed": "idle time removed",
    "more": "more idle time", "less": "less idle time",
}  # fmt: skip
COMMIT = 10  # characters of a commit
WHOLE_NUMBER = 0.05  # launches per step that are so near to one are as many in each step
PAGE = 60  # rows of a table of a page
TOGETHER = ("together", "of times or some steps alone together: it may be noise")  # smaller changes, noise
FEW = 3  # changes that are shown where none takes much time
SHOWN, SMALL = 8, 0.002  # changes that a page does not fold: so many, and all above this part of the step
COMPARABLE = {"good": "green", "limited": "yellow", "none": "bold red"}
STEP = {**palette.VERDICTS, "same": "green", "cannot tell": "yellow"}
MARKS = {"faster": "🟢", "slower": "🔴", "same": "⚪", "cannot tell": "🟡"}
NEITHER = "of two that are not comparable"
REMARKS = {
    "good": "comparable: the same device, software and settings",
    "limited": "comparable with limits",
    "none": "not comparable: the times say nothing of the program",
}


def title(found: document.Difference) -> str:
    sides = " → ".join(map(_version, (found.base, found.new)))
    known = [*dict.fromkeys(map(_place, (found.base, found.new)))]
    return " · ".join([sides, *filter(None, known)])


def _version(side: document.ComparedRun) -> str:
    paths = ", ".join(map(names.from_here, side.inputs))
    return f"{paths} ({side.commit[:COMMIT]})" if side.commit else paths


def _place(side: document.ComparedRun) -> str:
    torch = [f"torch {side.torch}"] if side.torch else []
    return ", ".join([*side.devices, *torch])


def headline(found: document.Difference) -> str:
    """By how much the step differs, or why that is unknown, as of an incomplete recording."""
    step = found.step
    if found.lost:
        return f"Nothing can be judged: {found.lost[0]}"
    if step is None and found.memory is not None:
        return memory_change.headline(found.memory)
    if step is None:
        return "Nothing but compiling was recorded in one of them: no step to compare."
    times = f"{step.unit} {numbers.time(step.base_us)} → {numbers.time(step.new_us)}"
    if step.mean_us is not None:
        before, after = (numbers.time(us) for us in step.mean_us)
        times += f" at the median, {before} → {after} at the mean with rare long steps"
    verdict, much = _verdict(found), numbers.percent(abs(step.fraction))
    if verdict == "same":
        return f"{times}: the same {interval(step)}"
    if verdict in ("cannot tell", NEITHER):
        sign = "+" if step.fraction >= 0 else numbers.MINUS
        return f"{times}, {sign}{much}: {verdict} {interval(step)}"
    return f"{times}: {verdict} by {numbers.time(abs(step.delta_us))}, {much} {interval(step)}"


def _verdict(found: document.Difference) -> str:
    """The verdict of the steps' times; of two programs or devices there is none, however far apart."""
    if found.step is None:
        return ""
    return NEITHER if found.comparability == "none" else found.step.verdict


def interval(step: document.StepChange) -> str:
    return f"({interval_words(step.low_fraction, step.high_fraction)})"


def device_time(found: document.Difference) -> str | None:
    """By how much the device's work in a step differs, where that is known and the step's time is not."""
    work, step = found.device_time, found.step
    if work is None or step is None or step.verdict != "cannot tell" or work.verdict == "cannot tell":
        return None
    times = f"The device's work in it: {numbers.time(work.base_us)} → {numbers.time(work.new_us)}"
    return f"{times}, {work.verdict if work.verdict != 'same' else 'the same'} {interval(work)}"


def reason(found: document.Difference) -> tuple[str, str]:
    """The heading of what changed, and what is to be known of it."""
    if found.step is None:
        return "In compiling", ""
    if _verdict(found) in ("faster", "slower"):
        return "Because of", f"sums to the {found.step.unit}'s difference"
    return "What differs", "what was done otherwise first; times alone may be noise"


def failures(failed: Sequence[document.Judgement]) -> str:
    words = (
        f"{gate.words}{f' ({names.from_here(gate.source)})' if gate.source else ''}"
        for gate in failed[:LEADING]
    )
    more = f"; and {len(failed) - LEADING} more" if len(failed) > LEADING else ""
    return "; ".join(words) + more


def next_step(found: document.Difference) -> str | None:
    """The command or recording that would settle it, where the times do not."""
    if found.lost:
        return "Record it again: what is shown below is of what is left"
    if found.step is None or found.step.verdict != "cannot tell" or found.comparability == "none":
        return None
    several = "more runs of each" if found.base.runs + found.new.runs > 2 else "five runs of each, in folders"
    return f"To tell: {several} (in turn), or kinetoscope compare"


def did(change: document.Change) -> str:
    """The change in a few words: how often, how long each."""
    before, after = change.launches
    each = change.per_launch_us
    if change.cause and change.cause != OUTSIDE_OF_OPS and before == after:
        return OF_IDLE.get(change.what, change.what)
    if change.kind not in ("kernel", "op"):
        return f"{_times(before)} → {_times(after)} launches per step" if before != after else change.what
    if change.what in ("slower", "faster") and each is not None and not all(each):
        overlapped = "no longer overlapped by other work" if each[1] else "now overlapped by other work"
        return f"{overlapped}: {numbers.time(each[0])} → {numbers.time(each[1])} of its own each"
    if change.what in ("slower", "faster") and each is not None:
        return f"{change.what} at the same work: {numbers.time(each[0])} → {numbers.time(each[1])} each"
    if change.what in ("slower", "faster"):
        return f"{change.what}: {numbers.time(_us(change, 0))} → {numbers.time(_us(change, 1))} per step"
    return f"{change.what}: {_times(before)} → {_times(after)} per step"


def _us(change: document.Change, side: int) -> float:
    return sum(work.us for work in (change.base, change.new)[side])


def _times(count: float) -> str:
    return f"{count:,.0f}" if abs(count - round(count)) < WHOLE_NUMBER else f"{count:,.1f}"


def where(change: document.Change) -> str:
    """The op and the line."""
    own = [work.name for work in (*change.base, *change.new)]
    ops = [op for op in change.ops if op not in own][:2]
    return " · ".join([*ops, *([names.from_here(change.source)] if change.source else [])])


def counts(found: document.Difference) -> Iterable[tuple[document.CountChange, str, str]]:
    """The counts that differ, exact ones first, with both values."""
    differing = [
        row for row in found.counts if row.base is not None and row.new is not None and row.base != row.new
    ]
    for row in sorted(differing, key=lambda row: not row.exact):
        yield row, numbers.quantity(row.base or 0.0, row.unit), numbers.quantity(row.new or 0.0, row.unit)


def same_counts(found: document.Difference) -> list[str]:
    """Names of what is counted exactly and did not change."""
    return [row.name for row in found.counts if row.exact and row.base is not None and row.base == row.new]


def show(found: document.Difference, console: Console, *, whole: bool = False) -> None:
    """Print what differs; ``whole``: not only what fits on a screen."""
    if whole:
        terminal.show(blocks(found, "whole"), console)
    else:
        SCREEN.show(_sections(found, "screen"), console)


def view(found: document.Difference, page: Callable[[], str]) -> View:
    """The comparison in every format that it has."""
    return View(document=lambda: found, blocks=partial(blocks, found), page=page, width=LISTING_WIDTH)


def blocks(found: document.Difference, extent: Extent) -> list[Block]:
    """All sections, with the rows that the extent has room for."""
    sections, rows = _sections(found, extent), FILE if extent == "file" else WHOLE
    order = FILE if extent == "file" else sections
    return [block for name in order if name in sections for block in sections[name](rows[name])]


def complain(found: document.Difference, stream: TextIO) -> None:
    """The gates that failed, each with who did it."""
    for gate in found.gates:
        if gate.failed:
            place = f" ({names.plain(gate.source)})" if gate.source else ""
            culprit = f": {names.plain(gate.culprit)}{place}" if gate.culprit else ""
            stream.write(f"kinetoscope: {gate.gate} failed: {names.plain(gate.words)}{culprit}\n")


def sums(found: document.Difference) -> dict[str, tuple[str, list[document.SumChange]]]:
    """The tables of what the step consists of: each its title and rows."""
    return {
        "categories": ("Busy by category", found.categories),
        "idle": ("Idle by cause", found.idle),
        "ops": ("Busy by op", found.ops),
        "modules": ("Busy by module", found.modules),
        "graphs": ("Busy by compiled graph", found.graphs),
        "lines": ("Busy by line", found.lines),
    }


def page(found: document.Difference) -> dict[str, list[Block]]:
    """The page's blocks above its timelines (what to know first, and the gates), with them, and below."""
    shown = {name: list(section(PAGE)) for name, section in _sections(found, "page").items()}
    above = [*shown.pop("lead"), *shown.pop("gates", [])]
    return {"above": above, "legend": list(_legend(found)), "below": [*chain.from_iterable(shown.values())]}


def _legend(found: document.Difference) -> Iterable[Block]:
    sums: Counter[str] = Counter()
    for piece in (piece for side in found.timelines or () for piece in side):
        sums[piece.category] += round(1000 * piece.duration_us)
    marks = ((Text("● ", palette.category(name)), f"{name}  ") for name, _ in sums.most_common())
    if sums:
        yield line(*(part for mark in marks for part in mark), style="dim")


def _sections(found: document.Difference, extent: Extent) -> Mapping[str, Section]:
    sections: dict[str, Section] = {"lead": partial(_page_lead if extent == "page" else _lead, found)}
    if found.changes or found.facts:
        parts = FILE_PARTS if extent == "file" else PARTS
        sections["changes"] = (
            partial(_foldable_changes, found)
            if extent == "page"
            else partial(_changes, found, parts, extent == "whole")
        )
    if found.memory is not None and len(set(found.memory.requested_bytes)) > 1:
        sections["memory"] = partial(memory_change.section, found.memory)
    sections["counts"] = partial(_counts, found)
    if found.findings_gone or found.findings_come:
        sections["findings"] = partial(_findings, found)
    folded = False
    for name, (heading, rows) in sums(found).items():
        if len(rows) > 1 or (rows and (name == "idle" or extent == "page")):
            sections[name] = partial(_sums, heading, rows, folded)
            folded = extent == "page"
    if found.code:
        sections["code"] = partial(_page_code if extent == "page" else _code, found.code)
    if found.gates:
        sections["gates"] = partial(_page_gates if extent == "page" else _gates, found)
    return sections


def _cut(text: str) -> Line:
    return Line((Text(text, "dim"),), overflow="cut")


def _lead(found: document.Difference, most: int) -> Iterable[Block]:
    step = found.step
    mark = "⚠️" if found.lost else MARKS.get(_verdict(found), "⚪")
    failed = [gate for gate in found.gates if gate.failed]
    unknown = step is not None and step.verdict == "cannot tell"
    if failed and not found.lost:
        words = f"the {step.unit}'s time: cannot tell" if step and unknown else headline(found)
        yield Only("page", Heading(f"❌ {failures(failed)}; {words}", level=3))
    else:
        yield Only("page", Heading(f"{mark} {headline(found)}", level=3))
    yield _cut(title(found))
    yield Status(REMARKS[found.comparability], found.comparability == "good", COMPARABLE[found.comparability])
    if found.why:
        yield Items(tuple(found.why[:most]))
    yield from rest(len(found.why) - most, "difference")
    yield Line()
    sentence = Prose(headline(found), f"bold {STEP.get(_verdict(found), '')}".strip())
    yield sentence if failed and unknown else Only("screen", sentence)
    if work := device_time(found):
        yield line(work)
    if step:
        yield line(step.basis, style="dim")
    if advice := next_step(found):
        yield _cut(advice)


def _page_lead(found: document.Difference, most: int) -> Iterable[Block]:
    style = STEP.get(_verdict(found), "")
    yield line(title(found), style="dim")
    yield Heading(headline(found), level=1, style=style)
    yield Status(REMARKS[found.comparability], found.comparability == "good")
    if found.why:
        yield Items(tuple(found.why))
    for words in (device_time(found), found.step.basis if found.step else "", next_step(found)):
        yield from [line(words, style="dim")] if words else []


def _changes(found: document.Difference, parts: int, whole: bool, most: int) -> Iterable[Block]:
    """The largest changes; where times may be noise, ``whole`` alone has rows of those of times."""
    noise = [] if whole else [change for change in found.changes if is_noise(found, change)]
    changes = [change for change in found.changes if change not in noise]
    least_us = SMALL * found.step.base_us if found.step and not whole else 0.0
    shown = [change for change in changes[:most] if abs(change.delta_us) >= least_us or change.parts]
    shown = shown or changes[: min(FEW, most)]  # what ran otherwise is certain, however little time it takes
    smaller = [change for change in changes if change not in shown]
    yield Heading(*reason(found))
    base_us = found.step.base_us if found.step else 0.0
    facts = _other_facts(found)
    rows: list[tuple[Cell, ...]] = [
        ("", "", (Text(f"{names.from_here(fact.source)}  " if fact.source else "", "dim"), fact.name))
        for fact in facts[:most]
    ]
    rows += [row for change in shown for row in _change_rows(change, parts, base_us)]
    for left, what in ((smaller, "smaller change"), (noise, "change")):
        if left:
            together = numbers.signed(sum(change.delta_us for change in left))
            words = TOGETHER[left is noise]
            rows.append((together, "", (Text(f"{numbers.count(len(left), what)} {words}", "dim"),)))
    columns = (
        Column("step", "number"),
        Column("of the base's", "text", only="page"),
        Column("change", "name"),
    )
    yield Table(columns, rows, heads=False)
    yield from rest(len(facts) - most, "difference")


def is_noise(found: document.Difference, change: document.Change) -> bool:
    """Whether only times differ in a change, or some of the steps alone have it, of a step whose time is
    unknown; what the device's work takes may be known by itself."""
    known = {"faster", "slower"}
    if found.step is None or found.step.verdict in known or change.parts:
        return False
    if change.what not in OF_TIMES:
        return any(abs(count - round(count)) >= WHOLE_NUMBER for count in change.launches)
    device = found.device_time is not None and found.device_time.verdict in known
    return not (device and change.kind == KERNEL)


def _foldable_changes(found: document.Difference, most: int) -> Iterable[Block]:
    """All changes with their parts; those that hardly matter are folded, and those that may be noise."""
    least_us = SMALL * found.step.base_us if found.step else 0.0
    noise = [change for change in found.changes if is_noise(found, change)]
    changes = [change for change in found.changes if change not in noise]
    matters = [place < SHOWN or abs(change.delta_us) >= least_us for place, change in enumerate(changes)]
    shown = [change for change, does in zip(changes, matters, strict=True) if does]
    smaller = [change for change, does in zip(changes, matters, strict=True) if not does]
    yield Heading(*reason(found))
    if shown:
        yield _changes_with_parts(shown)
    for fact in _other_facts(found):
        yield line(f"{fact.name}  {fact.source or ''}", style="dim")
    for left, what in ((smaller, "smaller change"), (noise, "change")):
        if left:
            together = numbers.signed(sum(change.delta_us for change in left))
            yield Heading(
                numbers.count(len(left), what), f"{TOGETHER[left is noise]}, {together}", folded=True
            )
            yield _changes_with_parts(left)


def _changes_with_parts(changes: Iterable[document.Change]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for change in changes:
        for depth, part in enumerate((change, *change.parts)):
            known = [work.name for work in (*part.new, *part.base)]
            style = "red" if part.delta_us > 0 else "green"
            place = where(part)
            rows.append((
                Text(numbers.signed(part.delta_us), f"{style} dim" if depth else style),
                Text(part.name, "dim" if depth else "", "kernel", known[0] if known else "", min(depth, 1)),
                (did(part), Text(place, "dim")) if place else did(part),
            ))  # fmt: skip
    return Table((Column("step", "change"), Column("change", "name"), Column("", "words")), rows)


def _other_facts(found: document.Difference) -> list[Fact]:
    """The facts that no change is named after."""
    claimed = {change.name for change in found.changes}
    return [fact for fact in found.facts if not any(fact.name in name for name in claimed)]


def _change_rows(change: document.Change, parts: int, base_us: float) -> Iterable[tuple[Cell, ...]]:
    style = "red" if change.delta_us > 0 else "green"
    share = numbers.change(change.delta_us / base_us) if base_us else ""
    yield Text(numbers.signed(change.delta_us), style), share, Text(change.name, "", "kernel", change.name)
    place = where(change)
    yield "", "", (Text(did(change) + (f", {place}" if place else ""), "dim"),)
    for part in change.parts[:parts]:
        name = Text(part.name, "dim", "kernel", part.name)
        yield "", "", (Text(f"{numbers.signed(part.delta_us)}  ", "dim"), name)


def _counts(found: document.Difference, most: int) -> Iterable[Block]:
    differing = list(counts(found))
    same = same_counts(found)
    if not differing:
        if same:
            yield Line()
            yield line(f"Every count is the same: {', '.join(same)}", style="dim")
        return
    yield Heading("Counted", "of the usual step; of compiling, in all")
    yield table(
        differing,
        field("count", "text", lambda row: row[0].name),
        field("base", "number", lambda row: row[1]),
        field("", "text", lambda _: "→", "dim", only="screen"),
        field("new", "number", lambda row: row[2]),
        field("what is counted", "words", lambda row: _counted(row[0]), "dim"),
        most=most,
        noun="count",
        leave=(4,),
        heads=False,
    )


def _counted(row: document.CountChange) -> str:
    words = row.words if row.exact else f"{row.words} (may differ from run to run)"
    return f"{words}; {row.most}" if row.most else words


def _findings(found: document.Difference, most: int) -> Iterable[Block]:
    yield Heading("Findings", "that only one of them has")
    rows: list[tuple[Text, document.FindingChange]] = [
        *((Text("new", "red"), row) for row in found.findings_come),
        *((Text("gone", "green"), row) for row in found.findings_gone),
    ]
    yield table(
        rows,
        field("", "text", lambda row: row[0]),
        field("finding", "text", lambda row: Text(row[1].rule, "", "finding", row[1].rule)),
        field("", "words", lambda row: row[1].title),
        field("line", "text", lambda row: names.from_here(row[1].source or ""), only="page"),
        most=most,
        noun="finding",
        heads=False,
    )


def _sums(heading: str, rows: list[document.SumChange], folded: bool, most: int) -> Iterable[Block]:
    yield Heading(heading, "per step", folded=folded)
    yield table(
        rows,
        field("", "name", "name"),
        field("base", "time", "base_us"),
        field("new", "time", "new_us"),
        field("difference", "change", "delta_us"),
        most=most,
    )


def _code(code: str, most: int) -> Iterable[Block]:
    lines = code.splitlines()
    yield Only("screen", Heading("The generated kernel", "before and now"))
    text = "\n".join(lines[:most])
    yield Code(text, "diff", "The generated kernel, before and now", max(0, len(lines) - most))


def _page_code(code: str, _: int) -> Iterable[Block]:
    yield Heading("The generated kernel", "before and now", folded=True)
    yield Code(code, "diff")


def _page_gates(found: document.Difference, most: int) -> Iterable[Block]:
    yield Heading("Gates")
    for gate in found.gates[:most]:
        by = f": {gate.culprit}{f' ({gate.source})' if gate.source else ''}" if gate.culprit else ""
        yield line(mark(gate), f"  {gate.gate}: {gate.words}", Text(by, "dim"))


def _gates(found: document.Difference, most: int) -> Iterable[Block]:
    yield Heading("Gates")
    yield from gate_lines(found.gates[:most], is_cut=True)
