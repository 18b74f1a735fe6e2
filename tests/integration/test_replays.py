"""How recordings replay, and what ``kinetoscope whatif`` says of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cases.recorded import HERE
from cases.replays import FIXTURES, PAGE, recordings, rows
from command import complaints, kinetoscope
from kinetoscope import cli
from kinetoscope.analysis.replay import what_if
from kinetoscope.document.collect.replay import replay, what_if_listing
from kinetoscope.sources.run import load
from kinetoscope.statistics.distribution import quantile
from rank_replays import replays

OURS = [(name, files) for name, files in recordings() if files[0].is_relative_to(FIXTURES)]
EAGER = str(FIXTURES / "h200" / "mm_4096_warm_eager.json.gz")


def test_fixtures_replay_as_they_were_recorded_and_as_the_page_says() -> None:
    found = [row for name, files in OURS for row in rows(name, files)]
    errors = [abs(row.error) for row in found]
    assert quantile(errors, 0.5) <= 0.02
    assert quantile(errors, 0.9) <= 0.05
    page = PAGE.read_text()
    assert not [row.name for row in found if str(row) not in page]


def test_the_step_without_the_profiler_is_what_answers_are_of() -> None:
    run = load(FIXTURES / "h100_everyday" / "host-bound")
    found = replays(run)[0]
    assert found.recorded_us == pytest.approx(28_925.136)
    assert found.step_us == pytest.approx(15_587.952, rel=1e-6)
    assert 0.5 < found.pace < 0.6
    assert found.after(what_if.host(run, 0.5).changes[0]) < 0.6 * found.step_us


def test_what_if_a_category_took_no_time() -> None:
    done = kinetoscope("whatif", EAGER, "--category", "matmul=0", "--kernel", "*=1", "--json")
    assert done.returncode == 0, done.stderr
    assert not complaints(done)
    document = json.loads(done.stdout)
    replay = document["replay"]
    assert document["unit"] == "step"
    assert document["after_us"] == pytest.approx(replay["step_us"] - document["saving_us"])
    # Three steps of one product each: once they are gone, the host is what the step waits for.
    assert [change["text"] for change in document["changes"]] == ["--kernel *=1", "--category matmul=0"]
    assert [change["events"] for change in document["changes"]] == [10, 3]
    assert document["changes"][0]["saving_us"] == 0
    assert sum(part["us"] for part in replay["critical_path"]) == pytest.approx(replay["step_us"])
    assert sum(part["us"] for part in document["after"]) == pytest.approx(document["after_us"])
    assert replay["critical_path"][0]["text"] == "aten::mm kernels"
    assert any(part["text"].startswith("host: ") for part in document["after"])


def test_the_listing_without_changes_is_the_critical_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["whatif", EAGER]) == 0
    out = capsys.readouterr().out
    assert "Critical path" in out
    assert "aten::mm kernels" in out
    assert "→" not in out


def test_a_change_that_saves_nothing_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    why = "Hardly any of it is on the critical path"
    assert cli.main(["whatif", EAGER, "--kernel", "*=1"]) == 0
    assert why in capsys.readouterr().out
    assert cli.main(["whatif", EAGER, "--category", "matmul=0"]) == 0
    assert why not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--kernel", "elementwise=0.5"], 3, "did you mean '*elementwise*'?"),
        (["--category", "matmull=0"], 3, "did you mean matmul?"),
        (["--op", "nothing_like_it_qqq=0"], 3, "`kinetoscope kernels INPUT --by op` lists them"),
        (["--kernel", "*=1.5"], 2, "expected NAME=FRACTION (0 to 1)"),
        (["--host", "-0.5"], 2, "expected FRACTION (0 to 1), got '-0.5'"),
    ],
)
def test_a_change_that_matches_nothing_is_refused(
    words: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["whatif", EAGER, *words]) == status
    assert said in capsys.readouterr().err


def test_of_ranks_that_meet_the_step_that_goes_on_is_shown_not_how_long_each_was_recorded() -> None:
    run = load(*sorted((HERE / "small-collectives").glob("before.rank*.json.gz")))
    found = what_if_listing(run, [what_if.without_waits])
    assert found is not None
    # Of two unlike steps one is replayed: from its own recording's begin rank 0 would take four of them.
    assert found.replay == replay(run)
    assert (found.replay.rank, found.replay.recorded_us) == (1, pytest.approx(17_514.49, rel=1e-6))
    assert abs(found.replay.error) < 0.02
    assert sum(part.us for part in found.replay.critical_path) == pytest.approx(found.replay.step_us)
    assert found.after_us <= found.replay.step_us


def test_asked_twice_is_saved_once() -> None:
    run = load(Path(EAGER))
    found = replays(run)[0]
    half = what_if.scaled(run, what_if.Scale("category", "matmul", 0.5))
    ops = what_if.scaled(run, what_if.Scale("op", "aten::mm", 0.5))
    both = what_if.together([half, ops])[0]
    assert found.after(both) <= found.after(half.changes[0])
    products = half.changes[0]
    assert found.after(products | products) == found.after(products)
    smaller = what_if.scaled(run, what_if.Scale("category", "matmul", 0.9)).changes[0]
    assert found.after(products | smaller) == found.after(smaller | products) == found.after(products)
