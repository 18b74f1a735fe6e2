"""Limits of tests, held against real recordings: what passed them, and who did it."""

from __future__ import annotations

import pytest

from cases.recorded import recorded
from kinetoscope.comparison.limits import broken
from kinetoscope.errors import UsageError
from kinetoscope.sources.run import LoadedRun


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
