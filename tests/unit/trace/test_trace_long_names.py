"""Names of a megabyte: kept by both ends, distinguished, and never many times the file in what is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinetoscope import cli
from kinetoscope.analysis.kernels.names import short_name
from kinetoscope.findings.evidence import user_line
from kinetoscope.trace import tables
from kinetoscope.trace.model import Trace

MILLION = "k" * 1_000_000


def event(category: str, name: str, time: int, **arguments: Any) -> dict[str, Any]:
    lane = {"pid": 0, "tid": 7} if category == "kernel" else {"pid": 1, "tid": 1}
    return {"ph": "X", "cat": category, "name": name, "ts": time, "dur": 5, "args": arguments} | lane


def test_a_long_name_is_cut_in_the_middle_and_says_so(trace_of: Callable[..., Trace]) -> None:
    names = [f"head{MILLION}{middle}{MILLION}tail" for middle in "ab"]
    trace = trace_of(*(event("cpu_op", name, 10 * time) for time, name in enumerate([*names, *names])))
    found = trace.host_events["name"].cast(str).to_list()
    assert found[:2] == found[2:]
    assert found[0] != found[1]
    for name in found:
        assert name.startswith("headkkk")
        assert name.endswith("kkktail")
        assert "(2,000,009 characters" in name
        assert len(name) <= tables.NAME


def test_names_of_torch_are_kept_whole(trace_of: Callable[..., Trace]) -> None:
    longest = "k" * tables.NAME
    assert trace_of(event("kernel", longest, 1)).device_events["name"].to_list() == [longest]


def test_outputs_of_kernels_with_long_names_are_small(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    for number in range(1, 4):
        time = 1000 * number
        step = event("user_annotation", f"ProfilerStep#{number}", time)
        launch = event("cuda_runtime", "cudaLaunchKernel", time + 1, correlation=number)
        kernel = event("kernel", f"a{MILLION}", time + 3, correlation=number, stream=7, device=0)
        events += [step | {"dur": 900}, event("cpu_op", f"b{MILLION}", time + 1), launch, kernel]
    trace = tmp_path / "t.json"
    device = {"id": 0, "name": MILLION, "computeMajor": 9, "computeMinor": 0, "numSms": 132}
    trace.write_text(json.dumps({"traceEvents": events, "deviceProperties": [device]}))
    for name in ("page.html", "report.json"):
        assert cli.main(["report", str(trace), "-o", str(tmp_path / name)]) == 0
        assert (tmp_path / name).stat().st_size < 300_000


def test_a_mangled_length_that_is_absurd_is_none() -> None:
    assert short_name("_Z" + "9" * 5000).startswith("_Z999")
    assert short_name("_ZN2at6nativeEv") == "native"


def test_a_line_is_found_behind_a_long_word() -> None:
    assert user_line(f"{MILLION} my/train.py(12): step") == "my/train.py:12"
    assert user_line(MILLION) is None
