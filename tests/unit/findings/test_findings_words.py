"""Each word that a report prints of its own is known to ``explain``."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinetoscope.analysis.idle.causes import CAUSES
from kinetoscope.analysis.replay import path
from kinetoscope.document.collect import kernels as kernel_sums
from kinetoscope.document.collect import memory as peaks
from kinetoscope.document.collect.report import build
from kinetoscope.errors import UsageError
from kinetoscope.findings.glossary.explanation import explanation
from kinetoscope.findings.model import SEVERITIES
from kinetoscope.findings.registry import rules
from kinetoscope.render.blocks import Only, Table
from kinetoscope.render.palette import CATEGORIES, MEMORY
from kinetoscope.sources.run import load
from kinetoscope.views import kernels, memory, overview
from kinetoscope.views.headline import VERDICTS

FIXTURES = Path(__file__).parents[2] / "fixtures"
PARTS = (path.BETWEEN, path.PAUSES, path.LAUNCHES, path.OTHER)
# In titles of tables and lines: what each says is in no other place.
SHOWN = (
    "alone", "on top of those above", "affects", "likely", "as it runs", "as recorded", "self", "share",
    "warmup", "nvjet", "speed of light", "exposed communication", "prefill", "decode", "train", "evaluate",
    "graph break", "recompilation", "no line of the program", "no module", "unattributed", "eager",
)  # fmt: skip


@pytest.mark.parametrize(
    "word", sorted({*CAUSES, *CATEGORIES, *rules(), *PARTS, *SEVERITIES, *VERDICTS, *MEMORY, *SHOWN})
)
def test_explain_knows_each_word_of_a_report(word: str) -> None:
    found = explanation(word)
    assert found.text or found.parts or found.summary


@pytest.mark.parametrize(
    "paths",
    [
        ["h200/llama_train_compile.json.gz"],
        ["h200_memory/leak.pickle.gz"],
        ["h100_everyday/host-bound"],
        ["h200_rare_steps/collecting"],
        ["h200-dist/ddp_straggler_rank0.json.gz", "h200-dist/ddp_straggler_rank1.json.gz"],
    ],
    ids=str,
)
def test_explain_knows_each_column_of_a_report(paths: list[str]) -> None:
    run = load(*(FIXTURES / path for path in paths))
    report, peak = build(run), peaks.listing(run)
    shown = [*overview.blocks(report, ["x"], "whole"), *overview.blocks(report, ["x"], "file")]
    shown += memory.listing(peak, 9) if peak.peaks else []
    shown += kernels.listing(kernel_sums.listing(run, "kernel", None), 9) if report.devices else []
    tables = [block.block if isinstance(block, Only) else block for block in shown]
    titles = {column.title for table in tables if isinstance(table, Table) for column in table.columns}
    assert titles
    assert [title for title in sorted(titles - {""}) if not is_known(title)] == []


def is_known(word: str) -> bool:
    try:
        return bool(explanation(word).text)
    except UsageError:
        return False
