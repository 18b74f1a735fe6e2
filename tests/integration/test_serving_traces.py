"""Public traces of vLLM and SGLang, in the folders that their engines leave: one decode step each."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from kinetoscope.analysis.health.verdict import health
from kinetoscope.analysis.origins.attribution import belonging
from kinetoscope.analysis.serving.parts import parted
from kinetoscope.analysis.serving.table import replays, serving
from kinetoscope.findings.registry import find
from kinetoscope.sources.run import LoadedRun, load
from kinetoscope.trace.model import Trace
from serving_by_hand import figures
from serving_traces import repeated
from traces import Event, trace

# By brute force on the raw events, work counted with the step that launched it (the data's README).
TRUTH = {"vllm_decode_full": (10743.2, 10717.7, 434, 421), "sglang_decode": (10366.9, 9694.0, 551, 544)}


@pytest.fixture
def engines(shared_data: Path) -> Path:
    folder = shared_data / "serving"
    if not folder.is_dir():
        pytest.skip("the traces of serving engines are not here")
    return folder


@pytest.mark.parametrize("name", TRUTH)
def test_the_step_is_its_own_work(engines: Path, name: str) -> None:
    span_us, busy_us, kernels, inside = TRUTH[name]
    run = load(engines / name)
    found = serving(run)
    assert found is not None
    (row,) = found.steps
    assert row.span_us == pytest.approx(span_us, abs=0.1)
    assert row.busy_us == pytest.approx(busy_us, abs=0.1)
    assert (row.kernels, row.phase, row.requests, row.graph_mode) == (kernels, "decode", 32, "full")
    assert sum(part.launches for part in row.exposed) == kernels
    assert sum(part.device_us for part in row.exposed) >= row.busy_us - 0.1
    joined = replays(run)
    assert joined is not None
    assert (joined.captured, joined.replayed, joined.verified, joined.by) == (
        inside, inside, inside, "order",
    )  # fmt: skip


@pytest.mark.parametrize("name", TRUTH)
def test_no_work_is_the_annotations(engines: Path, name: str) -> None:
    table = belonging(load(engines / name))
    for column in ("op_name", "annotation"):
        assert not table[column].cast(str).str.contains(r"^(execute_|step\[)").any()
    unnamed = table.filter(table["module"].cast(str) == "no module")["duration_ns"].sum()
    assert unnamed < 0.5 * table["duration_ns"].sum()


@pytest.mark.parametrize("name", TRUTH)
def test_a_trace_alone_is_joined_with_the_captures_next_to_it(engines: Path, name: str) -> None:
    (file,) = (engines / name).glob("*.json.gz")
    joined = replays(load(file))
    assert joined is not None
    assert joined.verified == joined.replayed == TRUTH[name][3]


@pytest.mark.parametrize("name", TRUTH)
def test_a_recording_of_captures_claims_nothing(engines: Path, name: str) -> None:
    (file,) = (engines / name / "capture_traces").glob("*.json.gz")
    run = load(file)
    found = health(run)
    assert (found.verdict, found.notes[0].code) == ("unreliable", "capture")
    assert find(run) == []


def test_a_front_end_is_left_out_with_a_word(engines: Path, tmp_path: Path) -> None:
    (worker,) = (engines / "sglang_decode").glob("*.json.gz")
    shutil.copy(worker, tmp_path / "rank0.json.gz")
    shutil.copy(worker, tmp_path / "host_1.async_llm.123.pt.trace.json.gz")
    run = load(tmp_path)
    assert [Path(trace.source.path).name for trace in run.traces] == ["rank0.json.gz"]
    assert any("front end" in sentence for sentence in run.unread)


def parts_by_event(run: Trace) -> Callable[[Event], str]:
    """What each event of a file is for, as the table says it: only its times are computed again here."""
    table = parted(run)
    known = {
        (start, name): part
        for start, name, part in table.select("start_ns", pl.col("name").cast(pl.String), "part").iter_rows()
    }
    return lambda one: known[round(1000 * one["ts"]), one["name"]]


@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize(
    ("name", "apart_us", "mark"),
    [("vllm_decode_full", 20_000.0, r"execute_"), ("sglang_decode", 600_000.0, r"step\[")],
)
def test_rows_are_what_the_raw_events_say(
    engines: Path, name: str, apart_us: float, mark: str, times: int
) -> None:
    (file,) = (engines / name).glob("*.json.gz")
    events = repeated(file, times, apart_us)
    run = trace(*events)
    found = serving(LoadedRun((run,)))
    assert found is not None
    (row,) = found.steps
    truth = figures(events, parts_by_event(run), re.compile(mark))
    assert row.n == times
    assert (row.kernels, row.launches) == (truth.kernels, truth.launches)
    assert row.span_us == pytest.approx(truth.span_us, abs=0.1)
    assert row.busy_us == pytest.approx(truth.busy_us, abs=0.1)
    assert row.exposed_idle_us == pytest.approx(truth.idle_us, abs=0.1)
    assert {one.category: one.us for one in row.exposed} == pytest.approx(truth.exposed, abs=0.1)
    period = row.period_us.median if row.period_us else None
    assert period == (truth.period_us and pytest.approx(truth.period_us, abs=0.1))
    assert row.between_us == (truth.between_us and pytest.approx(truth.between_us, abs=0.1))
    assert row.tokens_per_s == pytest.approx(32e6 / (truth.period_us or truth.span_us), rel=1e-4)
