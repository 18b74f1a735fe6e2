from __future__ import annotations

import pytest

from kinetoscope.capture.steps.steady import recorded_steps, settled, timed_steps


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([], False),
        ([1.0], False),
        ([1.0, 1.04], True),
        ([1.0, 1.06], False),
        ([1.0, 1.1, 1.05], True),
        ([1.2, 1.1, 1.0], False),
        ([9.0, 1.0, 1.0], True),
        ([1.0, 2.0, 1.0, 2.0, 1.0, 2.0], False),
        ([1.0, 1.5, 1.1, 1.0, 1.5, 1.2], True),
        ([64.0, 32.0, 16.0, 8.0, 4.0, 2.0], False),
        ([0.0, 0.0], False),
    ],
)
def test_settled(seconds: list[float], expected: bool):
    assert settled(seconds) is expected


def test_short_steps_are_timed_and_recorded_more_often():
    assert timed_steps(0.1) == 3
    assert timed_steps(0.0001) > 3
    assert [recorded_steps(s) for s in (1.0, 0.002, 0.00001, 0.0)] == [3, 5, 10, 10]
