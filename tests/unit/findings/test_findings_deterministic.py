"""Deterministic algorithms: interpolation in parts, and new memory that is filled."""

from __future__ import annotations

import pytest

from eager import Eager
from kinetoscope.findings.rules import deterministic_algorithms

STEPS = 3
GATHER_US, PASS_US, SCATTER_US, FILL_US = 100, 30, 1000, 2


def segmentation(dimensions: int = 2, interpolates: bool = True, fills: bool = True) -> Eager:
    """Steps with a convolution, an interpolation as torch computes it in this mode, and a selection."""
    program, corners = Eager(), 2**dimensions
    for _ in range(STEPS):
        if fills:
            program.run("aten::conv2d", "aten::empty", "aten::fill_", us=FILL_US)
        program.run("aten::conv2d", kernel="fprop", us=200, sequence=0)
        if interpolates:
            for _ in range(dimensions):
                program.run("aten::arange", "aten::arange", us=1)
            for corner in range(corners):
                program.run("aten::_unsafe_index", "aten::index", us=GATHER_US, sequence=1 + corner)
            for number in range(corners - 1):
                program.run("aten::mul", us=PASS_US, sequence=9 + number)
                program.run("aten::add", us=PASS_US, sequence=20 + number)
        program.run("aten::add", us=70, sequence=40)  # of the program
        program.run("aten::index", us=50, sequence=41)
        program.backward("IndexBackward0", "aten::_index_put_impl_", us=50, sequence=41)
        for number in range(corners - 1 if interpolates else 0):
            program.backward("MulBackward0", "aten::mul", us=PASS_US, sequence=9 + number)
        for corner in range(corners if interpolates else 0):
            ops = ("aten::_unsafe_index_put", "aten::_index_put_impl_")
            program.backward("UnsafeIndexBackward0", *ops, us=SCATTER_US, sequence=1 + corner)
        program.optimizer()
        program.step()
    return program


@pytest.mark.parametrize("dimensions", [2, 3])
def test_an_interpolation_in_parts_may_be_one_kernel(dimensions: int) -> None:
    (finding,) = deterministic_algorithms.find(segmentation(dimensions).view())
    assert finding.title == (
        "Deterministic algorithms are on: 1 interpolation in parts and 1 fill of new memory per step"
    )
    corners = 2**dimensions
    all_of_it = corners * (GATHER_US + SCATTER_US) + 3 * (corners - 1) * PASS_US + dimensions
    assert finding.affected_us == pytest.approx(all_of_it + FILL_US)
    assert finding.saving.us == pytest.approx(all_of_it - 2 * GATHER_US, rel=0.05)


def test_what_sorts_the_gradients_of_corners_is_known_by_its_node() -> None:
    """Without shapes torch writes down no thread of the forward op, which would name it."""
    program = segmentation()
    for event in program.events:
        event.get("args", {}).pop("Fwd thread id", None)
    (finding,) = deterministic_algorithms.find(program.view())
    corners = 4
    known = corners * (GATHER_US + SCATTER_US) + 2 * (corners - 1) * PASS_US + 2
    assert finding.affected_us == pytest.approx(known + FILL_US)
    assert finding.saving.us == pytest.approx(known - 2 * GATHER_US, rel=0.05)


def test_fills_alone_are_shown_where_they_take_time() -> None:
    (finding,) = deterministic_algorithms.find(segmentation(interpolates=False).view())
    assert finding.title == "Deterministic algorithms are on: 1 fill of new memory per step"
    assert finding.affected_us == pytest.approx(FILL_US)


def test_a_selection_by_index_is_sorted_in_any_mode() -> None:
    assert not list(deterministic_algorithms.find(segmentation(interpolates=False, fills=False).view()))
