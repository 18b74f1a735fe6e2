"""Options mean one thing over all verbs: --json, --limit, where a result is written."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import shlex
from pathlib import Path

import pytest

from command import RECORDING, ROOT, SMALL, kinetoscope
from kinetoscope.cli import VERBS, main, parse, parser_of

FIXTURES = ROOT / "tests" / "fixtures"
RANKS = FIXTURES / "h200-dist" / "ddp_none_rank0.json.gz"


def options(verb: str) -> dict[str, str]:
    """The options of a verb: where its parser puts what each is given."""
    parser = argparse.ArgumentParser()
    importlib.import_module(f"kinetoscope.cli.{verb}").add_arguments(parser)
    return {word: action.dest for action in parser._actions for word in action.option_strings}


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"run"}))
def test_a_result_is_written_where_every_spelling_says(verb: str) -> None:
    known = options(verb)
    if "-o" in known:
        assert known["-o"] == known["--output"] == known["--out"] == "output"


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"completion", "doctor"}))
def test_help_ends_with_examples_that_the_parsers_take(verb: str) -> None:
    epilog = re.sub(r'"[^"]*"', lambda sql: " ".join(sql[0].split()), parser_of(verb).epilog or "")
    commands = [shlex.split(line) for line in re.findall(r"^  kinetoscope (.+?)(?:   .*)?$", epilog, re.M)]
    assert any(name == verb for name, *_ in commands)
    for name, *words in commands:
        parse(name, words)


@pytest.mark.parametrize("verb", ["check", "findings", "history", "kernels", "memory", "query", "whatif"])
def test_what_prints_a_table_has_json_and_a_limit(verb: str) -> None:
    assert {"--json", "--limit"} <= options(verb).keys()


def test_a_report_as_json_is_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(RECORDING), "--json"]) == 0
    shown = capsys.readouterr().out
    assert main(["report", str(RECORDING), "-o", str(tmp_path / "report.json")]) == 0
    assert shown == (tmp_path / "report.json").read_text()
    capsys.readouterr()
    assert main(["report", str(RECORDING), "--json", "-o", str(tmp_path / "x.json")]) == 2
    assert "both --json and -o" in capsys.readouterr().err


def test_many_ranks_are_reported_as_json_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["report", str(RANKS), "--engine", "local", "--parts", str(tmp_path / "parts")]
    assert main([*words, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["schema"] == "kinetoscope.ranks/1"
    assert main([*words, "-o", str(tmp_path / "ranks.json")]) == 0
    assert shown == json.loads((tmp_path / "ranks.json").read_text())


def test_a_limit_leaves_the_first_findings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["findings", str(RECORDING), "--json"]) == 0
    rules = [row["rule"] for row in json.loads(capsys.readouterr().out)["findings"]]
    assert len(rules) > 1
    assert main(["findings", str(RECORDING), "--limit", "1"]) == 0
    shown = capsys.readouterr()
    assert rules[0] in shown.out
    assert f"{len(rules)} findings" in shown.out
    assert f"… and {len(rules) - 1} findings more" in shown.out
    assert len(shown.out) < 2000


def test_a_limit_leaves_the_last_recordings_of_a_history(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", str(FIXTURES / "h200_proved"), "--json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)["rows"]]
    assert main(["history", str(FIXTURES / "h200_proved"), "--limit", "1"]) == 0
    shown = capsys.readouterr().out
    assert names[-1] in shown
    assert names[0] not in shown


@pytest.mark.parametrize(
    "words",
    [
        ["kernels", SMALL, "--limit", "-5"],
        ["findings", SMALL, "--limit", "-1"],
        ["memory", SMALL, "--at", "nan"],
        ["bench", SMALL, "--seconds", "-1"],
        ["tune", "--rounds", "0", "x.py"],
        ["record", "1", "--steps", "0"],
    ],
)
def test_numbers_that_say_nothing_are_refused(words: list[object]) -> None:
    done = kinetoscope(*words)
    assert done.returncode == 2
    assert "must be at least" in done.stderr


def test_what_a_fraction_of_host_time_looks_like_is_said() -> None:
    done = kinetoscope("whatif", SMALL, "--host", "2")
    assert done.returncode == 2
    assert "expected FRACTION (0 to 1), got '2.0'" in done.stderr
    assert "--host 0.5" in done.stderr
