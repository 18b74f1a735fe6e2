"""Verbs keep to the terminal's columns, drop nothing without a word, and never fold what is copied."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from kinetoscope.bench.request import BenchResult
from kinetoscope.bench.tune.results import Tuning
from kinetoscope.cli import main
from kinetoscope.document import StepCandidateRow, StepLevels
from kinetoscope.document.collect.measurements import autotuned, in_model
from kinetoscope.render import terminal
from kinetoscope.views import bench, steps, tune

FIXTURES = Path(__file__).parents[1] / "fixtures"
PROVED = FIXTURES / "h200_proved"
TRACE = FIXTURES / "h200" / "llama_train_compile.json.gz"
SMALL = FIXTURES / "h200" / "mm_64_b8_warm_eager.json.gz"
HOST_BOUND = FIXTURES / "h100_everyday" / "host-bound"
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
    "steps": ["steps", HOST_BOUND],
    "findings with proof": ["findings", PROVED / "narrow", "--proof", PROVED / "columns"],
}
# Lines that are copied: a command, or the code of a finding or graph break; and a name by itself.
COPIED = re.compile(r"kinetoscope [a-z]+ |^ {3,}\S|^\S+$")


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("verb", VERBS)
def test_lines_keep_to_the_width(
    verb: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main([str(word) for word in VERBS[verb]]) == 0
    keeps_to(width, capsys.readouterr().out)


def keeps_to(width: int, printed: str) -> None:
    lines = printed.splitlines()
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


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_what_is_measured_and_judged_keeps_to_the_width(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    [tuned] = (PROVED / "narrow" / "bench").glob("tune-*.json")
    terminal.show(tune.settings(msgspec.json.decode(tuned.read_bytes(), type=Tuning)))
    keeps_to(width, capsys.readouterr().out)
    [benched] = (PROVED / "columns" / "bench").glob("autotune-*.json")
    result = msgspec.json.decode(benched.read_bytes(), type=BenchResult)
    terminal.show(bench.autotuned(autotuned(result, in_model(PROVED / "columns"))))
    keeps_to(width, capsys.readouterr().out)
    rows = [
        StepCandidateRow(kind=kind, name=name, option=option, ticks=28, each_us=17e3)
        for kind, name, option in (
            ("optimizer", "AdamW", "AdamW"), ("module", "transformers.LlamaForCausalLM", "LlamaForCausalLM")
        )
    ]  # fmt: skip
    terminal.show(steps.levels(StepLevels(levels=[], candidates=rows), 20))
    printed = capsys.readouterr().out
    keeps_to(width, printed)
    assert "kinetoscope run --step LlamaForCausalLM …" in printed, "what is copied is on one line"
    baseline = str(tmp_path / "base.json")
    main(["check", str(PROVED / "narrow"), "--against", baseline, "--update"])
    for recording, status in ((PROVED / "narrow", 0), (PROVED / "columns", 1)):
        capsys.readouterr()
        assert main(["check", str(recording), "--against", baseline]) == status
        printed = capsys.readouterr().out
        keeps_to(width, printed)
        assert printed.count("FAILED") <= 1, "one reason is given once"
