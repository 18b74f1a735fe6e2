"""Verbs keep to the terminal's columns, drop nothing without a word, and never fold what is copied."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kinetoscope.cli import main

FIXTURES = Path(__file__).parents[1] / "fixtures"
PROVED = FIXTURES / "h200_proved"
TRACE = FIXTURES / "h200" / "llama_train_compile.json.gz"
SMALL = FIXTURES / "h200" / "mm_64_b8_warm_eager.json.gz"
LOG = FIXTURES / "compile-logs" / "graphbreak.log.gz"
SNAPSHOT = FIXTURES / "h200_memory" / "leak.pickle.gz"
VERBS: dict[str, list[object]] = {
    "report": ["report", PROVED / "narrow"],
    "report whole": ["report", TRACE, "--verbose"],
    "findings": ["findings", TRACE],
    "kernels": ["kernels", TRACE],
    "kernels by op": ["kernels", SMALL, "--by", "op"],
    "chains": ["kernels", SMALL, "--chain", "nvjet", "--limit", "1"],
    "whatif": ["whatif", SMALL],
    "graphs": ["graphs", LOG],
    "memory": ["memory", SNAPSHOT],
    "diff": ["diff", PROVED / "narrow", PROVED / "columns"],
    "history": ["history", PROVED],
    "tables": ["query", "--tables"],
    "query": ["query", SMALL, "SELECT * FROM device_events LIMIT 2"],
    "explain": ["explain"],
    "explain a rule": ["explain", "launch-gap"],
    "explain a kernel": ["explain", "nvjet_sm90_tst_64x8_64x16_2x4_h_bz_TNT"],
    "doctor": ["doctor"],
}
# Lines that are copied: a command, or the code of a finding or graph break; and a name by itself.
COPIED = re.compile(r"kinetoscope [a-z]+ |^ {3,}\S|^\S+$")


@pytest.mark.parametrize("width", [60, 80, 160])
@pytest.mark.parametrize("verb", VERBS)
def test_lines_keep_to_the_width(
    verb: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main([str(word) for word in VERBS[verb]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert not [line for line in lines if len(line) > width and not COPIED.search(line)]
    assert not [line for line in lines if line != line.rstrip()], "lines end without blanks"
    for line in lines:
        if "kinetoscope explain " in line:
            assert not line.endswith("explain")


def test_columns_that_have_no_room_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: dict[int, str] = {}
    for width in (60, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        main(["history", str(PROVED)])
        shown[width] = capsys.readouterr().out
    titles = shown[200].splitlines()[0].split()
    assert "no room here" not in shown[200]
    for title in titles:
        assert title in shown[60]
