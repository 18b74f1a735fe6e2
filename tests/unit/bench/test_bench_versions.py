"""Two versions in turn: which runs where, when it stops, what it says. git is real, the runs are made up."""

from __future__ import annotations

import fcntl
import itertools
import math
import random
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from kinetoscope.bench.tune.program import OutOfTimeError
from kinetoscope.bench.tune.settings import Setting
from kinetoscope.bench.tune.trial import TrialRequest, TrialResult
from kinetoscope.bench.versions.campaign import (
    AGREEING_PAIRS,
    VersionsCompared,
    compare_versions,
    run_version,
)
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
        return compare_versions(
            base,
            at_hand(),
            words,
            launch=self.launch,
            clock=lambda: self.now,
            draw=random.Random(1),
            **given,
        )


def test_the_base_is_what_was_committed_and_a_coin_says_which_is_first(repository: Path) -> None:
    machine = Machine(0.001)
    with checked_out("git:main") as base:
        found = machine.compare(base)
        assert base.folder.name == "part"
        tree = base.root
    assert not tree.exists()
    pairs = ["".join(pair) for pair in zip(machine.order[::2], machine.order[1::2], strict=True)]
    assert pairs == [{"base": "AB", "new": "BA"}[first] for first in found.first]
    assert set(pairs) == {"AB", "BA"}
    assert (found.verdict, found.stopped, found.pairs) == ("slower", "precise", AGREEING_PAIRS)
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
    """Two pairs have no interval; how far they lie apart says more."""
    with checked_out("git:main") as base:
        found = Machine(0.15).compare(base, budget_s=4)
    assert found.pairs == 2
    (budget,) = what_would_tell(msgspec.structs.replace(found, load=None))
    assert int(budget.split()[-1]) < 1000
    assert re.fullmatch(
        r"cannot tell: [+−][\d.]+ % by 2 pairs of runs, of which an interval needs 6", verdict(found)
    )
    assert found.new.step_s / found.base.step_s == pytest.approx(found.ratio)


def test_no_budget_is_named_where_the_answer_is_known(repository: Path) -> None:
    with checked_out("git:main") as base:
        found = Machine(0.15).compare(base, budget_s=20)
    assert list(what_would_tell(msgspec.structs.replace(found, verdict="same"))) == []
    wild = [
        msgspec.structs.replace(side, runs_s=runs)
        for side, runs in ((found.base, (1, 9)), (found.new, (9, 1)))
    ]
    (never,) = what_would_tell(
        msgspec.structs.replace(found, load=None, base=wild[0], new=wild[1], pairs=2, seconds=1000.0)
    )
    assert never == "runs differ so much that a day of them would not tell ± 5.0 %"


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
        with pytest.raises(ProgramError, match="fails in"):
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


# What a machine does to one run after another (the logarithm of what it takes longer), with other work on it.
Noise = Callable[[random.Random], Iterator[float]]


def alike(draw: random.Random) -> Iterator[float]:
    while True:
        yield draw.gauss(0, 0.005)


def heavy_tails(draw: random.Random) -> Iterator[float]:
    """Student's t of two degrees of freedom: no variance."""
    while True:
        yield 0.05 * draw.gauss(0, 1) / math.sqrt(draw.expovariate(1))


def drift(draw: random.Random) -> Iterator[float]:
    at = 0.0
    while True:
        at += 0.02 + draw.gauss(0, 0.03)
        yield at


def bursts(draw: random.Random) -> Iterator[float]:
    """Another job comes and goes, every few runs, and doubles what a step takes."""
    is_there = draw.random() < 0.5
    while True:
        is_there ^= draw.random() < 0.4
        yield draw.gauss(0.7, 0.2) if is_there else draw.gauss(0, 0.01)


def returning(draw: random.Random) -> Iterator[float]:
    """Another job that needs the machine every fourth run."""
    began = draw.randrange(4)
    for run in itertools.count(began):
        yield draw.gauss(0, 0.01) + (0.3 if run % 4 < 2 else 0.0)


def remembered(draw: random.Random) -> Iterator[float]:
    at = 0.0
    while True:
        at = 0.5 * at + draw.gauss(0, 0.15)
        yield at


def all_of_it(draw: random.Random) -> Iterator[float]:
    for parts in zip(heavy_tails(draw), drift(draw), bursts(draw), returning(draw), strict=True):
        yield sum(parts)


def said(home: Path, machine: Sequence[float], coins: Sequence[bool], change: float = 1.0) -> str:
    """What is said of a program whose step takes ``change`` times as long, in as many pairs as there are
    coins, of which one that is true has the new version run first."""
    versions = Version("base", home, home), Version("new", home, home)
    pair_s, runs = 10.0, iter(machine)
    now = 0.0

    class Coins(random.Random):
        left = iter(coins)

        def random(self) -> float:
            return 0.9 if next(self.left) else 0.1

    def launch(version: Version, order: TrialRequest, words: Sequence[str]) -> TrialResult:
        nonlocal now
        now += pair_s / 2
        step_s = 0.01 * math.exp(next(runs)) * (change if version is versions[1] else 1)
        return TrialResult(steps_s=(step_s,) * 4, steps_by="user")

    found = compare_versions(
        *versions,
        ["train.py"],
        launch=launch,
        clock=lambda: now,
        seconds=1.0,
        budget_s=pair_s * len(coins),
        draw=Coins(),
    )
    return found.verdict


def some(noise: Noise, runs: int, seed: int) -> list[float]:
    return list(itertools.islice(noise(random.Random(seed)), runs))


WORLDS = (alike, heavy_tails, drift, bursts, returning, remembered, all_of_it)


@pytest.mark.parametrize(
    ("noise", "pairs"), [*((one, 8) for one in WORLDS), pytest.param(alike, 11, marks=pytest.mark.slow)]
)
def test_whatever_the_machine_does_at_most_5_percent_of_the_coins_call_the_same_program_changed(
    tmp_path: Path, noise: Noise, pairs: int
) -> None:
    """All coins that there are, on a machine that did exactly this: no chance is left in it."""
    (tmp_path / "train.py").touch()
    machine = some(noise, 2 * pairs, 1)
    called = [said(tmp_path, machine, coins) for coins in itertools.product((False, True), repeat=pairs)]
    assert 0 < sum(one in ("faster", "slower") for one in called) <= 0.05 * 2**pairs


def test_without_coins_a_job_that_returns_would_be_called_a_change(tmp_path: Path) -> None:
    """A B B A in turn: what comes back with the same period is always on the same side."""
    (tmp_path / "train.py").touch()
    in_turn = (False, True) * 6
    called = [said(tmp_path, some(returning, 24, seed), in_turn) for seed in range(40)]
    assert sum(one in ("faster", "slower") for one in called) > 20


def test_slow_downs_are_found_where_runs_are_alike_and_large_ones_among_heavy_tails(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()

    def found(noise: Noise, change: float) -> int:
        coins = [
            [random.Random(100 * seed + pair).random() < 0.5 for pair in range(12)] for seed in range(40)
        ]
        every = (said(tmp_path, some(noise, 24, seed), coins[seed], change) for seed in range(40))
        return sum(one == "slower" for one in every)

    assert found(alike, 1.1) >= 36
    assert found(heavy_tails, 1.5) >= 36


def test_a_run_that_outlasts_the_budget_is_ended_and_its_pair_does_not_count(repository: Path) -> None:
    """Pairs of 2 s and a budget of 15: once the machine is slow, a run is given what is left, and no more."""
    machine = Machine(0.01)

    def launch(version: Version, order: TrialRequest, words: Sequence[str]) -> TrialResult:
        assert order.limit_s == pytest.approx(15 - machine.now)
        if len(machine.order) == 13:
            machine.now += order.limit_s
            raise OutOfTimeError
        return machine.launch(version, order, words)

    progress: list[str] = []
    with checked_out("git:main") as base:
        found = compare_versions(
            base,
            at_hand(),
            ["train.py"],
            launch=launch,
            clock=lambda: machine.now,
            budget_s=15,
            precision=0.0,
            progress=progress.append,
        )
    assert (found.pairs, found.stopped, found.seconds) == (6, "out of time", 15)
    assert len(found.base.runs_s) == len(found.new.runs_s) == 6
    assert "7 pairs of runs fit into the budget" in progress


def test_a_budget_of_too_few_pairs_is_said_before_it_is_spent(repository: Path) -> None:
    progress: list[tuple[float, str]] = []
    machine = Machine(0.01, each_s=5.0)
    with checked_out("git:main") as base:
        found = machine.compare(base, budget_s=40, progress=lambda text: progress.append((machine.now, text)))
        at, plan = next((at, text) for at, text in progress if "fit" in text)
        assert (at, plan) == (
            10,
            "4 of the 6 pairs of runs that a verdict needs fit into the budget (--budget 120 has 12)",
        )
        assert (found.pairs, found.verdict) == (4, "cannot tell")

        def never(*_: object) -> TrialResult:
            raise OutOfTimeError

        with pytest.raises(ProgramError, match="was over before"):
            compare_versions(base, at_hand(), ["train.py"], launch=never, budget_s=5)


def test_a_run_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """A worker that has locked a file, and would for ten minutes, is gone when the run is over."""
    locked = "fcntl.flock(open('lock', 'w'), fcntl.LOCK_EX); print(flush=True)"
    worker = f"import fcntl, time; {locked}; time.sleep(600)"
    (tmp_path / "train.py").write_text(
        "import subprocess, sys\n"
        f'started = subprocess.Popen([sys.executable, "-c", "{worker}"], stdout=subprocess.PIPE)\n'
        "started.stdout.readline()\n"
    )
    here = Version("here", tmp_path, tmp_path)
    order = TrialRequest(
        setting=Setting(as_written=True), folder=str(tmp_path), steps=5, seconds=1.0, limit_s=300.0
    )
    assert run_version(here, order, ["train.py"]).error is None
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def test_a_run_that_outlasts_its_limit_is_ended(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time; time.sleep(600)")
    here = Version("here", tmp_path, tmp_path)
    order = TrialRequest(
        setting=Setting(as_written=True), folder=str(tmp_path), steps=5, seconds=1.0, limit_s=0.5
    )
    with pytest.raises(OutOfTimeError):
        run_version(here, order, ["train.py"])
