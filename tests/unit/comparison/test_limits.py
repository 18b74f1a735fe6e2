"""Limits of tests, held against real recordings: what passed them, and who did it."""

from __future__ import annotations

from typing import Any

import pytest

from cases.recorded import recorded
from kinetoscope.comparison.limits import broken
from kinetoscope.errors import UsageError
from kinetoscope.sources.run import LoadedRun
from traces import host, step, trace


def run(case: str) -> LoadedRun:
    found = recorded(case, "before")
    assert found is not None
    return found


def test_graph_breaks_are_shown_by_their_finding_and_line() -> None:
    (one,) = broken(run("graph-break"), {"max_graph_breaks": 0})
    assert one.words == "graph breaks: 1"
    assert one.why[0].startswith("graph-break: ")
    assert any("before.py:16" in line for line in one.why)


def test_waits_are_shown_by_the_op_that_waits() -> None:
    (one,) = broken(run("sync-in-step"), {"max_syncs": 15, "max_launches": 1000})
    assert one.words == "calls that wait for the device: 16"
    assert "aten::_local_scalar_dense" in one.why[0]
    assert broken(run("sync-in-step"), {"max_syncs": 16}) == []


def test_pageable_copies_may_be_forbidden_and_device_time_limited() -> None:
    found = broken(run("pageable-copy"), {"no_pageable_copies": True, "max_device_time": "1 ms"})
    assert [one.limit for one in found] == ["no_pageable_copies=True", "max_device_time='1 ms'"]
    assert "pageable-copy: " in found[0].why[0]
    assert found[1].words.startswith("the device was busy for 2.")
    assert not broken(run("pageable-copy"), {"no_pageable_copies": False, "max_device_time": "1 s"})


def test_limits_without_a_known_count_do_not_pass() -> None:
    (one,) = broken(run("pageable-copy"), {"max_graph_breaks": 100})
    assert "cannot be judged" in one.words
    with pytest.raises(UsageError, match="max_lunches"):
        broken(run("pageable-copy"), {"max_lunches": 1})


def test_what_precedes_the_only_step_counts_too() -> None:
    """A test that makes a tensor and then calls its model once: that call is marked as a step, inside of the
    test's frame and beyond its end."""

    def frame(name: str, begin: float, length: float, number: int) -> dict[str, Any]:
        ids = {"Python id": number, "Python parent id": number - 1}
        return host(name, begin, length, "python_function", **ids)

    events = [
        frame("runner.py(1): run", 0, 900, 1),
        frame("test.py(3): test", 5, 300, 2),
        host("aten::ones", 10, 20),
        step(0, 100, 500),
        frame("<built-in method sin>", 110, 40, 3),
        host("aten::sin", 120, 20),
    ]
    (one,) = broken(LoadedRun((trace(*events),)), {"max_ops": 1})
    assert one.words == "operators called: 2"
    assert one.why == ("aten::ones, 1 in all (test.py:3)", "aten::sin, 1 in all (test.py:3)")
