"""``kinetoscope steps`` of a server: its table, and a client's times next to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kinetoscope.analysis.serving.rows import ServingRow
from kinetoscope.analysis.serving.table import replays, serving
from kinetoscope.cli import main
from kinetoscope.sources.run import load
from page_data import page_data
from serving_traces import Server
from traces import Event, call, event, host, kernel


def written(path: Path, events: list[Event]) -> str:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return str(path)


@pytest.fixture
def served(tmp_path: Path) -> str:
    made = Server(layers=6)
    for number in range(8):
        made.step(prefill=512 if number == 3 else 0, pause=250)
        made.events.append(event("user_annotation", "schedule: batch", made.at - 240, 150))
    return written(tmp_path / "trace.json", made.events)


@pytest.fixture
def client(tmp_path: Path) -> str:
    path = tmp_path / "client.json"
    path.write_text(json.dumps({"mean_tpot_ms": 5.0, "output_throughput": 1600.0, "completed": 10}))
    return str(path)


def test_a_token_is_divided_as_the_client_measured_it(
    served: str, client: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["steps", served, "--client", client]) == 0
    shown = capsys.readouterr().out
    for said in ("Steps of SGLang", "A token, as a client measured it", "not in a step: queueing",
                 "One layer of decode at batch 8, × 6", "schedule"):  # fmt: skip
        assert said in shown
    assert main(["steps", served, "--client", client, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["serving"]
    assert sum(part["us"] for part in found["client"]["parts"]) == pytest.approx(5000.0)
    assert {row["client_token_us"] for row in found["steps"] if row["phase"] == "decode"} == {5000.0}
    assert found["found_by"] == "annotation"


def test_without_a_server_a_clients_times_stand_alone(
    tmp_path: Path, client: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = written(tmp_path / "plain.json", [host("aten::mm", 0, 10), kernel("gemm", 5, 10)])
    assert main(["steps", plain, "--client", client]) == 3
    assert "step" in capsys.readouterr().err
    assert main(["steps", plain, "--client", str(tmp_path / "none.json")]) == 3
    assert "none.json" in capsys.readouterr().err


def test_a_report_holds_the_same_table(
    served: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.md"
    assert main(["report", served, "-o", str(page)]) == 0
    text = page.read_text()
    for said in ("Steps of SGLang", "What a step's work is", "KV cache writes", "One layer of decode"):
        assert said in text


def test_a_report_begins_with_what_the_phases_do(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", served]) == 0
    said = " ".join(capsys.readouterr().out.split())
    lead = said.index("As recorded, under the profiler: Decode at batch 8 is")
    assert lead < said.index("Prefill at 512 tokens is") < said.index("Steps of SGLang")
    assert said.count("Decode at batch 8 is") == 1


def captured(batch: int, kernels: int = 5) -> list[Event]:
    """The recording of one graph's capture, as SGLang leaves one a batch."""
    launched = [call("cudaLaunchKernel", 10 + n, 0.5, 5000 + n) for n in range(kernels)]
    return [
        event("user_annotation", f"capture_{batch}_DECODE", 0, 100),
        call("cudaStreamBeginCapture", 1, 1, 0),
        *(host("aten::mm", one["ts"] - 0.2, 0.9) for one in launched),
        *launched,
        call("cudaStreamEndCapture", 90, 1, 0),
    ]


def engines_folder(folder: Path, ranks: int) -> None:
    """What SGLang and vLLM leave: ranks, a front end, and a recording of each batch's capture."""
    inside = folder / "capture_traces"
    inside.mkdir(parents=True)
    for batch in range(20):
        written(inside / f"bs_{batch}_rank0.json", captured(batch))
    written(folder / "host_1.async_llm.99.pt.trace.json", [host("asyncio", 0, 10_000)])
    for rank in range(ranks):
        made = Server(layers=6)
        for _ in range(6):
            made.step()
        written(folder / f"1700000000-TP-{rank}.trace.json", made.events)
        written(folder / "merged-1700000000.trace.json", made.events[:-1])


@pytest.mark.parametrize(("ranks", "of_ranks"), [(1, ""), (2, "Rank 0: "), (18, "of rank ")])
def test_a_folder_is_read_as_its_engine_left_it(
    tmp_path: Path, ranks: int, of_ranks: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """More recordings of captures than a report has ranks made it one of ranks, and without any steps."""
    engines_folder(tmp_path / "traces", ranks)
    assert main(["report", str(tmp_path / "traces")]) == 0
    shown = capsys.readouterr()
    assert "Steps of SGLang" in shown.out
    assert "decode" in shown.out
    assert "traces of other" not in shown.out
    said = " ".join((shown.out + shown.err).split())
    assert "the front end's" in said
    assert "all ranks once more" in said
    assert of_ranks in shown.out
    assert shown.out.count("Decode at batch 8 is") == 1
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "traces"), "-o", str(page)]) == 0
    assert "Steps of SGLang" in str(page_data(page.read_text()))


@pytest.mark.parametrize("capturing", [[0], [0, 1]])
def test_replays_are_those_of_their_ranks_captures(tmp_path: Path, capturing: list[int]) -> None:
    """Two ranks that each recorded the capture of a batch: which of both a replay was of was not guessed."""
    inside = tmp_path / "capture_traces"
    inside.mkdir()
    made = Server(layers=6)
    for _ in range(4):
        made.step()
    for rank in range(2):
        written(tmp_path / f"1700000000-TP-{rank}.trace.json", made.events)
    for rank in capturing:
        written(inside / f"bs_8_rank{rank}.json", captured(8, kernels=6 * len(made.layer())))
    found = replays(load(tmp_path))
    assert found is not None
    assert found.joined == found.replayed == 2 * 4 * 6 * len(made.layer())


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("names", [("EXTEND", "DECODE"), ("prefill", "decode")])
def test_stages_that_were_recorded_apart_are_one_table(
    tmp_path: Path, ranks: int, names: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """SGLang's profile_by_stage writes a file a stage; a folder of both was read as several runs."""
    folder = tmp_path / "traces"
    folder.mkdir()
    alone: dict[str, list[ServingRow]] = {}
    for rank in range(ranks):
        made = Server(layers=6)
        for prefill, name in zip((512, 0), names, strict=True):
            made.events.clear()
            for _ in range(4):
                made.step(prefill=prefill)
            path = folder / f"1700000000.5-TP-{rank}-{name}.trace.json"
            distributed = {"distributedInfo": {"rank": rank, "world_size": ranks}} if ranks > 1 else {}
            path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": made.events, **distributed}))
            alone.setdefault(name, []).extend(serving_rows(path))
            made.at += 5_000_000
    run = load(folder)
    assert [trace.rank for trace in run.traces] == list(range(ranks))
    found = serving(run)
    assert found is not None
    assert {row.phase for row in found.steps} == {"prefill", "decode"}
    assert sorted(found.steps, key=repr) == sorted([*alone[names[0]], *alone[names[1]]], key=repr)
    assert main(["report", str(folder)]) == 0
    shown = capsys.readouterr()
    said = " ".join((shown.out + shown.err).split())
    assert "Decode at batch 8 is" in said
    assert "Prefill at 512 tokens is" in said
    assert f"-TP-0-{names[0]}.trace.json" in said


def staged(folder: Path, ranks: int) -> str:
    """What SGLang's profile_by_stage leaves: two traces a rank."""
    folder.mkdir()
    for rank in range(ranks):
        made = Server(layers=4)
        for prefill, name in ((512, "EXTEND"), (0, "DECODE")):
            made.events.clear()
            for _ in range(3):
                made.step(prefill=prefill)
            distributed = {"distributedInfo": {"rank": rank, "world_size": ranks}}
            content = {"schemaVersion": 1, "traceEvents": made.events, **distributed}
            (folder / f"1700000000.5-TP-{rank}-{name}.trace.json").write_text(json.dumps(content))
            made.at += 5_000_000
    return str(folder)


def test_two_stages_of_nine_ranks_are_nine_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More than sixteen traces were taken for as many ranks, and all of the prefill was left out."""
    folder = staged(tmp_path / "traces", 9)
    assert main(["report", folder, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["serving"]["steps"]
    assert {(row["rank"], row["phase"]) for row in found} == {
        (rank, phase) for rank in range(9) for phase in ("prefill", "decode")
    }


def test_stages_of_more_ranks_are_left_out_with_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", staged(tmp_path / "traces", 17)]) == 0
    shown = capsys.readouterr()
    said = " ".join((shown.out + shown.err).split())
    assert "17 traces of other windows were left out" in said
    assert "Steps of SGLang" in said


@pytest.mark.parametrize(
    "inside", ["capture_traces/bs_{}_q_1_rank0", "graph_capture_profile/Runner_bs_{}_rank0"]
)
def test_captures_next_to_each_rank_are_that_ranks(tmp_path: Path, inside: str) -> None:
    """ATOM leaves a folder a rank, each with its captures, whose ranks count from 0 in each group; SGLang has
    another folder for them since 0.5.15, and says the batch in the file's name alone."""
    made = Server(layers=6)
    for _ in range(4):
        made.step()
    for rank in range(2):
        folder = tmp_path / f"dp{rank}_tp0"
        distributed = {"distributedInfo": {"rank": rank, "world_size": 2}}
        for batch in (8, 16):
            path = folder / f"{inside.format(batch)}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            written(path, captured(batch, kernels=6 * len(made.layer()))[1:])
        content = {"schemaVersion": 1, "traceEvents": made.events, **distributed}
        (folder / "model_ts_20260101_000000_001.pt.trace.json").write_text(json.dumps(content))
    found = replays(load(tmp_path))
    assert found is not None
    assert found.joined == found.replayed == 2 * 4 * 6 * len(made.layer())


def serving_rows(path: Path) -> list[ServingRow]:
    found = serving(load(path))
    return [] if found is None else list(found.steps)


def test_what_to_change_is_said_by_phase(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["steps", served, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["serving"]
    assert found["findings"]
    assert {one["phase"] for one in found["findings"]} <= {"prefill", "decode"}
    assert main(["report", served, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["serving"]["findings"] == found["findings"]
    unit = len(report["steps"]) or sum(row["n"] + row["warmup"] for row in found["steps"])
    for finding in report["findings"]:
        if finding["phases"] and finding["saving_us"]:
            total = sum(one["saving_us"] * one["steps"] for one in finding["phases"])
            assert total == pytest.approx(finding["saving_us"] * unit)
    assert main(["steps", served]) == 0
    shown = capsys.readouterr().out
    assert "What to change" in shown
    assert found["findings"][0]["title"][:30] in " ".join(shown.split())
