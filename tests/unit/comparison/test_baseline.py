"""A baseline is believed only where it is one, and of the device that is checked."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from kinetoscope import cli
from kinetoscope.comparison import baseline as baselines
from kinetoscope.comparison.account import account
from kinetoscope.comparison.gates import parse
from kinetoscope.comparison.limits import amount
from kinetoscope.errors import InputError, UsageError
from kinetoscope.recording.manifest import Environment, Manifest
from kinetoscope.sources.run import LoadedRun, load
from traces import Event, call, host, kernel, step, trace

TRACE = Path(__file__).parents[2] / "fixtures" / "h200_breaks" / "breaks.json.gz"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("baseline") / "baseline.json"
    assert cli.main(["check", str(TRACE), "--against", str(path), "--update"]) == 0
    return json.loads(path.read_text())


def checked(document: Any, folder: Path, *words: str) -> int:
    path = folder / "baseline.json"
    path.write_text(json.dumps(document))
    return cli.main(["check", str(TRACE), "--against", str(path), *words])


def test_a_baseline_of_the_same_run_passes(kept: dict[str, Any], tmp_path: Path) -> None:
    assert checked(kept, tmp_path) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "kinetoscope.baseline/2"},
        {"schema": "kinetoscope.report/1"},
        {"schema": None},
        {"counts": {}, "steps_us": [], "step_basis": None},
        {"counts": {"lunches": 3}},
        {"counts": {"launches": -1}},
        {"counts": {"launches": "many"}},
        {"steps_us": [0.0, 0.0]},
        {"steps_us": [-1.0, 2.0]},
        {"steps_us": [1e300, 1e-300]},
        {"steps_us": [1e-300, 1e-300]},
        {"step_basis": "by hand"},
        {"step_basis": None},
        {"kernels": {"k": -1}},
    ],
)
def test_what_is_no_baseline_is_refused(
    change: dict[str, Any], kept: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked({**kept, **change}, tmp_path) == 3
    said = capsys.readouterr().err
    assert "fault" not in said
    assert "--update" in said


def test_none_is_made_that_would_be_refused(tmp_path: Path) -> None:
    snapshot, path = tmp_path / "empty.pickle", tmp_path / "baseline.json"
    snapshot.write_bytes(pickle.dumps({"segments": [], "device_traces": [[]], "allocator_settings": {}}))
    assert cli.main(["check", str(snapshot), "--against", str(path), "--update"]) == 3
    assert not path.exists()


def test_one_without_a_schema_is_refused(kept: dict[str, Any], tmp_path: Path) -> None:
    assert checked({name: value for name, value in kept.items() if name != "schema"}, tmp_path) == 3
    assert checked({"counts": {}}, tmp_path) == 3


@pytest.mark.parametrize(
    "text", ['{"schema": "kinetoscope.baseline/1", "counts": {"launches": NaN}}', "[]", ""]
)
def test_what_is_no_json_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "baseline.json").write_text(text)
    with pytest.raises(InputError):
        baselines.read(tmp_path / "baseline.json")


def test_a_baseline_of_another_device_cannot_be_judged(
    kept: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked({**kept, "devices": ["NVIDIA A100"]}, tmp_path) == 1
    said = capsys.readouterr().out
    assert "NVIDIA A100" in said
    assert "passed" not in said


def test_a_baseline_of_another_program_cannot_be_judged(kept: dict[str, Any]) -> None:
    base, now = (msgspec.convert({**kept, "program": name}, baselines.Baseline) for name in ("a.py", "b.py"))
    assert baselines._unlike(base, now) == ("the baseline is of another program (a.py; here b.py)",)
    assert baselines._unlike(base, base) == ()


def test_faster_never_fails_by_default_but_fails_a_gate_that_was_asked_for(
    kept: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fewer = {**kept["counts"], "launches": kept["counts"]["launches"] - 3}
    slower = {name: [10 * us for us in kept[name]] for name in ("steps_us", "device_us")}
    slower |= {name: 10 * kept[name] for name in ("step_us", "busy_us")}
    assert checked({**kept, "counts": fewer}, tmp_path) == 1
    capsys.readouterr()
    assert checked({**kept, "counts": fewer, **slower}, tmp_path) == 0
    said = capsys.readouterr().out.splitlines()
    assert "step_time > 5%: step:" in said[0]  # the step stands first
    assert any("launches > 0" in line and "it may, since the step is faster" in line for line in said)
    asked = {**kept, "counts": fewer, **slower}
    assert checked(asked, tmp_path, "--fail-on", "launches > 0") == 1


def test_the_culprit_is_of_what_is_counted(
    kept: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compiled kernels and copies are new: launches are blamed on the first, copies on the second."""
    counts = {**kept["counts"], "launches": 0, "syncs": 0, "copies": 0, "copied_bytes": 0}
    assert checked({**kept, "counts": counts, "kernels": {}}, tmp_path, "--json") == 1
    gates = {gate["name"]: gate for gate in json.loads(capsys.readouterr().out)["gates"]}
    assert gates["launches"]["culprit"]
    for name in ("copies", "copied_bytes"):
        assert gates[name]["culprit"] == "" or gates[name]["culprit"].startswith("Memcpy")
    assert all(gates[name]["culprit"] == "" for name in ("syncs", "peak_memory") if name in gates)


def test_times_of_another_kind_cannot_be_judged(
    kept: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gate that was asked for fails; unasked, times are left out, and it says so."""
    other = {**kept, "step_basis": "as it runs"}
    assert checked(other, tmp_path, "--json", "--fail-on", "step_time > 5%") == 1
    assert json.loads(capsys.readouterr().out)["failed"] == ["step_time > 5%"]
    assert checked(other, tmp_path) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "not judged: the baseline's steps were timed as it runs" in said
    assert said.startswith("– step_time > 5%: step: 210 µs → 210 µs"), "in every answer, and not as passed"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"load": 9.0, "cores": 2}, "the machine was busy when the baseline was recorded"),
        ({"cpu": "another"}, "another processor"),
        ({"variables": {"NVIDIA_TF32_OVERRIDE": "0"}}, "NVIDIA_TF32_OVERRIDE is '0' and not set"),
        ({"torch": "1.0"}, "another torch"),
        ({"command": ["train.py", "--batch", "8"]}, "another command"),
    ],
)
def test_times_of_another_machine_are_not_judged(
    change: dict[str, Any], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = load(TRACE)
    environment = Environment(cpu="this", cpu_count=2, torch="2.11", load_average=0.5)
    run = replace(run, manifest=Manifest(command=("train.py", "--batch", "4"), environment=environment))
    kept = baselines.of(run)
    assert not [row for row in baselines.checked(run, kept, []) if not row.known]
    rows = baselines.checked(run, msgspec.structs.replace(kept, **change), [])
    times = [row for row in rows if row.name in ("step_time", "device_time")]
    assert [row.failed for row in times] == [False, False]
    assert all(why in row.words for row in times)


def test_a_count_that_grew_says_which_environment_variables_differ() -> None:
    run = load(TRACE)
    run = replace(run, manifest=Manifest(command=("train.py",), environment=Environment()))
    kept = baselines.of(run)
    kept = msgspec.structs.replace(
        kept, counts={**kept.counts, "launches": 0.0}, variables={"CUDA_LAUNCH_BLOCKING": "1"}
    )
    (grown,) = (row for row in baselines.checked(run, kept, []) if row.failed)
    assert "(CUDA_LAUNCH_BLOCKING is '1' and not set)" in grown.words


def test_the_step_is_in_every_answer(
    kept: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked(kept, tmp_path, "--fail-on", "launches > 0") == 0
    assert "step: 210 µs → 210 µs" in capsys.readouterr().out


def test_what_was_meant_is_kept_by_updating(
    kept: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = {**kept["counts"], "launches": 0}
    assert checked({**kept, "counts": counts}, tmp_path) == 1
    assert "--update" in capsys.readouterr().out


def test_a_count_that_the_baseline_lacks_cannot_be_judged(kept: dict[str, Any], tmp_path: Path) -> None:
    fewer = {name: count for name, count in kept["counts"].items() if name != "launches"}
    assert checked({**kept, "counts": fewer}, tmp_path) == 1
    assert checked({**kept, "steps_us": [], "step_basis": None}, tmp_path) == 1


def test_pipes_and_devices_are_no_baseline(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(InputError):
            baselines.read(path)
    with (tmp_path / "large").open("wb") as large:
        large.truncate(baselines.MOST + 1)
    with pytest.raises(InputError, match="larger"):
        baselines.read(tmp_path / "large")


@pytest.mark.parametrize(
    "text", ["launches > ...", "launches > 1.2.3", "launches > " + "9" * 400, "launches > ."]
)
def test_malformed_numbers_of_gates_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no gate"):
        parse(text)
    with pytest.raises(UsageError):
        amount("max_launches", text.removeprefix("launches > "))


@pytest.mark.parametrize(
    ("text", "limit"), [("launches > 1.", 1.0), ("launches >= .5", 0.5), ("ops > 12.25", 12.25)]
)
def test_numbers_have_a_point(text: str, limit: float) -> None:
    assert parse(text).limit == limit


def test_of_a_baseline_that_was_cut_nothing_unkept_counts_as_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of parts that are not among the largest there were as many as of the smallest kept, at most."""
    monkeypatch.setattr(baselines, "KEPT_PARTS", 2)

    def ops(**calls: int) -> LoadedRun:
        names = [f"aten::{name}" for name, count in calls.items() for _ in range(count)]
        events = [host(name, 1000 + 10 * place, 5) for place, name in enumerate(names)]
        return LoadedRun((trace(step(0, 990, 500), *events),))

    kept = baselines.of(ops(mm=9, add=5, sin=4))
    judged = baselines.checked(ops(mm=9, add=7, sin=5), kept, [parse("ops > 0")])
    assert [one.culprit for one in judged if one.name == "ops"] == ["aten::add, 5 → 7 per step"]


def test_the_culprit_of_a_time_is_what_takes_longer() -> None:
    """A kernel that is slower at as many launches, beside another that is launched more often in less."""

    def of(slow_us: float, memsets: int) -> LoadedRun:
        events: list[Event] = []
        for number in range(6):
            at = 1000.0 * number
            names = ["gemm", *["memset"] * memsets]
            events += [step(number, at, 1000), host("aten::mm", at + 1, 90)]
            for place, name in enumerate(names):
                correlation = 10 * (number + 1) + place
                events.append(call("cudaLaunchKernel", at + 2 + 3 * place, 2, correlation))
                begins = at + 100 + (slow_us + 2 * place if place else 0)
                events.append(kernel(name, begins, 1 if place else slow_us, correlation))
        return LoadedRun((trace(*events),))

    kept = baselines.of(of(200, 1))
    assert kept.by["step_time"]["gemm"] == 200
    gates = [parse("device_time > 5%"), parse("launches > 0")]
    judged = {one.name: one for one in baselines.checked(of(500, 4), kept, gates)}
    assert judged["device_time"].culprit == "gemm, 200 µs → 500 µs per step"
    assert judged["launches"].culprit.startswith("memset, 1 → 4 per step")
    older = msgspec.structs.replace(kept, by={})  # written before times were kept by part
    judged = {one.name: one for one in baselines.checked(of(500, 4), older, gates)}
    assert judged["device_time"].culprit.startswith("memset, 1 → 4 per step")


def test_the_step_is_the_one_that_a_report_shows() -> None:
    """The median of all steps: 100 µs in 13, 130 µs in 12, of which no twelve medians have the same one."""

    def of(*lengths: int) -> LoadedRun:
        begins = [1000 + sum(lengths[:place]) for place in range(len(lengths))]
        events = [step(place, at, us) for place, (at, us) in enumerate(zip(begins, lengths, strict=True))]
        return LoadedRun((trace(*events, *(host("aten::mm", at + 1, 5) for at in begins)),))

    one = of(*[100] * 13, *[130] * 12)
    own = account(one)
    assert own is not None
    assert own.step_us == 100
    (timed,) = (row for row in baselines.checked(one, baselines.of(one), []) if row.name == "step_time")
    assert timed.words.startswith("step: 100 µs → 100 µs, +0 %")
    older = msgspec.structs.replace(baselines.of(one), step_us=None)  # written before it was kept
    assert any(row.words.startswith("step: 1") for row in baselines.checked(one, older, []))


def test_of_a_busy_machine_it_is_said_that_its_time_is_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def update(load_average: float) -> str:
        environment = Environment(cpu_count=2, load_average=load_average)
        busy = replace(load(TRACE), manifest=Manifest(environment=environment))
        monkeypatch.setattr("kinetoscope.progress.load_shown", lambda _: busy)
        assert cli.main(["check", str(TRACE), "--against", str(tmp_path / "b.json"), "--update"]) == 0
        return capsys.readouterr().err

    said = "the machine was busy when the baseline was recorded: a load of 9.0 on 2 cores"
    assert said in update(9.0)
    assert "the machine" not in update(0.5)


def test_a_folder_that_is_missing_is_of_the_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "perf" / "b.json"
    assert cli.main(["check", str(TRACE), "--against", str(path), "--update"]) == 2
    assert f"where: --against {path}" in capsys.readouterr().err


def test_without_a_device_nothing_is_said_of_one() -> None:
    run = LoadedRun((trace(step(0, 990, 500), host("aten::mm", 1000, 5)),))
    names = {one.name for one in baselines.checked(run, baselines.of(run), [])}
    assert names == {"step_time", "ops"}
