"""Words of the command line: which are ours, and which are a program's, whatever they look like."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.cli import parse
from kinetoscope.cli._many import settle

OURS = st.lists(
    st.sampled_from(
        [
            ["--steps=3"],
            ["--steps", "3"],
            ["--warmup", "-1"],
            ["-o", "x.py"],
            ["-oy"],
            ["--whole"],
            ["--stop"],
        ]
    ),
    unique_by=lambda words: words[0].partition("=")[0][:3],
).map(lambda options: [word for option in options for word in option])
LOOK_LIKE_OURS = [
    "--steps",
    "--steps=5",
    "--b",
    "--ste",
    "-m",
    "--",
    "--out",
    "-o",
    "-1",
    "@file",
    "",
    "--help",
]
THEIRS = st.lists(st.sampled_from(LOOK_LIKE_OURS) | st.text())
SCRIPTS = st.sampled_from(["train.py", "torchrun", "-", "a b.py", "dir/"])


@given(OURS, SCRIPTS, THEIRS, st.sampled_from([[], ["--"]]))
def test_a_program_is_given_its_words_and_no_others(ours, script, theirs, divider):
    given = parse("run", [*ours, *divider, script, *theirs])
    assert given.program == [script, *theirs]
    assert not given.module
    assert given.steps == (3 if "--steps=3" in ours or "--steps" in ours else None)


@given(OURS, THEIRS)
def test_a_module_is_given_its_words_and_no_others(ours, theirs):
    given = parse("run", [*ours, "-m", "package.train", *theirs])
    assert given.module
    assert given.program == ["package.train", *theirs]


@pytest.mark.parametrize(("verb", "before"), [("tune", []), ("compare", ["--base", "git:main"])])
def test_other_verbs_that_run_a_program_leave_it_its_words(verb: str, before: list[str]):
    assert parse(verb, [*before, "--steps", "9", "t.py", *LOOK_LIKE_OURS]).program == [
        "t.py",
        *LOOK_LIKE_OURS,
    ]


@pytest.mark.parametrize(
    ("verb", "words", "meant"),
    [
        ("report", ["x", "--every"], "--every-rank"),
        ("kernels", ["x", "--jso"], "--json"),
        ("run", ["--warm", "3", "t.py"], "--warmup"),
        ("whatif", ["x", "--no-syn"], "--no-sync"),
    ],
)
def test_no_option_is_abbreviated(
    verb: str, words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(verb, words)
    assert ended.value.code == 2
    assert f"did you mean {meant}" in capsys.readouterr().err


def test_an_option_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        parse("run", ["--warmupz", "3", "train.py"])
    assert "there is no option --warmupz; did you mean --warmup" in capsys.readouterr().err


@pytest.mark.parametrize(("size", "expected"), [(1 << 20, "1"), (3 << 20, None)])
def test_small_inputs_get_one_thread_for_tables(
    size: int, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {})
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_bytes(b"x" * (size // 2))
    settle([str(tmp_path)])
    assert os.environ.get("POLARS_MAX_THREADS") == expected
