"""The commands worth typing next, exactly as they must be typed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from kinetoscope import numbers
from kinetoscope.document import Report
from kinetoscope.render import names
from kinetoscope.views import headline


@dataclass(frozen=True)
class NextCommand:
    line: str
    shows: str


def next_commands(report: Report, inputs: Sequence[str]) -> list[NextCommand]:
    """What to type after reading the report of ``inputs`` (as they were typed), the most telling first."""
    quoted = " ".join(shlex.quote(item) for item in inputs)
    first = shlex.quote(inputs[0])
    commands: list[NextCommand] = []
    held = f"kinetoscope memory {quoted}"
    has_failed = any(peak.failed_bytes is not None for peak in report.memory_peaks)
    if has_failed:
        commands.append(NextCommand(held, "what filled the memory when it ran out"))
    if report.findings:
        commands.append(NextCommand(f"kinetoscope findings {quoted}", "all findings, with their evidence"))
    for finding in headline.worth_doing(report)[:1]:
        command = f"kinetoscope explain {shlex.quote(finding.rule)}"
        commands.append(NextCommand(command, "why the first one is slow"))
    if (unproved := headline.unproved(report)) and unproved.proof:
        saving = numbers.time(unproved.saving_us)
        commands.append(
            NextCommand(unproved.proof, f"measure the {saving} that {names.plain(unproved.rule)} promises")
        )
    if report.memory_peaks and not has_failed:
        commands.append(NextCommand(held, "who holds the memory at its peak"))
    if report.categories:
        category = report.categories[0].category
        commands.append(
            NextCommand(
                f"kinetoscope kernels {quoted} --category {shlex.quote(category)}",
                f"every {names.plain(category)} kernel",
            )
        )
    if report.compilation is not None:
        commands.append(NextCommand(f"kinetoscope graphs {first}", "what torch.compile did"))
    commands.append(
        NextCommand(f"kinetoscope report {quoted} -o report.html", "this report, whole, as a page")
    )
    return commands
