"""Nothing passes on what was lost: gates, baselines and histories of recordings that were cut."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from kinetoscope import cli
from kinetoscope.analysis.health.verdict import health, losses
from kinetoscope.document.collect.report import build
from kinetoscope.recording import manifest as manifests
from kinetoscope.sources.run import load

FIXTURES = Path(__file__).parents[2] / "fixtures"
WHOLE = FIXTURES / "h200_breaks" / "breaks.json.gz"
LOG = FIXTURES / "h200_breaks" / "breaks.log.gz"
COUNTED = ("--fail-on", "launches > 0", "--fail-on", "step_time > 5%")


def cut(folder: Path, part: float, name: str = "cut.json") -> str:
    whole = gzip.decompress(WHOLE.read_bytes())
    path = folder / name
    path.write_bytes(whole[: int(len(whole) * part)])
    return str(path)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.95])
def test_check_fails_on_what_was_cut(part: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    baseline = str(tmp_path / "baseline.json")
    assert cli.main(["check", str(WHOLE), "--against", baseline, "--update"]) == 0
    assert cli.main(["check", str(WHOLE), "--against", baseline]) == 0
    capsys.readouterr()
    assert cli.main(["check", cut(tmp_path, part), "--against", baseline]) == 1
    said = capsys.readouterr().out
    assert "cannot be judged" in said
    assert "the file ends before its list of events does" in " ".join(said.split())
    assert cli.main(["check", cut(tmp_path, part), "--against", baseline, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["failed"]


def test_no_baseline_is_made_of_what_was_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    baseline = tmp_path / "baseline.json"
    assert cli.main(["check", cut(tmp_path, 0.1), "--against", str(baseline), "--update"]) == 3
    assert not baseline.exists()
    assert "incomplete" in capsys.readouterr().err


@pytest.mark.parametrize("which", ["base", "new"])
def test_gates_of_diff_fail_on_what_was_cut(which: str, tmp_path: Path) -> None:
    sides = [str(WHOLE), cut(tmp_path, 0.1)]
    assert cli.main(["diff", *(sides if which == "new" else sides[::-1]), *COUNTED]) == 1
    assert cli.main(["diff", str(WHOLE), str(WHOLE), *COUNTED]) == 0


@pytest.mark.parametrize("suffix", ["txt", "md", "html", "json"])
def test_the_damage_stands_first(suffix: str, tmp_path: Path) -> None:
    output = tmp_path / f"difference.{suffix}"
    assert cli.main(["diff", str(WHOLE), cut(tmp_path, 0.5), "-o", str(output)]) == 0
    text = output.read_text()
    if suffix == "json":
        document = json.loads(text)
        assert document["comparability"] == "none"
        assert "the file ends before its list of events does" in document["lost"][0]
        assert document["why"][0] == document["lost"][0]
        return
    shown = " ".join(text.partition("</style>")[2].split() if suffix == "html" else text.split())
    damage, first_time = shown.find("is incomplete"), re.search("[0-9] (µs|ms)", shown)
    assert damage >= 0
    assert first_time is None or damage < first_time.start()
    assert "✓ comparable" not in shown


def test_how_much_is_left_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", str(WHOLE), cut(tmp_path, 0.5), "--json"]) == 0
    lost = json.loads(capsys.readouterr().out)["lost"]
    assert len(lost) == 1
    assert "% as many events as the base" in lost[0]


def test_a_cut_trace_without_device_work_is_unreliable(tmp_path: Path) -> None:
    run = load(cut(tmp_path, 0.1))
    assert not len(run.traces[0].device_events)
    assert health(run).verdict == "unreliable"
    assert "0.0%" not in " ".join(losses(run))
    assert losses(load(WHOLE)) == ()


@pytest.mark.parametrize("number", range(10))
def test_what_is_left_of_the_device_work_is_replayed(number: int, tmp_path: Path) -> None:
    """Cut before each event of the device: the steps that are replayed may have none of what is left."""
    whole = gzip.decompress((FIXTURES / "h200" / "mm_4096_warm_eager.json.gz").read_bytes())
    kernels = [found.start() for found in re.finditer(rb'"cat": "(kernel|gpu_mem)', whole)]
    path = tmp_path / "cut.json"
    path.write_bytes(whole[: kernels[number]])
    run = load(path)
    assert losses(run)
    assert all(row.saving_us >= 0 for row in build(run).findings)


def test_history_marks_what_was_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "a.json.gz").write_bytes(WHOLE.read_bytes())
    cut(folder, 0.5, "b.json")
    assert cli.main(["history", str(folder), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [bool(row["lost"]) for row in rows] == [False, True]
    assert cli.main(["history", str(folder)]) == 0
    assert "b.json is incomplete" in " ".join(capsys.readouterr().out.split())


def test_a_cut_compile_log_passes_no_gate(tmp_path: Path) -> None:
    whole = gzip.decompress(LOG.read_bytes())
    path = tmp_path / "rank0.log"
    path.write_bytes(whole[: len(whole) // 2])
    gate = ("--fail-on", "graph_breaks > 0")
    assert cli.main(["diff", str(LOG), str(path), *gate]) == 1
    assert cli.main(["diff", str(LOG), str(LOG), *gate]) == 0


def test_a_lost_rank_passes_no_gate(tmp_path: Path) -> None:
    for name, damaged in (("whole", False), ("less", True)):
        folder = tmp_path / name
        folder.mkdir()
        ranks = [{"rank": rank, "trace": f"rank{rank}.json.gz"} for rank in (0, 1)]
        manifest = {"schema": manifests.SCHEMA, "exit": "ok", "status": 0, "ranks": ranks}
        (folder / manifests.FILE).write_text(json.dumps(manifest))
        (folder / "rank0.json.gz").write_bytes(WHOLE.read_bytes())
        (folder / "rank1.json.gz").write_bytes(b"\x1f\x8b\x08" if damaged else WHOLE.read_bytes())
    assert cli.main(["diff", str(tmp_path / "whole"), str(tmp_path / "less"), *COUNTED]) == 1
