"""The public API gives what the command line gives, as frames, structs and files."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from msgspec import structs, to_builtins

import kinetoscope
from command import RECORDING, ROOT
from kinetoscope.cli import main
from kinetoscope.document import KernelRow, Report

COMPILE_LOG = ROOT / "tests" / "fixtures" / "h200_breaks" / "breaks.log.gz"
TABLES = ("kernels", "ops", "steps", "devices", "idle")


@pytest.fixture(scope="module")
def run() -> kinetoscope.Run:
    return kinetoscope.load(RECORDING)


@pytest.fixture(scope="module")
def without_events() -> kinetoscope.Run:
    return kinetoscope.load(COMPILE_LOG)


def test_a_run_says_in_a_line_what_it_holds(run: kinetoscope.Run, without_events: kinetoscope.Run) -> None:
    assert repr(run) == f"<Run of {RECORDING}: 1 trace, 6,769 events, 2 steps, NVIDIA H200>"
    assert repr(without_events) == f"<Run of {COMPILE_LOG}: 1 trace, 0 events, 0 steps, compile log>"


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_the_reports(run: kinetoscope.Run, name: str) -> None:
    table = getattr(run, name)()
    assert table.to_dicts() == to_builtins(getattr(run.report(), name))
    assert len(table)


@pytest.mark.parametrize("name", TABLES)
def test_tables_without_rows_have_the_same_columns(
    run: kinetoscope.Run, without_events: kinetoscope.Run, name: str
) -> None:
    assert getattr(without_events, name)().schema == getattr(run, name)().schema
    assert getattr(without_events, name)().is_empty()


def test_every_list_of_rows_in_the_report_is_a_table(run: kinetoscope.Run) -> None:
    lists = {name for name, value in structs.asdict(run.report()).items() if isinstance(value, list)}
    for name in lists - {"unread"}:
        assert len(run.table(name)) == len(getattr(run.report(), name))
    with pytest.raises(kinetoscope.UsageError, match="no table 'unread'") as refused:
        run.table("unread")
    assert "launching" in str(refused.value)


def test_kernels_are_summed_by_whatever_they_belong_to(run: kinetoscope.Run) -> None:
    total = run.kernels()["device_time_us"].sum()
    for by in ("category", "op", "graph", "step", "phase", "stream", "annotation", "module"):
        assert run.kernels(by)["device_time_us"].sum() == pytest.approx(total)
    matmuls = run.kernels(category="matmul")
    assert matmuls.columns == [field.name for field in structs.fields(KernelRow)]
    assert set(matmuls["category"]) == {"matmul"}
    assert run.kernels("op", "matmul")["device_time_us"].sum() == pytest.approx(
        matmuls["device_time_us"].sum()
    )
    with pytest.raises(kinetoscope.UsageError):
        run.kernels("colour")
    with pytest.raises(kinetoscope.UsageError):
        run.kernels(category="colour")


def test_findings_are_the_reports(run: kinetoscope.Run) -> None:
    assert run.findings() == run.report().findings
    with pytest.raises(kinetoscope.InputError):  # a trace does not know the step without the profiler
        run.findings(after=run)


def test_graphs_need_a_compile_log(run: kinetoscope.Run) -> None:
    assert run.graphs() is None
    assert len(run.table("graphs")) == 2
    both = kinetoscope.load(COMPILE_LOG, COMPILE_LOG.with_name("breaks.json.gz")).graphs()
    alone = kinetoscope.load(COMPILE_LOG).graphs()
    assert both is not None
    assert alone is not None
    assert len(both.graphs) == len(alone.graphs)
    assert any(graph.device_time_us for graph in both.graphs)


def test_a_query_answers_with_a_table_and_refuses_what_is_wrong(run: kinetoscope.Run) -> None:
    counted = run.query("SELECT COUNT(*) AS n FROM device_events")
    assert counted.equals(pl.DataFrame({"n": [len(run.traces[0].device_events)]}, {"n": pl.UInt32}))
    with pytest.raises(kinetoscope.UsageError):
        run.query("SELECT nothing FROM nowhere")


@pytest.mark.parametrize(
    ("method", "suffix"), [("to_html", ".html"), ("to_json", ".json"), ("to_markdown", ".md")]
)
def test_files_are_what_the_command_writes(
    run: kinetoscope.Run, tmp_path: Path, method: str, suffix: str
) -> None:
    assert main(["report", str(RECORDING), "-o", str(tmp_path / f"command{suffix}")]) == 0
    written = getattr(run, method)(tmp_path / "page")  # the method says the format, not the name
    assert written == tmp_path / "page"
    assert written.read_bytes() == (tmp_path / f"command{suffix}").read_bytes()


def test_the_terminals_report(run: kinetoscope.Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.show()
    shown = capsys.readouterr().out
    assert main(["report", str(RECORDING)]) == 0
    assert shown == capsys.readouterr().out


def test_an_input_is_never_overwritten(tmp_path: Path) -> None:
    copy = tmp_path / "trace.json.gz"
    copy.write_bytes(RECORDING.read_bytes())
    with pytest.raises(kinetoscope.UsageError, match="overwrite"):
        kinetoscope.load(copy).to_json(copy)


def test_what_cannot_be_loaded_says_why() -> None:
    with pytest.raises(kinetoscope.UsageError, match="nothing to load"):
        kinetoscope.load()
    with pytest.raises(kinetoscope.InputError) as refused:
        kinetoscope.load("nowhere.json")
    assert isinstance(refused.value, kinetoscope.KinetoscopeError)
    assert "nowhere.json" in str(refused.value)


def test_a_recording_is_read_when_it_has_ended() -> None:
    with pytest.raises(kinetoscope.UsageError, match="not ended"):
        _ = kinetoscope.profile().run


def test_the_report_is_made_once(run: kinetoscope.Run) -> None:
    report = run.report()
    assert isinstance(report, Report)
    assert run.report() is report
