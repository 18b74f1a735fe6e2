"""The evaluation of readers: what counts as right, near and false, and how a model is asked."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from command import ROOT
from kinetoscope.agents.library import Library

sys.path.insert(0, str(ROOT / "tests" / "agents"))
import evaluate
from evaluate import Claim, Fix, Labelled, Tools

BEFORE = ROOT / "tests" / "cases" / "launch-gap" / "before.json.gz"
# Answers with a call, then with a claim of the first finding that it was shown.
MODEL = """
import json, sys
said = sys.stdin.read()
if "from_recording" not in said.split("Claims that save nothing")[1]:
    print("I look first.", json.dumps({"tool": "findings", "values": {"recording": "/etc/passwd"}}))
else:
    first = json.loads(said.strip().splitlines()[-1])["from_recording"][0]
    print(json.dumps({"claims": [{"finding": first["id"], "saving_us": first["saving_us"]}]}))
"""


@pytest.fixture(scope="module")
def tools() -> Tools:
    return Tools(Library([BEFORE]), str(BEFORE))


def truth(*fixes: Fix, useless: tuple[str, ...] = ()) -> Labelled:
    return Labelled("case", BEFORE, list(fixes), list(useless))


def test_a_claim_is_judged_by_what_its_fix_saved(tools: Tools) -> None:
    saves = Fix("compile", ["launch-gap"], 1000.0, 0.2, True)
    better = Fix("rewrite", ["another-rule"], 3000.0, 0.6, True)
    claim = Claim("launch-gap", 1400.0)
    found = evaluate.judged(truth(saves), [claim], tools)
    assert (found["right"], found["best"], found["near"], found["false"]) == (True, True, True, 0)
    assert not evaluate.judged(truth(saves), [Claim("launch-gap", 1600.0)], tools)["near"]
    assert not evaluate.judged(truth(saves, better), [claim], tools)["best"]
    assert not evaluate.judged(truth(better), [claim], tools)["right"]
    assert not evaluate.judged(truth(saves), [], tools)["right"]


def test_what_is_known_to_save_nothing_is_a_false_claim_and_the_unmeasured_is_not(tools: Tools) -> None:
    saves = Fix("rewrite", ["another-rule"], 3000.0, 0.6, True)
    little = Fix("compile", ["launch-gap"], 10.0, 0.01, True)
    claim = Claim("launch-gap", 1400.0)
    assert evaluate.judged(truth(saves, little), [claim], tools)["false"] == 1
    assert evaluate.judged(truth(saves, useless=("launch-gap",)), [claim], tools)["false"] == 1
    assert evaluate.judged(truth(saves), [claim], tools)["false"] == 0
    assert evaluate.judged(truth(saves), [Claim("made-up", 1.0)], tools)["false"] == 1


def test_readers_claim_what_they_were_shown_and_pay_for_it() -> None:
    for reader, calls in ((evaluate.first, 1), (evaluate.scripted, 3)):
        tools = Tools(Library([BEFORE]), str(BEFORE))
        claims = reader(tools)
        assert claims[0].finding == "launch-gap"
        assert claims[0].saving_us > 0
        assert tools.calls >= calls
        assert 0 < tools.tokens <= 2000 * tools.calls


def test_a_model_is_a_command_that_is_asked_until_it_claims(tmp_path: Path) -> None:
    script = tmp_path / "model.py"
    script.write_text(MODEL)
    tools = Tools(Library([BEFORE]), str(BEFORE))
    (claim,) = evaluate.model(f"{sys.executable} {script}")(tools)
    assert claim.finding == "launch-gap"
    assert tools.calls == 1


def test_the_table_has_each_reader_and_what_it_gets_wrong(tools: Tools) -> None:
    right = evaluate.judged(
        truth(Fix("compile", ["launch-gap"], 1400.0, 0.2, True)), [Claim("launch-gap", 1400.0)], tools
    )
    wrong = evaluate.judged(truth(Fix("other", ["another-rule"], 1.0, 0.2, True)), [], tools)
    lines = evaluate.table({"good": [right], "bad": [wrong]})
    assert any(line.startswith("| good | 1 | 1 | 1 | 1 | 0 |") for line in lines)
    assert any("said nothing" in line and "cause" in line for line in lines)
    assert json.loads(json.dumps(right)) == right
