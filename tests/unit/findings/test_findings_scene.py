"""The parts that all rules share."""

from __future__ import annotations

import pytest

from kinetoscope.findings.model import Saving
from kinetoscope.findings.scene import severity, user_line


@pytest.mark.parametrize(
    ("frame", "line"),
    [
        ("train.py(12): step", "train.py:12"),
        ("/home/me/train.py(12): step", "/home/me/train.py:12"),
        ("torch/nn/modules/module.py(1775): _wrapped_call_impl", None),
        ("/usr/lib/python3.12/contextlib.py(12): inner", None),
        ("/venv/lib/python3.11/site-packages/lightning/loop.py(3): run", None),
        ("<built-in method item of Tensor object at 0x7f>", None),
        ("<frozen importlib._bootstrap>(488): f", None),
    ],
)
def test_only_the_programs_own_lines_are_sources(frame: str, line: str | None) -> None:
    assert user_line(frame) == line


@pytest.mark.parametrize(
    ("share", "freed", "expected"),
    [
        (0.2, 0.0, "high"),
        (0.05, 0.0, "medium"),
        (0.01, 0.0, "low"),
        (0.001, 0.0, None),
        (0.0, 0.1, "low"),
        (0.0, 0.01, "info"),
        (0.0, 0.001, None),
    ],
)
def test_severity_is_the_share_of_the_step(share: float, freed: float, expected: str | None) -> None:
    assert severity(Saving(1.0, "", True, share, freed)) == expected


def test_severity_can_be_capped() -> None:
    assert severity(Saving(1.0, "", True, 0.5), at_most="medium") == "medium"
    assert severity(Saving(1.0, "", True, 0.5), at_most="low") == "low"
