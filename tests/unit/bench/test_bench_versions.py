"""Two versions in turn: which runs where, when it stops, what it says. git is real, the runs are made up."""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from kinetoscope.bench.tune.trial import TrialRequest, TrialResult
from kinetoscope.bench.versions.campaign import FEWEST_PAIRS, VersionsCompared, compare_versions
from kinetoscope.bench.versions.worktree import Version, at_hand, checked_out
from kinetoscope.errors import InputError, ProgramError, UsageError
from kinetoscope.render import terminal
from kinetoscope.views.tune import verdict, versions, what_would_tell


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose program says how long its step takes: 10 as committed, 11 as it is."""
    home = tmp_path / "repository"
    (home / "part").mkdir(parents=True)
    script = home / "part" / "train.py"
    script.write_text("10")
    for words in (
        ("init", "-q", "-b", "main"),
        ("add", "-A"),
        ("-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "before"),
    ):
        subprocess.run(["git", *words], cwd=home, check=True, capture_output=True)
    script.write_text("11")
    monkeypatch.chdir(home / "part")
    return home


class Machine:
    """Runs of a program that says its step, with this machine's noise and time."""

    def __init__(self, noise: float, each_s: float = 1.0, *, seed: int = 2, timed: bool = False) -> None:
        self.draw, self.noise, self.each_s, self.timed = random.Random(seed), noise, each_s, timed
        self.now, self.order = 0.0, list[str]()

    def launch(self, version: Version, order: TrialRequest, words: Sequence[str]) -> TrialResult:
        self.now += self.each_s * self.draw.uniform(0.8, 1.2) + order.seconds if self.timed else self.each_s
        self.order.append("B" if version.label == "working tree" else "A")
        step_s = float((version.folder / words[0]).read_text()) * (1 + self.draw.gauss(0, self.noise))
        return TrialResult(steps_s=(step_s,) * 8, steps_by="user")

    def compare(
        self, base: Version, words: Sequence[str] = ("train.py",), **given: float | None
    ) -> VersionsCompared:
        return compare_versions(base, at_hand(), words, launch=self.launch, clock=lambda: self.now, **given)


def test_the_base_is_what_was_committed_and_turns_with_the_new(repository: Path) -> None:
    machine = Machine(0.001)
    with checked_out("git:main") as base:
        found = machine.compare(base)
        assert base.folder.name == "part"
        tree = base.root
    assert not tree.exists()
    assert "".join(machine.order) == "ABBA" * (FEWEST_PAIRS // 2)
    assert (found.verdict, found.stopped, found.pairs) == ("slower", "precise", FEWEST_PAIRS)
    assert found.ratio == pytest.approx(1.1, rel=0.01)
    assert found.calibration is not None
    assert found.calibration.samples_s == found.base.runs_s
    assert 0 < found.calibration.spread < 0.005


def test_noise_that_hides_the_answer_is_an_answer(repository: Path) -> None:
    machine = Machine(0.15)
    with checked_out("git:main") as base:
        found = machine.compare(base, budget_s=20)
    assert (found.verdict, found.stopped) == ("cannot tell", "out of time")
    assert machine.now <= 20
    found = msgspec.structs.replace(found, load=6.0, cores=2)
    busy, budget = what_would_tell(found)
    assert "6.0 want to run on 2 cores" in busy
    assert (needed := re.search(r"--budget (\d+)$", budget))
    assert machine.now * 4 < int(needed[1]) < machine.now * 30, "15 % of noise need 70 pairs for ± 5 %"
    page = terminal.text(versions(found, []), 80)
    assert "--budget" in page


def test_runs_are_short_enough_for_more_pairs_within_the_budget(repository: Path) -> None:
    """Of runs that differ by 6 % and take 3 s to start, 12 pairs find more slow-downs of a tenth than 7 pairs
    of 5 s a run, and no more that are not there."""

    def verdicts(step_s: str, seconds: float | None) -> list[str]:
        (repository / "part" / "train.py").write_text(step_s)
        found: list[str] = []
        for seed in range(20):
            machine = Machine(0.06, 3.0, seed=seed, timed=True)
            found.append(compare_in(machine, seconds).verdict)
            assert machine.now <= 120
        return found

    with checked_out("git:main") as base:
        (base.folder / "train.py").write_text("0.010")

        def compare_in(machine: Machine, seconds: float | None) -> VersionsCompared:
            return machine.compare(base, budget_s=120, seconds=seconds)

        assert verdicts("0.011", None).count("slower") > verdicts("0.011", 5.0).count("slower")
        same = verdicts("0.010", None)
        assert same.count("slower") + same.count("faster") <= 2


def test_runs_of_long_steps_or_of_given_seconds_are_not_shortened(repository: Path) -> None:
    with checked_out("git:main") as base:
        machine = Machine(0.06, 3.0, timed=True)
        assert machine.compare(base, budget_s=120).pairs == 7
        (repository / "part" / "train.py").write_text("0.011")
        (base.folder / "train.py").write_text("0.010")
        machine = Machine(0.06, 3.0, timed=True)
        assert machine.compare(base, budget_s=120, seconds=5.0).pairs == 7


def test_two_pairs_tell_how_many_more_are_needed(repository: Path) -> None:
    """Student's interval of two pairs is endless nearly; how far they lie apart says more."""
    with checked_out("git:main") as base:
        found = Machine(0.15).compare(base, budget_s=4)
    assert found.pairs == 2
    (budget,) = what_would_tell(msgspec.structs.replace(found, load=None))
    assert int(budget.split()[-1]) < 1000
    assert "half as long or twice as long" in verdict(found)
    assert found.new.step_s / found.base.step_s == pytest.approx(found.ratio)


def test_no_budget_is_named_where_the_answer_is_known(repository: Path) -> None:
    with checked_out("git:main") as base:
        found = Machine(0.15).compare(base, budget_s=20)
    assert list(what_would_tell(msgspec.structs.replace(found, verdict="same"))) == []


def test_the_same_is_said_within_the_precision(repository: Path) -> None:
    (repository / "part" / "train.py").write_text("10")
    with checked_out("git:main") as base:
        assert Machine(0.0005).compare(base).verdict == "same"


def test_a_script_by_its_whole_path_is_each_versions_own(repository: Path) -> None:
    with checked_out("git:main") as base:
        found = Machine(0.0).compare(base, [str(repository / "part" / "train.py")])
    assert found.ratio == pytest.approx(1.1)


def test_search_paths_into_the_repository_lead_into_the_worktree(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{repository / 'part'}:{tmp_path}:relative")
    with checked_out("git:main") as base:
        assert base.environment()["PYTHONPATH"] == f"{base.root / 'part'}:{tmp_path}:relative"
    assert at_hand().environment()["PYTHONPATH"] == f"{repository / 'part'}:{tmp_path}:relative"


def test_what_cannot_be_compared_is_refused(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such commit"), checked_out("git:elsewhere"):
        pass
    with pytest.raises(UsageError, match="no such folder"), checked_out("elsewhere"):
        pass
    with checked_out("git:main") as base:
        with pytest.raises(InputError, match="no such script"):
            Machine(0.0).compare(base, ["absent.py"])
        with pytest.raises(ProgramError, match="fails in git:main"):
            compare_versions(base, at_hand(), ["train.py"], launch=lambda *_: TrialResult(error="it broke"))
        with pytest.raises(ProgramError, match="no steps"):
            compare_versions(base, at_hand(), ["train.py"], launch=lambda *_: TrialResult())


def test_a_folder_that_the_base_lacks_is_named_as_it_is_in_the_repository(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "new").mkdir()
    monkeypatch.chdir(repository / "new")
    with checked_out("git:main") as base:
        with pytest.raises(InputError, match="no such folder") as refused:
            compare_versions(base, at_hand(), ["train"], module=True, launch=Machine(0.0))
        assert refused.value.where == "new"
