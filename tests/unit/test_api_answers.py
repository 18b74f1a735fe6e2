"""What the library answers beside tables: memory, what-if, check, history, exports, and nothing on stderr."""

from __future__ import annotations

import gzip
import json
import shutil
import warnings
from pathlib import Path

import polars as pl
import pytest
from msgspec import Struct

import kinetoscope
from command import RECORDING, ROOT
from kinetoscope import types
from kinetoscope.cli import main

FIXTURES = ROOT / "tests" / "fixtures"


@pytest.fixture(scope="module")
def run() -> kinetoscope.Run:
    return kinetoscope.load(RECORDING)


@pytest.mark.parametrize("form", ["html", "json", "markdown"])
def test_a_page_without_a_path_is_text(run: kinetoscope.Run, tmp_path: Path, form: str) -> None:
    write = getattr(run, f"to_{form}")
    assert write() == write(tmp_path / "page").read_text("utf-8")


def test_what_if_is_the_commands(run: kinetoscope.Run, capsys: pytest.CaptureFixture[str]) -> None:
    found = run.whatif(kernel={"*gemm*": 0.5}, host=0.7)
    assert main(["whatif", str(RECORDING), "--kernel", "*gemm*=0.5", "--host", "0.7", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert found is not None
    assert found.after_us == shown["after_us"]
    assert [change.text for change in found.changes] == [row["text"] for row in shown["changes"]]
    with pytest.raises(kinetoscope.InputError, match="no kernel fits"):
        run.whatif(kernel={"nothing": 0.5})


def test_memory_is_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    path = FIXTURES / "h200_memory" / "full.pickle.gz"
    found = kinetoscope.load(path).memory()
    assert isinstance(found, types.MemoryPeaks)
    assert main(["memory", str(path), "--json"]) == 0
    assert len(found.peaks) == len(json.loads(capsys.readouterr().out)["peaks"]) > 0


def test_chains_end_in_the_kernel_that_is_named(run: kinetoscope.Run) -> None:
    name = run.kernels()["name"][0]
    (chain, *_) = run.chains(name).chains
    assert chain.links[-1].name == name


def test_a_run_is_checked_against_a_baseline(run: kinetoscope.Run, tmp_path: Path) -> None:
    kept = run.to_baseline(tmp_path / "baseline.json")
    assert not any(row.failed for row in run.check(kept))
    eager = kinetoscope.load(FIXTURES / "h200" / "mm_64_warm_eager.json.gz")
    rows = run.check(eager.to_baseline(kept), fail_on=["launches > 0"])
    assert [(row.name, row.failed) for row in rows] == [("step_time", False), ("launches", True)]
    with pytest.raises(kinetoscope.InputError, match="cannot read the baseline"):
        run.check(tmp_path / "none.json")


def test_exports_are_what_the_command_writes(run: kinetoscope.Run, tmp_path: Path) -> None:
    assert main(["export", str(RECORDING), "--to", "perfetto", "-o", str(tmp_path / "command.pftrace")]) == 0
    written = run.export(tmp_path / "trace.pftrace", "perfetto")
    assert written.read_bytes() == (tmp_path / "command.pftrace").read_bytes()
    stacks = run.export(tmp_path / "stacks.json.gz", "speedscope")
    assert "profiles" in json.loads(gzip.decompress(stacks.read_bytes()))
    tables = run.export(tmp_path / "tables", "parquet")
    assert len(pl.read_parquet(tables / "device_events.parquet")) == len(run.traces[0].device_events)


def test_history_is_in_order_of_time() -> None:
    found = kinetoscope.history(FIXTURES / "h200_proved")
    assert isinstance(found, types.History)
    assert len(found.rows) == 2
    with pytest.raises(kinetoscope.InputError, match="no folder"):
        kinetoscope.history(RECORDING)


def test_a_library_warns_and_writes_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whole, cut = (tmp_path / name for name in ("whole.json.gz", "cut.json"))
    shutil.copy(RECORDING, whole)
    cut.write_bytes(gzip.decompress(whole.read_bytes())[:-200_000])
    with pytest.warns(UserWarning, match="cut.json is incomplete"):
        difference = kinetoscope.diff(whole, cut)
    assert isinstance(difference, types.Difference)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kinetoscope.load(cut).remarks
        kinetoscope.diff(whole, whole)
    assert capfd.readouterr() == ("", "")


def test_what_is_returned_has_a_type_to_annotate_with(run: kinetoscope.Run) -> None:
    assert {type(row) for row in run.findings()} == {types.FindingRow}
    assert isinstance(run.report(), types.Report)
    assert issubclass(types.History, Struct)
    assert issubclass(types.MemoryPeaks, Struct)
