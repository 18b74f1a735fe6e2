"""Each word that a report prints of its own is known to ``explain``."""

from __future__ import annotations

import pytest

from kinetoscope.analysis.idle.causes import CAUSES
from kinetoscope.analysis.replay import path
from kinetoscope.findings.glossary.explanation import explanation
from kinetoscope.findings.model import SEVERITIES
from kinetoscope.findings.registry import rules
from kinetoscope.render.palette import CATEGORIES
from kinetoscope.views.headline import VERDICTS

PARTS = (path.BETWEEN, path.PAUSES, path.LAUNCHES, path.OTHER)
# In titles of tables and lines: what each says is in no other place.
SHOWN = (
    "alone", "on top of those above", "affects", "likely", "as it runs", "as recorded", "self", "share",
    "warmup", "nvjet", "speed of light", "exposed communication", "prefill", "decode", "train", "evaluate",
    "graph break", "recompilation", "no line of the program", "no module", "unattributed", "eager",
)  # fmt: skip


@pytest.mark.parametrize(
    "word", sorted({*CAUSES, *CATEGORIES, *rules(), *PARTS, *SEVERITIES, *VERDICTS, *SHOWN})
)
def test_explain_knows_each_word_of_a_report(word: str) -> None:
    found = explanation(word)
    assert found.text or found.parts or found.summary
