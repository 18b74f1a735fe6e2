"""A finding's advice tried: what is copied, what is changed, and the verdict. The runs are made up."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from command import ROOT
from kinetoscope.agents import proving
from kinetoscope.bench.tune.trial import TrialRequest, TrialResult
from kinetoscope.bench.versions.campaign import RunVersion
from kinetoscope.bench.versions.worktree import Version
from kinetoscope.errors import ProgramError, UsageError
from kinetoscope.findings.registry import find
from kinetoscope.recording.manifest import Manifest
from kinetoscope.sources.run import LoadedRun, load

PATCH = "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-10\n+{}\n"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that says how long its step takes (ms), data, a repository and an earlier recording."""
    (tmp_path / "train.py").write_text("10\n")
    (tmp_path / "data.bin").write_bytes(b"0" * (proving.LARGE + 1))
    for folder, file in ((".git", "HEAD"), ("recording", "manifest.json")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).write_text("{}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recorded(case: str, *command: str) -> LoadedRun:
    run = load(ROOT / "tests" / "cases" / case / "before.json.gz")
    return replace(run, manifest=Manifest(command=command or ("python", "train.py")))


class Runs:
    """Runs of such a program on a machine with noise; under a setting it takes half as long.

    Each version draws its noise by itself: a coin that nothing here seeds decides which of a pair runs first.
    """

    def __init__(self, noise: float = 0.001) -> None:
        self.draws: dict[str, random.Random] = {}
        self.noise, self.seen = noise, list[tuple[Version, TrialRequest]]()

    def __call__(self, version: Version, order: TrialRequest, words: Sequence[str]) -> TrialResult:
        self.seen.append((version, order))
        ms = float((version.folder / words[0]).read_text().splitlines()[-1])
        ms *= (1 if order.setting.as_written and not order.setting.matmul_precision else 0.5) * (
            1 + self.draws.setdefault(version.label, random.Random(version.label)).gauss(0, self.noise)
        )
        return TrialResult(steps_s=(ms / 1e3,) * 8, steps_by="user")


def tried(program: Path, run: LoadedRun, rule: str, runs: RunVersion, **given: Any) -> dict[str, Any]:
    place = next(place for place, one in enumerate(find(run)) if one.rule == rule)
    found = proving.prove(run, place, [program], launch=runs, **given)
    return dict(found.rows[0]) if found.rows else {"cannot": found.cannot_answer}


@pytest.mark.parametrize(
    ("step_ms", "verdict"), [("5", "proved"), ("20", "refuted"), ("10.0", "refuted")], ids=str
)
def test_a_patch_is_proved_or_refuted_with_its_saving(program: Path, step_ms: str, verdict: str) -> None:
    row = tried(program, recorded("launch-gap"), "launch-gap", Runs(), patch=PATCH.format(step_ms))
    assert row["verdict"] == verdict
    assert row["step_before_us"] == pytest.approx(10_000, rel=0.01)
    saved = 10_000 - float(step_ms) * 1000
    low, high = row["saving_interval_us"]
    assert low - 20 <= saved <= high + 20
    assert row["changed_files"] == ["train.py"]
    assert (program / "train.py").read_text() == "10\n"
    assert row["prediction_in_interval"] == (low <= row["predicted_saving_us"] <= high)


def test_a_patch_by_hand_needs_no_context_and_no_right_counts(program: Path) -> None:
    (program / "train.py").write_text("# a\n# b\n10\n")
    patch = "--- a/train.py\n+++ b/train.py\n@@ -3,4 +3,9 @@\n-10\n+5\n"
    row = tried(program, recorded("launch-gap"), "launch-gap", Runs(), patch=patch)
    assert row["verdict"] == "proved"


def test_too_much_noise_proves_nothing(program: Path) -> None:
    run = recorded("launch-gap")
    row = tried(program, run, "launch-gap", Runs(0.4), patch=PATCH.format("9.9"), budget_s=0.0)
    assert row["verdict"] == "cannot tell"


@pytest.mark.parametrize(("budget_s", "seconds"), [(20.0, 1.0), (200.0, 5.0)])
def test_runs_are_short_where_the_budget_is(program: Path, budget_s: float, seconds: float) -> None:
    runs = Runs()
    tried(program, recorded("launch-gap"), "launch-gap", runs, patch=PATCH.format("5"), budget_s=budget_s)
    assert runs.seen[0][1].seconds == seconds


def test_both_versions_are_copies_without_history_and_recordings(program: Path) -> None:
    runs = Runs()
    kept: list[set[str]] = []

    def look(version: Version, order: TrialRequest, words: Sequence[str]) -> TrialResult:
        kept.append({path.name for path in version.folder.iterdir()})
        assert (version.folder / "data.bin").is_symlink()
        assert version.folder != program
        return runs(version, order, words)

    proving.prove(recorded("launch-gap"), 0, [program], patch=PATCH.format("5"), launch=look)
    assert all(names == {"train.py", "data.bin"} for names in kept)
    assert len({version.folder for version, _ in runs.seen}) == 2
    assert not any(version.folder.exists() for version, _ in runs.seen)


def test_what_the_program_wrote_since_it_was_recorded_is_not_written_over(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is large: through a link the copies would write over the user's own."""
    monkeypatch.setattr(proving, "MOST_WRITTEN", 3 * proving.LARGE)
    (program / "model.pt").write_bytes(b"0" * (proving.LARGE + 1))
    (program / "huge.pt").write_bytes(b"0" * (4 * proving.LARGE))
    os.utime(program / "data.bin", (0, 0))
    runs, linked = Runs(), list[set[str]]()

    def look(version: Version, order: TrialRequest, words: Sequence[str]) -> TrialResult:
        linked.append({path.name for path in version.folder.iterdir() if path.is_symlink()})
        (version.folder / "model.pt").write_bytes(b"1")
        return runs(version, order, words)

    run = recorded("launch-gap")
    manifest = Manifest(command=("python", "train.py"), created="2020-01-01T00:00:00+00:00")
    proving.prove(replace(run, manifest=manifest), 0, [program], patch=PATCH.format("5"), launch=look)
    assert all(names == {"data.bin", "huge.pt"} for names in linked)
    assert (program / "model.pt").stat().st_size == proving.LARGE + 1


def test_too_few_pairs_have_no_interval_and_say_what_budget_would(program: Path) -> None:
    def slow(version: Version, order: TrialRequest, words: Sequence[str]) -> TrialResult:
        time.sleep(0.06)
        return runs(version, order, words)

    runs = Runs()
    found = proving.prove(
        recorded("launch-gap"), 0, [program], patch=PATCH.format("5"), launch=slow, budget_s=0.3
    )
    (row,), why = found.rows, found.cannot_answer
    assert (row["verdict"], row["saving_interval_us"], row["prediction_in_interval"]) == (
        "cannot tell", None, None,
    )  # fmt: skip
    assert why is not None
    assert f"{row['pairs']} of the 6 pairs of runs that a verdict needs" in why.reason
    assert why.what_to_record.startswith("budget_s of ")


def test_a_version_that_fails_is_said_in_the_words_of_the_tool(program: Path) -> None:
    def failing(version: Version, order: TrialRequest, words: Sequence[str]) -> TrialResult:
        return TrialResult(error="ValueError: it broke")

    with pytest.raises(ProgramError, match="it broke") as failure:
        tried(program, recorded("launch-gap"), "launch-gap", failing, patch=PATCH.format("5"))
    assert "budget_s" in (failure.value.hint or "")
    assert "--" not in (failure.value.hint or "")


def test_a_finding_s_own_setting_needs_no_patch(program: Path) -> None:
    runs = Runs()
    rule = "no-tensor-cores"
    run = replace(recorded(rule), folder=program / "recording")  # proofs are of recordings
    row = tried(program, run, rule, runs)
    assert row["verdict"] == "proved"
    assert row["changed_files"] == []
    settings = {version.label: order.setting for version, order in runs.seen}
    assert settings["changed"].matmul_precision == "high"
    assert settings["as it is"].matmul_precision is None


def test_a_snippet_of_torch_s_own_settings_stands_at_the_start(program: Path) -> None:
    source = '"""Doc."""\nfrom __future__ import annotations\nimport os\n'
    snippet = "torch.backends.cudnn.benchmark = False"
    expected = (
        '"""Doc."""\nfrom __future__ import annotations\nimport torch, gc\n' + snippet + "\nimport os\n"
    )
    assert proving.with_first_lines(source, snippet) == expected
    compile(proving.with_first_lines("", snippet), "a.py", "exec")


@pytest.mark.parametrize("case", ["optimizer-not-fused", "pageable-copy", "many-tiny-kernels"])
def test_a_snippet_of_the_program_s_own_names_needs_a_patch(program: Path, case: str) -> None:
    cannot = tried(program, recorded(case), case, Runs())["cannot"]
    assert "snippet" in cannot.reason
    assert "patch" in cannot.what_to_record


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        ("nothing", "does not apply"),
        (PATCH.format("5").replace("-10", "-11"), "does not apply"),
        (PATCH.format("5").replace("train.py", "../train.py"), "does not apply"),
        (PATCH.format("5").replace("train.py", "other.py"), "does not apply"),
    ],
)
def test_a_patch_that_does_not_apply_is_refused(program: Path, patch: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        tried(program, recorded("launch-gap"), "launch-gap", Runs(), patch=patch)


def test_only_a_program_of_the_given_folders_runs(program: Path, tmp_path_factory: Any) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "train.py").write_text("10\n")
    for command, roots in (
        (("python", str(elsewhere / "train.py")), [program]),
        (("python", "../train.py"), [program]),
        (("python", "-m", "timeit", "print(1)"), [program]),
        (("python", "-m"), [program]),
        (("python", "train.py"), [elsewhere]),
    ):
        with pytest.raises(UsageError, match="working folder"):
            proving.prove(recorded("launch-gap", *command), 0, roots, patch=PATCH.format("5"), launch=Runs())
    here = recorded("launch-gap", "python", "-m", "train")
    assert proving._module(program, "train") == "train"
    with pytest.raises(UsageError, match="does not apply"):
        proving.prove(here, 0, [program], patch="nothing", launch=Runs())
    found = proving.prove(recorded("launch-gap", "torchrun", "train.py"), 0, [program], launch=Runs())
    assert found.cannot_answer is not None
