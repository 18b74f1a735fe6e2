"""What was measured of a finding's saving: which results count, what they say, and where it is shown."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clockwork import measured
from command import ROOT, SMALL, kinetoscope, refused
from kinetoscope.bench.autotune.configurations import TriedConfiguration, Tuned
from kinetoscope.bench.kept import read
from kinetoscope.bench.kernels.replay import ModuleResult
from kinetoscope.bench.measure import results
from kinetoscope.bench.request import BenchResult
from kinetoscope.bench.tune.results import SettingRow, Tuning
from kinetoscope.bench.tune.settings import Setting
from kinetoscope.findings.model import Proof
from kinetoscope.proof import measured as proof
from kinetoscope.recording import manifest
from kinetoscope.recording.manifest import Manifest, RankRecord
from kinetoscope.views import findings
from report_sample import report

WORDS = ("train.py", "--batch", "64")
EAGER, FIX = Setting(), Setting(mode="reduce-overhead")
TRIED = Proof("", mode="reduce-overhead")


def row(setting: Setting, *rounds: float, **changes: Any) -> SettingRow:
    made = SettingRow(
        setting=setting, label=setting.label, step_s=sorted(rounds)[len(rounds) // 2], rounds_s=rounds
    )
    return msgspec.structs.replace(made, **changes)


def tuning(*rows: SettingRow, command: tuple[str, ...] = WORDS, device: str = "NVIDIA H200") -> Tuning:
    return Tuning(command=command, device=device, rounds=3, rows=rows)


WRITTEN = row(EAGER, 0.0100, 0.0101, 0.0099, as_written=True)


def test_a_setting_is_measured_against_the_program_as_written() -> None:
    other = row(Setting(mode="default"), 0.005, 0.005, 0.005)
    found = proof.by_tune(tuning(WRITTEN, other, row(FIX, 0.0080, 0.0081, 0.0079)), TRIED, WORDS)
    assert found is not None
    assert found.saving_us == pytest.approx(2000)
    assert found.interval_us is not None
    low, high = found.interval_us
    assert 1900 < low < 2000 < high < 2100
    assert found.verdict == "faster"
    assert "10.0 ms per step as written (eager), 8.00 ms under reduce-overhead, 3 rounds" in found.basis


def test_a_program_that_compiles_is_not_compared_with_eager() -> None:
    compiled = row(Setting(mode="default"), 0.0060, 0.0061, 0.0059, as_written=True)
    eager = row(EAGER, 0.0100, 0.0101, 0.0099)
    found = proof.by_tune(tuning(eager, compiled, row(FIX, 0.0063, 0.0064, 0.0062)), TRIED, WORDS)
    assert found is not None
    assert found.saving_us == pytest.approx(-300)
    assert found.verdict == "slower"


@pytest.mark.parametrize(
    ("command", "batch", "counts"),
    [
        (("./train.py", "--batch", "64"), None, True),
        (("train.py", "--batch", "{batch}"), "64", True),
        (("train.py", "--batch", "{batch}"), "32", False),
        (("train.py", "--batch", "128"), None, False),
        (("-m", "train.py", "--batch", "64"), None, False),
        (("other.py", "--batch", "64"), None, False),
    ],
)
def test_only_the_recorded_program_counts(command: tuple[str, ...], batch: str | None, counts: bool) -> None:
    eager, fix = Setting(batch=batch), Setting(mode="reduce-overhead", batch=batch)
    done = tuning(row(eager, 0.01, 0.01, as_written=True), row(fix, 0.008, 0.008), command=command)
    assert (proof.by_tune(done, TRIED, WORDS) is not None) is counts


@pytest.mark.parametrize(
    "setting",
    [
        Setting(mode="default"),
        Setting(mode="reduce-overhead", dynamic=True),
        Setting(mode="reduce-overhead", matmul_precision="high"),
        Setting(mode="reduce-overhead", backend="aot_eager"),
    ],
)
def test_only_the_advised_setting_counts(setting: Setting) -> None:
    assert proof.by_tune(tuning(WRITTEN, row(setting, 0.008, 0.008, 0.008)), TRIED, WORDS) is None


def test_a_precision_is_measured_with_the_programs_own_compiler() -> None:
    precise = row(Setting(mode="default", matmul_precision="high"), 0.004, 0.0041, 0.0039, as_written=True)
    done = tuning(
        row(EAGER, 0.01, 0.01, 0.01),
        row(Setting(matmul_precision="high"), 0.008, 0.008, 0.008),
        row(Setting(mode="default"), 0.006, 0.006, 0.006, as_written=True),
        precise,
    )
    found = proof.by_tune(done, Proof("", matmul_precision="high"), WORDS)
    assert found is not None
    assert found.saving_us == pytest.approx(2000)


def test_a_setting_that_fails_or_computes_something_else_saves_nothing() -> None:
    failed = SettingRow(setting=FIX, label=FIX.label, error="BackendCompilerFailed")
    found = proof.by_tune(tuning(WRITTEN, failed), TRIED, WORDS)
    assert found is not None
    assert (found.saving_us, found.verdict) == (None, "fails")
    found = proof.by_tune(tuning(WRITTEN, row(FIX, 0.008, 0.008, 0.008, agrees=False)), TRIED, WORDS)
    assert found is not None
    assert found.verdict == "differs"


def test_one_round_tells_nothing() -> None:
    found = proof.by_tune(tuning(row(EAGER, 0.01, as_written=True), row(FIX, 0.008)), TRIED, WORDS)
    assert found is not None
    assert (found.interval_us, found.verdict) == (None, "cannot tell")


def tuned(name: str = "triton_red_0", *, ratio: float = 0.5, launches: int = 2) -> Tuned:
    default, winner = {"XBLOCK": 1}, {"XBLOCK": 8}
    return Tuned(
        name=name,
        module="m",
        launches_per_run=launches,
        trials=(TriedConfiguration(configuration=default, origin="default", median_ns=1.0),),
        default=default,
        winner=winner if ratio < 1 else default,
        final=measured(default=100_000, winner=100_000 * ratio) if ratio < 1 else None,
    )


ASKED = Proof("kinetoscope bench …", kernel="triton_red_0", kernel_us=400.0, launches=4.0)


def bench(*kernels: Tuned, modules: tuple[ModuleResult, ...] = ()) -> BenchResult:
    return BenchResult(device="NVIDIA H200", torch="2.11.0", tuned=kernels, modules=modules)


def test_a_kernels_saving_is_its_time_in_the_step() -> None:
    found = proof.by_bench(bench(tuned()), ASKED)
    assert found is not None
    assert found.saving_us == pytest.approx(200)
    assert found.interval_us == (pytest.approx(200), pytest.approx(200))
    assert found.verdict == "faster"
    assert proof.by_bench(bench(tuned("triton_red_1")), ASKED) is None


def test_a_winner_that_is_not_told_apart_saves_nothing() -> None:
    found = proof.by_bench(bench(tuned(ratio=1.0)), ASKED)
    assert found is not None
    assert (found.saving_us, found.verdict) == (0.0, "cannot tell")
    same = tuned()
    same = msgspec.structs.replace(same, final=measured(default=100_000, winner=100_000))
    found = proof.by_bench(bench(same), ASKED)
    assert found is not None
    assert (found.saving_us, found.verdict) == (0.0, "cannot tell")


def test_the_whole_graphs_replay_counts_more_but_not_with_other_winners() -> None:
    replay = ModuleResult(
        module="m", aot_id="0_backward", wall=measured(as_recorded=10_000_000, applied=9_900_000)
    )
    found = proof.by_bench(bench(tuned(), modules=(replay,)), ASKED)
    assert found is not None
    # 4 launches per step, 2 a run: two runs of 100 µs less each.
    assert found.saving_us == pytest.approx(200)
    assert "whole graph" in found.basis
    both = proof.by_bench(bench(tuned(), tuned("triton_red_1"), modules=(replay,)), ASKED)
    assert both is not None
    assert "whole graph" not in both.basis


def recording(tmp_path: Path, *command: str) -> Path:
    folder = tmp_path / "rec"
    (folder / "trace").mkdir(parents=True)
    shutil.copy(SMALL, folder / "trace" / "rank0.json.gz")
    manifest.write(
        folder,
        Manifest(command=command, ranks=(RankRecord(rank=0, trace="trace/rank0.json.gz"),), exit="ok"),
    )
    return folder


def test_the_newest_result_wins_and_damaged_ones_are_said(tmp_path: Path) -> None:
    results.save(tmp_path, "tune-20260101-000000", tuning(WRITTEN))
    results.save(tmp_path, "tune-20260102-000000", tuning(WRITTEN, device="newer"))
    results.save(tmp_path, "autotune_lookup_table", {"key": {"XBLOCK": 1}})
    results.save(tmp_path, "kernels-20260101-000000", bench())
    (tmp_path / "bench" / "tune-20260103-000000.json").write_text('{"rows": 3}')
    (tmp_path / "bench" / "autotune-20260103-000000.json").write_bytes(b"\xff")
    kept = read(tmp_path)
    assert [found.device for found in kept.tunings] == ["newer", "NVIDIA H200"]
    assert kept.autotuned == ()
    assert len(kept.problems) == 2
    assert all("20260103" in problem for problem in kept.problems)


def test_every_report_shows_predicted_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = recording(tmp_path, "python", *WORDS)
    before = json.loads(kinetoscope("findings", folder, "--json").stdout)
    (finding,) = [f for f in before["findings"] if f["rule"] == "overhead-bound"]
    assert finding["measured_verdict"] is None
    assert f"--out {folder} --modes reduce-overhead -- train.py --batch 64" in finding["proof"]
    # A recording from elsewhere: its program is not here, so the command is no next step.
    assert finding["proof_lacks"] == "train.py"
    assert finding["proof"] not in kinetoscope("report", folder).stdout
    listed = kinetoscope("findings", folder).stdout
    assert finding["proof"] in listed  # whole on its line, however narrow the terminal
    assert "it needs train.py, which is not here" in listed
    Path("train.py").touch()
    assert finding["proof"] in kinetoscope("report", folder).stdout
    assert "which is not here" not in kinetoscope("findings", folder).stdout

    saved = finding["saving_us"] / 2
    after_s = 0.01 - saved / 1e6
    results.save(folder, "tune-20260101-000000", tuning(WRITTEN, row(FIX, after_s, after_s, after_s)))
    (folder / "bench" / "tune-20250101-000000.json").write_text("[")
    done = json.loads(kinetoscope("findings", folder, "--json").stdout)
    (finding,) = [f for f in done["findings"] if f["rule"] == "overhead-bound"]
    assert finding["measured_saving_us"] == pytest.approx(saved)
    assert finding["measured_verdict"] in ("faster", "cannot tell")
    assert finding["measured_interval_us"][0] < saved < finding["measured_interval_us"][1]
    assert "tune on NVIDIA H200" in finding["measured_basis"]
    assert "tune-20250101" in done["unread"][0]
    pages = [kinetoscope("findings", folder).stdout, kinetoscope("report", folder).stdout]
    for suffix in ("md", "txt"):
        target = tmp_path / f"report.{suffix}"
        assert kinetoscope("report", folder, "-o", target).returncode == 0
        pages.append(target.read_text())
    for page in pages:
        assert "easured" in page
        assert "tune-20250101" in page
        assert "--modes reduce-overhead" not in page
    whole = tmp_path / "report.json"
    kinetoscope("report", folder, "-o", whole)
    rows = json.loads(whole.read_text())["findings"]
    assert [r["measured_saving_us"] for r in rows if r["rule"] == "overhead-bound"] == [pytest.approx(saved)]


@pytest.mark.parametrize(("name", "rule"), [("narrow", "overhead-bound"), ("columns", "hotspot")])
def test_what_an_h200_measured(name: str, rule: str, tmp_path: Path) -> None:
    """Recordings whose findings' own commands were run on the GPU, against arithmetic on what those kept."""
    folder = tmp_path / name
    shutil.copytree(ROOT / "tests" / "fixtures" / "h200_proved" / name, folder)
    found = json.loads(kinetoscope("findings", folder, "--json").stdout)["findings"]
    (finding,) = [f for f in found if f["rule"] == rule]
    (kept,) = (folder / "bench").glob("*.json")
    measured = json.loads(kept.read_text())
    if name == "narrow":
        eager, graphs = (sorted(row["rounds_s"])[1] * 1e6 for row in measured["rows"])
        saved = eager - graphs
    else:
        subjects = {s["name"]: s for s in measured["modules"][0]["wall"]["subjects"]}
        saved = (subjects["as recorded"]["median_ns"] - subjects["applied"]["median_ns"]) / 1000
    assert finding["measured_saving_us"] == pytest.approx(saved, rel=1e-6)
    low, high = finding["measured_interval_us"]
    assert low < saved < high
    assert finding["measured_verdict"] == "faster"
    assert finding["proof"].startswith("kinetoscope ")


def test_a_result_from_another_device_proves_nothing(tmp_path: Path) -> None:
    folder = recording(tmp_path, "python", *WORDS)
    done = tuning(WRITTEN, row(FIX, 0.008, 0.008, 0.008), device="NVIDIA L4")
    results.save(folder, "tune-20260101-000000", done)
    found = json.loads(kinetoscope("findings", folder, "--json").stdout)["findings"]
    assert {f["measured_verdict"] for f in found} == {None}


@pytest.mark.parametrize(
    ("verdict", "saving_us", "text"),
    [
        (None, None, ""),
        ("slower", -50.0, "measured a loss of 50.0 µs, slower"),
        ("cannot tell", 0.0, "measured 0 µs, cannot tell"),
        ("differs", 9.0, "measured 9.00 µs, but its output differs"),
        ("fails", None, "measured: it cannot be had"),
    ],
)
def test_a_measurement_in_words(verdict: str | None, saving_us: float | None, text: str) -> None:
    (finding,) = report().findings
    row = msgspec.structs.replace(finding, measured_verdict=verdict, measured_saving_us=saving_us)
    assert findings.measured(row) == text


def test_a_saving_in_words_has_its_interval_and_what_was_predicted() -> None:
    (finding,) = report().findings
    interval = {"measured_saving_us": 10_000.0, "measured_interval_us": (9_000.0, 11_000.0)}
    row = msgspec.structs.replace(finding, measured_verdict="faster", **interval)
    assert findings.measured(row) == "measured 10.0 ms (9.00 ms to 11.0 ms); predicted/measured 1.26"


def test_the_next_command_is_for_what_is_still_unproved() -> None:
    (finding,) = report().findings
    unproved = msgspec.structs.replace(finding, proof="kinetoscope tune -- train.py")
    proved = msgspec.structs.replace(unproved, measured_verdict="faster", measured_saving_us=1.0)
    assert findings.unproved(report()) is None
    assert findings.unproved(report(findings=[proved])) is None
    assert findings.unproved(report(findings=[proved, unproved])) is unproved


def changed(tmp_path: Path, name: str, unprofiled_s: tuple[float, ...], trace: Path) -> Path:
    """A recording whose steps took so long without the profiler."""
    folder = tmp_path / name
    (folder / "trace").mkdir(parents=True)
    shutil.copy(trace, folder / "trace" / "rank0.json.gz")
    steps = manifest.StepTimings(unprofiled_s=unprofiled_s)
    rank = RankRecord(rank=0, trace="trace/rank0.json.gz", steps=steps)
    manifest.write(folder, Manifest(command=("python", "t.py"), ranks=(rank,), exit="ok"))
    return folder


def test_a_second_recording_proves_what_only_an_edit_can_do(tmp_path: Path) -> None:
    case = ROOT / "tests" / "cases" / "low-bandwidth"
    steps = (0.00100, 0.00101, 0.00099, 0.00100)
    before = changed(tmp_path, "before", steps, case / "before.json.gz")
    after = changed(tmp_path, "after", tuple(s - 0.0004 for s in steps), case / "after.json.gz")
    done = kinetoscope("findings", before, "--proof", after)
    assert "gone, which promised" in done.stdout
    assert "measured 400 µs, faster" in done.stdout
    document = json.loads(kinetoscope("findings", before, "--proof", after, "--json").stdout)
    (row,) = [row for row in document["findings"] if row["measured_verdict"]]
    assert row["rule"] == document["after"]["gone"][0][0] == "low-bandwidth"
    assert row["measured_saving_us"] == pytest.approx(400)
    low, high = row["measured_interval_us"]
    # Welch: a standard error of √(2 · 66.7 µs² / 4), three degrees of freedom.
    assert (high - low) / 2 == pytest.approx(3.182 * (2 * 66.667 / 4) ** 0.5, rel=1e-3)
    eager = ROOT / "tests" / "cases" / "eager-remainder"
    several = changed(tmp_path, "several", steps, eager / "before.json.gz")
    without = changed(tmp_path, "without", steps, eager / "after.json.gz")
    document = json.loads(kinetoscope("findings", several, "--proof", without, "--json").stdout)
    assert len(document["after"]["gone"]) > 1
    assert {row["measured_verdict"] for row in document["findings"]} == {None}
    same = kinetoscope("findings", before, "--proof", before)
    assert "No finding is gone" in same.stdout
    assert "cannot tell" in same.stdout


def test_a_recording_without_times_proves_nothing(tmp_path: Path) -> None:
    folder = recording(tmp_path, "python", *WORDS)
    refused(kinetoscope("findings", folder, "--proof", folder), 3, "without the profiler")
