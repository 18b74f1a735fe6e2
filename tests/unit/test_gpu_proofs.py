"""The proofs that a GPU is needed for, without running any of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from command import ENVIRONMENT
from kinetoscope.findings.registry import rules

GPU = Path(__file__).parents[1] / "gpu"
# Runs each script of a folder as far as its main(): what it imports is there.
IMPORTS = """
import pathlib, runpy, sys
for path in pathlib.Path(sys.argv[1]).glob("*.py"):
    runpy.run_path(str(path))
"""


def test_every_proof_imports_what_there_is() -> None:
    pytest.importorskip("torch")
    paths = os.pathsep.join([str(GPU), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, str(GPU)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["wrong_programs", "held_out", "held_out_own"])
def test_fixes_are_those_of_programs_and_the_advice_of_rules_that_exist(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(GPU))
    programs = import_module(module)
    assert all(callable(getattr(programs, name)) for name in programs.FIXES)
    advised = {rule for fixes in programs.FIXES.values() for named in fixes.values() for rule in named}
    assert advised
    assert advised <= set(rules())


UNSEEN = GPU / "unseen"
# Rules that answers name and that are not there yet.
PLANNED = {
    "data-on-device", "dense-embedding-gradient", "files-written", "graph-for-nothing", "many-small-tables",
    "needless-recomputation", "needless-scaler", "new-shape-planning", "one-at-a-time", "padding-thrown-away",
    "recurrent-host-work", "repeated-module-calls", "repeated-work", "small-batch",
}  # fmt: skip


@pytest.mark.parametrize(
    "folder",
    [UNSEEN, *sorted(path.parent for path in UNSEEN.glob("*/expected.json"))],
    ids=lambda folder: folder.name,
)
def test_answers_are_of_programs_and_name_their_fixes_and_rules_that_exist(folder: Path) -> None:
    answers: dict[str, Any] = json.loads((folder / "expected.json").read_text())
    programs = {path.stem for path in folder.glob("*.py")} - {"evaluate", "judging", "promises"}
    assert set(answers) == programs
    for name, answer in answers.items():
        source = (folder / f"{name}.py").read_text()
        fixes = set(re.findall(r'"([a-z0-9-]+)" (?:not )?in FIX', source))
        assert {one for named in answer["fixes"] for one in named.split(",")} <= fixes, name
        assert {"STEPS", "TINY"} <= set(re.findall(r'"([A-Z]+)"', source)), name
        parts = [answer[what] for what in ("first", "second", "no_use")] + list(answer["fixes"].values())
        named = {rule for part in parts for rule in part["rules"] if "-" in rule}
        assert named <= set(rules()) | PLANNED, name
        assert {fix["expect"] for fix in answer["fixes"].values()} <= {"saves", "little", "unsure"}
        assert 1 in answer["levels"].values(), name


PROGRAM = """
import os, time
for _ in range(int(os.environ["STEPS"])):
    began = time.perf_counter()
    sum(range(100_000 if "fast" in os.environ["FIX"] else 1_000_000))
print(f"{(time.perf_counter() - began) * 1e3} ms a step")
"""
ANSWER = {
    "step": "a sum", "levels": {"sum": 1}, "clock": {"regex": r"([\d.]+) ms", "ms": 1}, "score": None,
    "steps": {"first": 1, "clocks": 1, "lead": 0, "least": 1},
    "first": {"do": "sum less", "rules": []}, "second": {"rules": []}, "no_use": {"rules": []},
    "fixes": {"fast": {"expect": "saves", "rules": []}},
}  # fmt: skip


def test_what_is_said_of_a_step_is_compared_with_the_clock_of_the_recorded_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program of 110 steps, ten of which do not count: 100 ms each, but for six that were recorded, which
    took the 4 s of the recorder. Every tenth is followed by an evaluation of 200 ms."""
    monkeypatch.syspath_prepend(str(UNSEEN))
    judging = import_module("judging")
    answer = ANSWER | {"steps": {"first": 1, "clocks": 1, "lead": 10, "least": 1}}
    printed = (94 * 120 + 4000) / 100
    runs = [{"fix": "", "ms": ms} for ms in (135.0, 137.0)]
    result = {"runs": runs, "record": {"ms": printed, "steps": 110, "status": 0}}
    document = {
        "as_it_runs": {
            "mean_us": 100_000, "step_us": {"median": 99_000}, "round": {"per_step_us": 121_000},
        },
        "whole_run": {"ours_us": 4_000_000, "recorded_steps": 6}, "findings": [],
    }  # fmt: skip

    def judged(result: dict[str, Any]) -> tuple[str, Counter[str]]:
        counts = Counter[str]()
        (said,) = (
            line
            for line in judging.judged("one", answer, result, document, counts)
            if line.startswith("  as it runs")
        )
        return said, counts

    said, counts = judged(result)
    assert "121.000 ms (with its share of the round), 1.000 of that process' own clock" in said
    assert f"{printed:.3f} ms, 120.000 without the recorder" in said
    assert "which differ" in said
    assert (counts["step"], counts["even"], counts["agree"]) == (1, 0, 0)
    said, counts = judged(result | {"runs": [{"fix": "", "ms": printed}]})
    assert (counts["step"], counts["even"], counts["agree"]) == (1, 1, 1)
    # Both ends are off where neither figure lies between them: below the lower, 120, or above the upper.
    document["as_it_runs"] = {"mean_us": 100_000, "step_us": {"median": 99_000}, "round": None}
    said, counts = judged(result | {"runs": [{"fix": "", "ms": printed}]})
    assert "0.833 of that process' own clock" in said
    assert (counts["step"], counts["even"], counts["agree"]) == (0, 1, 0)


@pytest.mark.parametrize(
    ("first", "at_most", "saving_us", "right"),
    [
        ([], None, 4_900, "modest"),  # a twentieth, where no first advice has rules
        ([], None, 5_100, "second"),
        ([], 0.02, 2_100, "second"),
        (["compile"], 0.02, 1_900, "modest"),
        (["compile"], 0.02, 0, "modest"),  # no finding at all
        (["compile"], None, 1_900, "second"),  # something is wrong
        (["loss"], 0.02, 9_000, "first"),
    ],
)
def test_where_nothing_is_wrong_a_first_finding_that_promises_little_is_right(
    monkeypatch: pytest.MonkeyPatch, first: list[str], at_most: float | None, saving_us: int, right: str
) -> None:
    monkeypatch.syspath_prepend(str(UNSEEN))
    judging = import_module("judging")
    answer = ANSWER | {"first": {"do": "nothing", "rules": first}, "second": {"rules": ["loss"]}}
    answer |= {"at_most": at_most} if at_most else {}
    finding = {
        "rule": "sync-in-step",
        "title": "The loss is read",
        "advice": "Rarely.",
        "saving_us": saving_us,
    }
    document = {
        "as_it_runs": {"mean_us": 100_000, "step_us": {"median": 100_000}, "round": None},
        "whole_run": None, "findings": [finding] if saving_us else [],
    }  # fmt: skip
    result = {"runs": [{"fix": "", "ms": 100.0}], "record": {"ms": 100.0, "steps": 50, "status": 0}}
    counts = Counter[str]()
    lines = judging.judged("one", answer, result, document, counts)
    assert {what: counts[what] for what in ("first", "modest", "second") if counts[what]} == {right: 1}
    said = [line for line in lines if line.startswith("  nothing wrong")]
    assert bool(said) == (at_most is not None or not first)
    assert all(f"promises {saving_us / 1e5:.1%} of the step" in line for line in said)


@pytest.mark.slow  # two programs recorded
def test_a_line_of_the_recorder_is_not_the_program_s_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(UNSEEN)
    read = import_module("evaluate").clock
    text = "148.110 ms per step\nkinetoscope: waits for the data loader changed (103.5 → 90.3 ms per step)\n"
    assert read(text, {"regex": r"([\d.]+) ms per step", "ms": 1}) == 148.11


def test_programs_are_measured_while_there_is_time_and_once(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folder, out = tmp_path / "set", tmp_path / "out"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / f"{name}.py").write_text(PROGRAM)
    (folder / "expected.json").write_text(json.dumps({"one": ANSWER, "two": ANSWER}))

    def evaluate(what: str, *options: str) -> str:
        words = [str(UNSEEN / "evaluate.py"), what, str(out), "--set", str(folder), *options]
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=ENVIRONMENT)
        assert done.returncode == 0, done.stderr
        return done.stdout

    brief = ("--seconds", "0.01", "--record-seconds", "0.01", "--rounds", "1", "--skip-recorded")
    assert "no time left for two" in evaluate("record", *brief, "--minutes", "0.0001")
    measured = json.loads((out / "results-1.json").read_text())
    assert list(measured) == ["one"]
    assert {row["fix"] for row in measured["one"]["runs"]} == {"", "fast"}
    assert "one: plain" not in evaluate("record", *brief)
    assert list(json.loads((out / "results-1.json").read_text())) == ["one", "two"]
    with tarfile.open(out / "recordings-1-0.tar") as packed:
        assert sorted(packed.getnames()) == ["one.tar.xz", "two.tar.xz"]
    assert "2 programs" in evaluate("judge")
