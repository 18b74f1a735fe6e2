"""Writes docs/reference/findings.md from the rules' docstrings, and docs/evidence/findings.md from the cases
and the review: `PYTHONPATH=src:tests python -m cases.document`."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

import msgspec

from cases.recorded import HERE, cases, measured_bytes, measured_us, predicted_bytes, predicted_us
from kinetoscope.findings.documentation import documentation
from kinetoscope.findings.registry import rules

LEAST, MOST = 0.67, 1.5  # predicted over measured: what counts as foreseen
BY_STEP = "memory-leak"
DOCS = Path(__file__).resolve().parents[2] / "docs"

# Rules that promise nothing where their case shows what the fix did, and why.
NOT_PREDICTED = {
    "exposed-communication": "842 µs of collectives were hidden behind products, which took a third longer "
    "next to them, and buckets are copied in and out; over links of 100 GB/s or more the finding only says "
    "how much it may be at most",
    "cudagraph-skipped": "a program of one small kernel: copying its inputs and launching the graph costs "
    "more than the graph saves; with ten launches an entry or less nothing is promised",
    "hotspot": "by how much one kernel can get faster does not show in it; the title says what twice as fast "
    "would give",
    "prefill-stall": "prompts read in pieces cost throughput; what the fix does is that no request waits "
    "longer for a token than 0.65 ms, in place of 4.60 ms",
    "no-kv-cache": "under the profiler the host takes as long as the device, which hides what the device "
    "would save; the finding says how much of its work goes, and under which condition",
    "nothing-ran": "the fix makes the function do its work, which takes longer than doing none",
}

INTRODUCTION = """\
# Findings

`kinetoscope findings INPUT` reads a recording, a trace or a compile log and says what is slow, why, and what
to change, ranked by the time that the change would save. `kinetoscope explain RULE` shows the pages below.

A rule describes how its fix changes the recorded steps: device work that is shorter or gone with its
launches, host time that goes away, waits that disappear. The saving is what [the
replay](../guide/replay.md) of the steps gains, with the host as fast as it is without the profiler where
the recording timed that. Each saving is counted once: `saving_us` is what a finding adds to those above
it, so that they sum to what all save together, never more than the step; `saving_alone_us` is its saving
without the others, and `also` names the finding above that has most of it. Causes are listed before
their symptoms, and in a step in which the device works most of the time what takes a tenth of the step
off it before what only has it wait less. Where steps wait for their data loader, it stands first, and
what hides behind it saves nothing by itself. Advice that once slowed a program down is ranked below
equally large advice.
`saving_low_us` and `saving_high_us` are that saving times the least and the most that was measured of
the rule's predictions (`findings/experience.py`), and up to all device time that the fix frees, which
shows where the host turns out to be quicker than it seemed. Where a fix may as well save nothing,
nothing is promised: the finding says that it is not predicted, and `saving_high_us` what it is at most.
Where a fix saves a known time if something holds that no trace shows (a frozen net's inputs come again),
`saving_condition` says what, and `saving_alone_us` what it saves if so: it claims nothing of
`saving_us`, and stands where half of it would, or half of what it is at most, where that is more.
Severity is the share of the step that remains to be saved: 10 % is high, 3 % medium, 0.5 % low. A rule
that is less sure of its saving says no more than medium or low, and what a fix frees of memory, or of
device time that the step does not wait for, is judged by the rule. What the profiler itself did, and
what-ifs, are information. `affected_us` is the time per step of what the finding is about;
`stands_below` says why one stands below another that saves less.

Where a command of kinetoscope can try the advice, the finding prints it. Its measurement is shown next to the
prediction from then on, here and in every report; `--proof AFTER` takes a recording of the changed program
instead ([how](../guide/bench.md#proving-a-finding)). [What each rule predicted,
and what its fix saved](../evidence/findings.md).
"""
MEASURED = """\
# What findings predicted, and what the fixes saved

What the [rules](../reference/findings.md) say of programs that were made to show them, with their fixes,
and of recordings that were not.
"""


def pages() -> dict[Path, str]:
    """The text of each page that is written here."""
    written = {
        DOCS / "reference" / "findings.md": _lines(),
        DOCS / "evidence" / "findings.md": _measured(),
    }
    return {path: "\n".join(lines).rstrip() + "\n" for path, lines in written.items()}


def _measured() -> Iterator[str]:
    yield MEASURED
    yield from _cases()
    yield from _memory()
    yield from _review()


def _lines() -> Iterator[str]:
    yield INTRODUCTION
    yield "## The rules\n"
    for slug, rule in documentation().items():
        yield f"- [{slug}](#{slug}): {rule.summary}"
    yield ""
    for slug, rule in documentation().items():
        yield f"## {slug}\n"
        yield f"{rule.summary}\n"
        for heading, text in rule.sections.items():
            flowing = " ".join(text.replace("``", "`").split())
            yield f"**{heading}.** {flowing}\n"


def _cases() -> Iterator[str]:
    yield "## Predicted and measured\n"
    yield (
        "Every rule has a program that shows it and its fix (`tests/cases/RULE/before.py`, `after.py`), "
        "recorded on one or two NVIDIA H200 with torch 2.11 (`tests/cases/record.py`). The saving is "
        "predicted from the recording before the fix and measured as the difference of both programs' step "
        "times without the profiler, which the prediction is given, as `kinetoscope run` would. Shares that "
        "the trace cannot show (three quarters of an `align1` product, 40 % of attention's products, half of "
        "a kernel of low occupancy) were chosen from these same measurements: for those rules the table "
        "shows that the figures are of the right size on this device, not that they foresee others. The same "
        "holds for what was fixed on the cases that the table shows: `straggler` (shared work: the mean of "
        "the waiting, not all of it; was 2.05), `graph-break` (the broken function's own entries; was 0.61) "
        "and those that are not predicted any more (4.89, -0.29, 0.53 and -0.02).\n"
    )
    yield "| rule | predicted µs | measured µs | ratio |"
    yield "|---|---:|---:|---:|"
    ratios: list[float] = []
    for case in cases():
        if case not in rules():
            continue
        predicted, measured = predicted_us(case), measured_us(case)
        if predicted <= 0 or measured is None:
            continue
        ratio = predicted / measured
        if measured > 0:
            ratios.append(ratio)
        yield f"| {case} | {predicted:,.0f} | {measured:,.0f} | {ratio:.2f} |"
    near = sum(LEAST <= ratio <= MOST for ratio in ratios)
    yield (
        f"\nThe median of {len(ratios)} ratios is {statistics.median(ratios):.2f}; {near} lie within "
        f"{LEAST} and {MOST}. Not predicted:\n"
    )
    for case, why in NOT_PREDICTED.items():
        yield f"- {case} (the fix saved {measured_us(case) or 0:,.0f} µs): {why}."
    unclaimed = "what the profiler did, what must be measured first"
    yield f"\nRules that claim no saving ({unclaimed}) are not in the table.\n"
    yield ""


def _memory() -> Iterator[str]:
    yield "### Bytes\n"
    yield (
        "Of rules on memory, by how much the fix lowers the peak of what was allocated (of holes: reserved), "
        "by torch's own counters. The programs chose no figure of a rule; `activation-memory` (was 0.43) and "
        "`float32-logits` (promised nothing) were fixed by them.\n"
    )
    yield "| rule | predicted bytes | measured bytes | ratio |"
    yield "|---|---:|---:|---:|"
    for case in cases():
        predicted, measured = predicted_bytes(case), measured_bytes(case)
        if case != BY_STEP and predicted and measured:
            yield f"| {case} | {predicted:,} | {measured:,} | {predicted / measured:.2f} |"
    yield f"\nA `{BY_STEP}` frees more with every step, and has no ratio.\n"


def _review() -> Iterator[str]:
    reviewed: dict[str, dict[str, str]] = msgspec.json.decode((HERE / "reviewed.json").read_bytes())
    yield "## False alarms, looked for by hand\n"
    yield "What the rules say about recordings that were not made for them, and whether it is so.\n"
    for recording, findings in reviewed.items():
        yield f"**{recording}**\n"
        for rule, judgement in findings.items():
            yield f"- {rule}: {judgement}"
        yield ""


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text)
