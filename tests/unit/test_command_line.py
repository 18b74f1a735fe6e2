"""Words of the command line: which are ours, and which are a program's, whatever they look like."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from threading import Event, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.cli import parse
from kinetoscope.cli._many import settle
from kinetoscope.progress import answered
from kinetoscope.trace import cache

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


@pytest.mark.parametrize(
    ("size", "kept", "expected"),
    [(23 << 20, 0, "1"), (25 << 20, 0, None), (25 << 20, 1, None), (25 << 20, 2, "1"), (513 << 20, 2, None)],
)
def test_small_inputs_and_kept_ones_get_one_thread_for_tables(
    size: int, kept: int, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {})
    of_kept = [str(tmp_path / f"rank{rank}.json") for rank in range(kept)]
    monkeypatch.setattr(cache, "is_kept", lambda path: str(path) in of_kept)
    for rank in range(2):
        with (tmp_path / f"rank{rank}.json").open("wb") as trace:
            trace.truncate(size // 2)
    settle([str(tmp_path)])
    assert os.environ.get("POLARS_MAX_THREADS") == expected


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere cores are the system's to choose")
@pytest.mark.parametrize(
    ("size", "packed", "load", "alone"),
    [(1 << 20, 1, 0.5, True), (3 << 20, 1, 0.5, False), (3 << 20, 0, 0.5, True), (3 << 20, 0, 1e3, False)],
)
def test_of_a_small_trace_one_core_is_used_where_some_idle_and_every_thread_has_all_of_them_afterwards(
    size: int, packed: bool, load: float, alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    trace = tmp_path / ("trace.json.gz" if packed else "trace.json")
    with trace.open("wb") as file:
        file.truncate(size)
    before, found, ends = os.sched_getaffinity(0), set[int](), Event()
    thread = Thread(target=ends.wait)

    def find(_: object) -> None:
        found.update(os.sched_getaffinity(0))
        thread.start()

    answered([str(trace)], "kinetoscope.document:Report", find)
    assert len(found) == (1 if alone else len(before))
    assert found <= before == os.sched_getaffinity(0) == os.sched_getaffinity(thread.native_id or 0)
    ends.set()
    with pytest.raises(ValueError, match="of its own"):
        answered([str(trace)], "kinetoscope.document:Report", refused)
    assert os.sched_getaffinity(0) == before


def refused(_: object) -> None:
    raise ValueError("of its own")
