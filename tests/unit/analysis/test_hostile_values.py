"""Files that say absurd things get a whole report all the same, whose numbers keep their promises."""

from __future__ import annotations

import copy
import gzip
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broad import broad
from kinetoscope.analysis.origins.dispatch import chains
from kinetoscope.document.collect.report import build
from kinetoscope.errors import KinetoscopeError, UsageError
from kinetoscope.render.json import indented
from kinetoscope.sources.run import load

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "h200"
DOCUMENTS: list[dict[str, Any]] = [
    json.loads(gzip.decompress((FIXTURES / f"{name}.json.gz").read_bytes()))
    for name in ("mm_64_warm_eager", "forum_return_second")
]
ABSURD: list[Any] = [
    0, -1, 10**15, 2**63 - 1, -(2**63), 2**64, 1e308, 3.5, True, None, "", "x", "0x1f", "1e400", "-5",
    "\x00", "é" * 500, [], {}, [1, "a", None], {"a": {"b": [1]}},
]  # fmt: skip


A_FEW = [None, "", "0x1f", "\x00", {}, [1, "a", None], 3.5, 2**64, -(2**63), 1e308]  # one of each kind


def reported(document: Any, path: Path) -> dict[str, Any]:
    """The JSON report of a file, its sums and shares checked."""
    path.write_text(json.dumps(document))
    run = load(path)
    report = json.loads(indented(build(run)))
    for device in report["devices"]:
        assert isinstance(device["device"], int)
        assert 0 <= device["busy_fraction"] <= 1
        causes = [row["idle_us"] for row in report["idle"] if row["device"] == device["device"]]
        assert sum(causes) == pytest.approx(device["idle_us"], abs=1e-3, rel=1e-9)
    for kernel in report["kernels"]:
        assert kernel["speed_of_light"] is None or 0 <= kernel["speed_of_light"] <= 1
    assert all(finding["saving_us"] >= 0 for finding in report["findings"])
    with suppress(UsageError):  # no kernel is left
        chains(run, "e")
    return report


@pytest.mark.parametrize("value", broad(ABSURD, A_FEW), ids=repr)
def test_what_a_file_says_of_its_devices_may_be_absurd(value: Any, tmp_path: Path) -> None:
    document = copy.deepcopy(DOCUMENTS[0])
    (entry,) = document["deviceProperties"]
    document["deviceProperties"] = [{**dict.fromkeys(entry, value), "id": 0}]
    document["distributedInfo"] = {"rank": value, "world_size": value}
    reported(document, tmp_path / "t.json")


@pytest.mark.parametrize("first", range(3))
def test_arguments_of_events_may_be_absurd(first: int, tmp_path: Path) -> None:
    """A third of the values each, and of each kind of event one with every value."""
    document = copy.deepcopy(DOCUMENTS[1])
    shaped = ["Input Dims", "Input type", "Input Strides", "Concrete Inputs", "Call stack", "Sequence number"]
    for category in ("kernel", "cpu_op", "cuda_runtime", "user_annotation"):
        values = ABSURD[first::3]
        events = [e for e in document["traceEvents"] if e.get("cat") == category][: len(values)]
        more = [copy.deepcopy(events[0]) for _ in values[len(events) :]]
        document["traceEvents"] += more
        for event, value in zip([*events, *more], values, strict=True):
            event["args"] = dict.fromkeys([*event.get("args", {}), *shaped], value)
    reported(document, tmp_path / "t.json")


def test_what_a_file_says_of_its_rank_may_be_absurd(tmp_path: Path) -> None:
    for value in ABSURD:
        path = tmp_path / "t.json"
        path.write_text(json.dumps(DOCUMENTS[0] | {"distributedInfo": value}))
        assert isinstance(load(path).traces[0].rank, int)


@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_values_in_any_event_make_a_report(data: st.DataObject, tmp_path: Path) -> None:
    document = copy.deepcopy(data.draw(st.sampled_from(DOCUMENTS)))
    events = document["traceEvents"]
    for _ in range(data.draw(st.integers(1, 12))):
        event = events[data.draw(st.integers(0, len(events) - 1))]
        within = event.get("args") if data.draw(st.booleans()) else event
        if isinstance(within, dict) and within:
            within[data.draw(st.sampled_from(sorted(within)))] = copy.deepcopy(
                data.draw(st.sampled_from(ABSURD))
            )
    with suppress(KinetoscopeError):
        reported(document, tmp_path / "t.json")
