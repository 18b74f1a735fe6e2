"""Results of ``tune`` and ``compare``: settings, batches and versions of a program, side by side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

import msgspec

from kinetoscope import numbers
from kinetoscope.bench.versions.campaign import FEWEST_PAIRS
from kinetoscope.comparison.gates import failed, interval_words
from kinetoscope.document import measurements as document
from kinetoscope.document.difference import Judgement
from kinetoscope.render import palette
from kinetoscope.render.blocks import Block, Field, Line, Text, field, line, table
from kinetoscope.views.gates import gate_lines

LONGEST = 300  # characters of an error
AIM = 0.05  # how near an answer is worth a longer budget
DAY = 86_400.0  # s
GIVES_WAY = ("samples/s", "breaks", "memory", "pays after", "compile", "tokens/s")


def settings(shown: document.Tuning) -> Iterable[Block]:
    rates = any(row.samples_per_s for row in shown.rows)
    yield line(f"{' '.join(shown.command) or shown.step_name} on {shown.device}", style="bold")
    basis = (
        f"steps by {shown.steps_by} ({shown.step_name}); {numbers.count(shown.rounds, 'round')}; speed-up"
        f"{' of a sample' if rates else ''} over {_base(shown)}, 95 % interval"
    )
    yield line(basis, style="dim")
    fields = [
        field("setting", "text", lambda row: row.setting.name),
        field("batch", "number", lambda row: row.setting.batch or ""),
        field("step", "number", lambda row: numbers.time(row.step_s * 1e6) if row.step_s else ""),
        field(
            "samples/s", "number", lambda row: numbers.rate(row.samples_per_s) if row.samples_per_s else ""
        ),
        field("tokens/s", "number", lambda row: _tokens(row, shown.tokens_per_sample)),
        field("speed-up", "number", _speed_up),
        field("verdict", "text", _verdict),
        field("compile", "number", lambda row: numbers.time(row.compile_s * 1e6) if row.compile_s else ""),
        field("pays after", "number", lambda row: _steps(row.break_even_steps)),
        field(
            "memory",
            "number",
            lambda row: numbers.size(row.peak_memory_bytes) if row.peak_memory_bytes else "",
        ),
        field("breaks", "number", lambda row: str(row.graph_breaks) if row.graph_breaks else ""),
        field("output", "number", lambda row: {None: "", True: "agrees", False: "DIFFERS"}[row.agrees]),
    ]
    # Columns that no row fills take no room.
    filled = [one for one in fields if any(_cell(one, row) for row in shown.rows)]
    yield table(shown.rows, *filled, leave=GIVES_WAY)
    for row in shown.rows:
        if row.error is not None:
            yield line(f"{row.label}: {row.error[:LONGEST]}", style="red")
    if shown.fits is not None:
        yield line(_fits(shown.fits))
    yield Line()
    yield line(shown.recommendation, style="bold")
    yield from (Line((f"    {text}",), overflow="whole") for text in shown.lines)


def _cell(one: Field, row: document.SettingRow) -> bool:
    get = one[1]
    return bool(not isinstance(get, str) and get(row))


def _tokens(row: document.SettingRow, tokens: int | None) -> str:
    return numbers.rate(row.samples_per_s * tokens) if row.samples_per_s and tokens else ""


def _steps(count: int | None) -> str:
    return numbers.count(count, "step") if count else ""


def _verdict(row: document.SettingRow) -> tuple[Text, ...]:
    written = "as written" if row.as_written and not row.setting.as_written else ""
    verdict = "out of memory" if row.ran_out else "fails" if row.error is not None else row.verdict or ""
    own = (
        Text(verdict, palette.verdict(verdict)),
        Text(f"{' ' * bool(verdict)}{written}" if written else "", "dim"),
    )
    return own if verdict or written else ()


def _base(shown: document.Tuning) -> str:
    """The base of the speed-ups: the one row without a ratio, or eager with each batch."""
    bases = [row.label for row in shown.rows if row.error is None and row.ratio is None]
    return bases[0] if len(bases) == 1 else "eager with the same batch"


def _speed_up(row: document.SettingRow) -> str:
    if row.ratio is None:
        return ""
    if row.low is None or row.high is None or row.low <= 0:
        return f"{1 / row.ratio:.3f}× (one round)"
    low, high = 1 / row.high, 1 / row.low
    return f"{1 / row.ratio:.3f}× ({f'{low:.3f}–{high:.3f}' if high < 100 else 'too few rounds'})"


def _fits(shown: document.BatchesThatFit) -> str:
    largest = "no batch that was tried fits" if shown.largest is None else f"batch {shown.largest:,} fits"
    too_large = "none" if shown.too_large is None else f"{shown.too_large:,}"
    return f"{largest}; {too_large} runs out of memory"


def largest(shown: document.LargestBatch) -> Iterable[Block]:
    """Each batch that was tried, what was foreseen and what was found."""
    foreseen, tries = shown.foreseen, sorted(shown.tries, key=lambda one: one.batch)
    yield line(f"{' '.join(shown.command)} on {shown.device}", style="bold")
    basis = f"one run each, as written; foreseen from batch {foreseen.batch:,} of {foreseen.recording}"
    yield line(basis, style="dim")
    yield table(
        tries,
        field("batch", "count", "batch"),
        field("foreseen", "bytes", "foreseen_bytes"),
        field("memory", "bytes", lambda one: one.peak_bytes or 0),
        field("", "text", _outcome),
        field("", "text", lambda one: _retries(one.retries), "dim"),
    )
    yield Line()
    interval = (
        f"{foreseen.low:,}" if foreseen.low == foreseen.high else f"{foreseen.low:,} to {foreseen.high:,}"
    )
    found = _fits(document.BatchesThatFit(largest=shown.largest, too_large=shown.too_large))
    yield line(f"Foreseen: batch {interval}. Found: {found}.", style="bold")


def _outcome(one: document.Try) -> Text:
    outcome = "fits" if one.fits else "out of memory"
    return Text(outcome, palette.verdict(outcome))


def _retries(times: int) -> str:
    return f"cached memory was given back {numbers.count(times, 'time')}, which waits" if times else ""


def versions_document(found: document.VersionsCompared, gates: Sequence[Judgement]) -> dict[str, object]:
    return {**msgspec.to_builtins(found), "gates": list(gates), "failed": failed(gates)}


def versions(found: document.VersionsCompared, gates: Sequence[Judgement]) -> Iterable[Block]:
    """The verdict, both versions, what the machine's own noise was, the gates."""
    yield line(f"{' '.join(found.command)} on {found.device}", style="dim")
    yield line(verdict(found), style=f"bold {palette.verdict(found.verdict)}".strip())
    yield table(
        (("base", found.base), ("new", found.new)),
        field("", "text", lambda side: side[0]),
        field("version", "words", lambda side: side[1].label),
        field("step", "time", lambda side: side[1].step_s * 1e6),
        field("of runs from", "number", lambda side: _runs(side[1])),
        field("graph breaks", "count", lambda side: side[1].graph_breaks),
        field(
            "process' memory" if found.device == "cpu" else "peak memory",
            "bytes",
            lambda side: side[1].peak_memory_bytes or 0,
        ),
    )
    pairs = f"{numbers.count(found.pairs, 'pair')} of runs in {numbers.time(found.seconds * 1e6)}"
    yield line(f"{pairs}; stopped: {found.stopped}", style="dim")
    if found.calibration is not None and found.pairs > 1:
        spread = found.calibration.spread
        much = f"± {numbers.percent(spread)}" if spread < 1 else "more than a run takes"
        yield line(f"runs of the same version differ by {much} (the middle 80 % of the base's)", style="dim")
    yield from (Line((Text(words, "yellow"),), overflow="whole") for words in what_would_tell(found))
    yield from gate_lines(gates)


def verdict(found: document.VersionsCompared) -> str:
    """Faster or slower by how much, the same, or how far off an answer is."""
    half = numbers.percent((found.high - found.low) / 2)
    change = numbers.percent(abs(found.ratio - 1))
    sign = "+" if found.ratio >= 1 else numbers.MINUS
    if not math.isfinite(found.high):
        pairs = f"by {numbers.count(found.pairs, 'pair')} of runs, of which an interval needs {FEWEST_PAIRS}"
        return f"cannot tell: {sign}{change} {pairs}"
    if found.verdict == "cannot tell":
        return f"cannot tell: {sign}{change} ({interval_words(found.low - 1, found.high - 1)})"
    if found.verdict == "same":
        return f"the same, ± {half}"
    return f"{found.verdict} by {change} ± {half}"


def what_would_tell(found: document.VersionsCompared) -> Iterable[str]:
    """Why nothing could be concluded, where the load is the reason, and the budget that would tell."""
    if found.verdict != "cannot tell":
        return
    if found.load is not None and found.cores and found.load > found.cores + 1:  # one is the program itself
        yield (
            f"the machine is loaded ({found.load:.1f} want to run on {numbers.count(found.cores, 'core')}), "
            "and that spreads the runs: a quiet one tells sooner"
        )
    changes = [math.log(new / base) for base, new in zip(found.base.runs_s, found.new.runs_s, strict=True)]
    if len(changes) > 1 and (found.high - found.low) / 2 > AIM:
        pairs = max(FEWEST_PAIRS, (1.96 * statistics.stdev(changes) / AIM) ** 2)
        seconds = found.seconds / found.pairs * pairs
        if seconds > DAY:
            yield f"runs differ so much that a day of them would not tell ± {numbers.percent(AIM)}"
        else:
            time = numbers.time(seconds * 1e6)
            yield f"for ± {numbers.percent(AIM)} it needs some {time}: --budget {math.ceil(seconds)}"


def _runs(row: document.VersionRow) -> str:
    return numbers.span(min(row.runs_s) * 1e6, max(row.runs_s) * 1e6)
