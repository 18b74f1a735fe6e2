"""``kinetoscope steps`` of a server: its table, and a client's times next to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kinetoscope.cli import main
from serving_traces import Server
from traces import Event, event, host, kernel


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
