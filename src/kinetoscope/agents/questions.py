"""The questions that an agent may ask of recordings: rows of the report's own document, most worth first."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import msgspec
import polars as pl

from kinetoscope.agents.answers import CannotAnswer, FullAnswer, Row
from kinetoscope.analysis.query import TABLES, tables
from kinetoscope.analysis.query import query as selected
from kinetoscope.document import FindingRow, Report
from kinetoscope.document.difference import Difference
from kinetoscope.document.page import SourceFile
from kinetoscope.errors import UsageError, meant
from kinetoscope.findings import documentation
from kinetoscope.render import names
from kinetoscope.sources.run import LoadedRun
from kinetoscope.views import headline

RECORD = "kinetoscope run SCRIPT (on the machine with the GPU)"
# What fills the tables of `query` that are empty in some recordings.
HOW = {
    "collectives": "a run of several ranks: kinetoscope run -- torchrun SCRIPT",
    "steps": "kinetoscope run SCRIPT, which finds the steps, or torch's profiler with profiler.step()",
}
AROUND = 6  # lines of code before and after one that a finding names
MOST_KERNELS, MOST_LINES, MOST_EVENTS, MOST_ROWS = 8, 3, 4, 10_000
LONGEST_NAME = 160
MOMENTS = ("start_us", "end_us")  # on the trace's clock: a rounded one is another moment

DEVICE = (
    "rank", "device", "name", "window_us", "busy_us", "busy_fraction", "compute_us", "copy_us",
    "exposed_communication_us", "idle_us", "kernel_launches",
)  # fmt: skip
STEP = (
    "rank", "step_us", "mean_us", "round", "busy_fraction", "waiting", "recorded_step_us", "inflation",
    "basis",
)  # fmt: skip
PHASE = ("rank", "phase", "of", "count", "median_us", "total_us", "busy_us", "launches")
SERVING = (
    "rank", "engine", "phase", "batch", "graph_mode", "n", "span_us", "busy_us", "exposed_idle_us",
    "tokens_per_s", "read_tokens_per_s",
)  # fmt: skip
KERNEL = (
    "name", "category", "launches", "device_time_us", "share_of_device_time", "median_us", "of_peak",
    "could_save_us", "source",
)  # fmt: skip
BRIEF = ("rule", "severity", "title", "saving_us", "share_of_step", "source")
FINDING = (
    "rule", "severity", "title", "advice", "source", "saving_us", "saving_alone_us", "saving_low_us",
    "saving_high_us", "saving_condition", "share_of_step", "saving_bytes", "also", "stands_below",
    "of_the_profiler", "measured_saving_us", "measured_verdict",
)  # fmt: skip
WHOLE = (
    *FINDING, "affected_us", "saving_basis", "saving_on_critical_path", "lines", "ranks", "paced_by",
    "snippet", "proof", "proof_lacks", "measured_interval_us", "measured_basis",
)  # fmt: skip
CHANGE = ("kind", "what", "name", "delta_us", "launches", "per_launch_us", "source", "cause")


def overview(report: Report) -> FullAnswer:
    """Whether the recording can be trusted, what a step takes, what to change first, and where time went."""
    return FullAnswer(
        rows=list(_overview(report)), shares_of=_shares_of(report), savings_per=_savings_per(report)
    )


def _overview(report: Report) -> Iterator[Row]:
    yield {"about": "verdict", "health": report.health.verdict, "text": headline.headline(report)}
    for note in headline.notes(report):
        yield {"about": "weakness", "text": note}
    for problem in report.unread:
        yield {"about": "not read", "text": problem}
    if report.as_it_runs is not None:
        step = report.as_it_runs.step
        named = {"step": step.name, "found_by": step.found_by} if step else {}
        yield {"about": "step without the profiler", **named, **_of(report.as_it_runs, STEP)}
    ids = identified(report.findings)
    for name, row in list(ids.items())[:3]:
        yield {"about": "finding", "id": name, **_of(row, BRIEF)}
    yield {"about": "findings", "count": len(ids), "tool": "findings has them all, evidence one in full"}
    for row in report.devices[:4]:
        yield {"about": "device", **_of(row, DEVICE)}
    for row in headline.idle_causes(report)[:5]:
        yield {"about": "idle", **_of(row, ("cause", "idle_us", "share_of_window", "text"))}
    for row in report.categories[:6]:
        yield {"about": "category", **_of(row)}
    for row in report.serving.steps[:6] if report.serving else ():
        yield {"about": "serving step", **_of(row, SERVING)}
    for row in report.phases[:4] if len(report.phases) > 1 else ():
        yield {"about": "phase", **_of(row, PHASE)}
    for row in report.kernels[:5]:
        yield {"about": "kernel", **_of(row, KERNEL)}
    yield from _not_recorded(report)


def _not_recorded(report: Report) -> Iterator[Row]:
    lacks = {
        "work of a device": (not report.devices, RECORD),
        "time of a step without the profiler": (report.as_it_runs is None, RECORD),
        "what torch.compile did": (
            report.compilation is None,
            "kinetoscope run SCRIPT, or TORCH_TRACE=DIR, where the program compiles",
        ),
        "memory by owner": (not report.memory_peaks, "kinetoscope run --memory SCRIPT"),
        "lines of the program": (
            not any(row.source or row.lines for row in report.findings),
            "kinetoscope run SCRIPT, or torch's profiler with_stack=True",
        ),
    }
    for fact, (lacking, how) in lacks.items():
        if lacking:
            yield {"about": "not recorded", "fact": fact, "what_to_record": how}


def findings(report: Report, rule: str = "") -> FullAnswer:
    """All findings, or those of one rule: those that save most first. Raises UsageError where there is no
    such rule."""
    ids = identified(report.findings)
    chosen = {name: row for name, row in ids.items() if not rule or row.rule == rule}
    if ids and not chosen and rule not in documentation.modules():
        raise UsageError(f"there is no rule {rule!r}", hint=meant(rule, {row.rule for row in ids.values()}))
    rows: list[Row] = [{"about": "finding", "id": name, **_of(row, FINDING)} for name, row in chosen.items()]
    why = "the recording is unreliable" if report.health.verdict == "unreliable" else ""
    why = why if report.devices else "no work of a device was recorded, which most rules look at"
    if not rows and not why:
        text = "no rule found anything to change, and the recording holds what they look at"
        if rule:
            text = f"the rule {rule} found nothing to change, and the recording holds what it looks at"
        rows = [{"about": "result", "text": text}]
    unknown = CannotAnswer(reason=why, what_to_record=RECORD) if why else None
    return FullAnswer(
        rows=rows, shares_of=_shares_of(report), savings_per=_savings_per(report), cannot_answer=unknown
    )


def identified(found: Sequence[FindingRow]) -> dict[str, FindingRow]:
    """Findings by the names that they have in answers: their rule, with a number from the second on."""
    seen: dict[str, int] = {}
    named: dict[str, FindingRow] = {}
    for row in found:
        number = seen[row.rule] = seen.get(row.rule, 0) + 1
        named[row.rule if number == 1 else f"{row.rule}.{number}"] = row
    return named


def one_finding(report: Report, name: str) -> FindingRow:
    """Raises UsageError where no finding has that id."""
    ids = identified(report.findings)
    if name not in ids:
        hint = meant(name, ids) if ids else "the recording has no findings"
        raise UsageError(f"no finding has the id {name!r}", hint=hint)
    return ids[name]


def place(report: Report, name: str) -> int:
    """The place of a finding among all. Raises UsageError where no finding has that id."""
    one_finding(report, name)
    return list(identified(report.findings)).index(name)


def one_line(*texts: str | None) -> str:
    """The message of an error, safe to print and short."""
    return names.shorten(": ".join(filter(None, texts)), 400)


def evidence(report: Report, run: LoadedRun, program: Sequence[SourceFile], name: str) -> FullAnswer:
    """One finding in full: what was seen and when, its kernels, the code that it names, its place in time.
    ``program``: the program's files as they were recorded. Raises UsageError where no finding has that id."""
    row = one_finding(report, name)
    rows: list[Row] = [{"about": "finding", "id": name, **_of(row, WHOLE)}]
    rows += [{"about": "code", **code} for code in _code(row, program)]
    rows += [{"about": "seen", **_of(seen)} for seen in row.evidence]
    known = {kernel.name: kernel for kernel in report.kernels}
    rows += [
        {"about": "kernel", **_of(known[one], KERNEL)} for one in row.kernels[:MOST_KERNELS] if one in known
    ]
    if row.evidence:
        rows += _window(row, run)
    if not row.source and not row.lines:
        how = "kinetoscope run SCRIPT, or torch's profiler with_stack=True"
        rows.append({"about": "not recorded", "fact": "lines of the program", "what_to_record": how})
    return FullAnswer(rows=rows, shares_of=_shares_of(report), savings_per=_savings_per(report))


def _window(row: FindingRow, run: LoadedRun) -> Iterator[Row]:
    """When a finding was seen, with a query of the device then, or of the host where that did nothing."""
    start, end = min(one.start_us for one in row.evidence), max(one.end_us for one in row.evidence)
    first_ns, last_ns = int(start * 1000), math.ceil(end * 1000)
    trace = next((one for one in run.traces if one.rank in row.ranks), run.traces[0])
    for name, events in (("device_events", trace.device_events), ("host_events", trace.host_events)):
        ends = events["start_ns"] + events["duration_ns"]
        if ((events["start_ns"] <= last_ns) & (ends >= first_ns)).any():
            sql = (
                f"SELECT name, start_ns, duration_ns FROM {name} WHERE rank = {trace.rank} "
                f"AND start_ns <= {last_ns} AND start_ns + duration_ns >= {first_ns} ORDER BY start_ns"
            )
            yield {"about": "window", "start_us": start, "end_us": end, "query": sql}
            return


def _code(row: FindingRow, program: Sequence[SourceFile]) -> Iterator[dict[str, object]]:
    places = [row.source or "", *(line.partition(" ")[0] for line in row.lines)]
    shown: set[tuple[str, int]] = set()
    for place in dict.fromkeys(places):
        file, _, number = place.rpartition(":")
        kept = next((one for one in program if file and f"/{one.path}".endswith(f"/{file}")), None)
        if kept is None or not number.isdecimal() or (kept.path, int(number)) in shown:
            continue
        if len(shown) >= MOST_LINES * (2 * AROUND + 1):
            return
        shown |= {(kept.path, int(number) + by) for by in range(-AROUND, AROUND + 1)}
        first = max(int(number) - AROUND, 1)
        lines = kept.text.splitlines()[first - 1 : int(number) + AROUND]
        yield {"file": kept.path, "line": int(number), "first_line": first, "text": "\n".join([*lines, ""])}


def query(run: LoadedRun, sql: str, limit: int = 50) -> FullAnswer:
    """At most ``limit`` rows that one SELECT finds. Raises UsageError where it cannot be run."""
    found = selected(run, sql)
    if found.is_empty():
        return FullAnswer(cannot_answer=_no_rows(run, sql))
    shown = found.head(min(max(limit, 1), MOST_ROWS))
    shown = shown.with_columns(pl.selectors.temporal().to_physical(), pl.selectors.binary().cast(pl.String))
    return FullAnswer(
        rows=[{name: _short("name", value) for name, value in row.items()} for row in shown.to_dicts()]
    )


def _no_rows(run: LoadedRun, sql: str) -> CannotAnswer:
    words = set(re.findall(r"\w+", sql.lower()))
    empty = [
        name
        for name, frame in tables(run).items()
        if name in words and frame.select(pl.len()).collect().item() == 0
    ]
    if not empty:
        return CannotAnswer(
            reason="no row meets the conditions of the query; its tables are not empty",
            what_to_record="nothing: look at the names that there are first (SELECT name, COUNT(*) …)",
        )
    how = "; ".join(dict.fromkeys(HOW.get(name, RECORD) for name in empty))
    return CannotAnswer(reason=f"the recording has no rows in {', '.join(empty)}", what_to_record=how)


def schema() -> str:
    """The tables and columns that ``query`` selects from, a table a paragraph."""
    parts = (
        f"{table}\n" + "\n".join(f"  {name} {kind.dtype}: {kind.meaning}" for name, kind in columns.items())
        for table, columns in TABLES.items()
    )
    return "\n\n".join(parts)


def diff(found: Difference) -> FullAnswer:
    """The change from one recording to the other: by how much, because of what."""
    if found.comparability == "none" or (found.step is None and found.device_time is None):
        why = "; ".join(found.why) or "neither has a step"
        return FullAnswer(
            cannot_answer=CannotAnswer(
                reason=f"these recordings cannot be compared: {why}",
                what_to_record="kinetoscope run SCRIPT, before and after, on the same device",
            )
        )
    return FullAnswer(rows=list(_diff(found)))


def _diff(found: Difference) -> Iterator[Row]:
    yield {"about": "comparability", "verdict": found.comparability, "why": found.why, "lost": found.lost}
    for about, change in (("step", found.step), ("device work in a step", found.device_time)):
        if change is not None:
            interval = {"delta_low_us": change.low, "delta_high_us": change.high}
            known = {name: value for name, value in _of(change).items() if name not in ("low", "high")}
            yield {"about": about, **known, **{name: _short(name, value) for name, value in interval.items()}}
    for row in found.changes[:20]:
        yield {"about": "change", **_of(row, CHANGE)}
    for row in found.facts[:10]:
        yield {"about": "compiling", **_of(row)}
    for row in found.findings_gone:
        yield {"about": "finding of base alone", **_of(row)}
    for row in found.findings_come:
        yield {"about": "finding of new alone", **_of(row)}
    for row in found.counts:
        if row.base != row.new:
            yield {"about": "count", **_of(row, ("name", "words", "base", "new", "per_step", "most"))}


def _shares_of(report: Report) -> dict[str, dict[str, float]]:
    step = report.replay.savings_of_us if report.replay else None
    if step is None and report.as_it_runs:
        step = report.as_it_runs.step_us.median
    window = {"window_us": rounded(sum(row.window_us for row in report.devices))}
    work = {"device_time_us": rounded(sum(row.device_time_us for row in report.devices))}
    known = {
        "share_of_step": {f"{_savings_per(report)}_us": rounded(step or 0.0)},
        "share_of_window": window,
        "busy_fraction": window,
        "share_of_device_time": work,
    }
    return {name: of for name, of in known.items() if any(of.values())}


def _savings_per(report: Report) -> str:
    return "step" if report.steps else "recording"


def _of(row: msgspec.Struct, fields: Sequence[str] = ()) -> dict[str, object]:
    """These fields of a row of the document, or all, where they say anything."""
    known: dict[str, object] = msgspec.to_builtins(row)
    return {
        name: _short(name, known[name])
        for name in fields or known
        if known[name] is not None and known[name] is not False and known[name] not in ("", [], ())
    }


def _short(field: str, value: object) -> object:
    """Five digits of durations, all of a moment's, both ends of a name, and the first few events."""
    match value:
        case float():
            return value if field in MOMENTS else rounded(value)
        case str() if field == "name":
            return names.shorten(value, LONGEST_NAME)
        case tuple() if field == "events":
            return value[:MOST_EVENTS]  # pyright: ignore[reportUnknownVariableType]
        case list() | tuple():
            return [_short(field, one) for one in value]  # pyright: ignore[reportUnknownVariableType]
        case dict():
            return {key: _short(str(key), one) for key, one in value.items()}  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
        case _:
            return value


def rounded(value: float) -> float:
    """Five digits: more say nothing of a measurement, and cost tokens."""
    return float(f"{value:.5g}")
