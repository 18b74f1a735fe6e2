"""Differences and products of all pairs that are written out."""

from __future__ import annotations

import pytest

from eager import Eager
from kinetoscope.findings.rules import pairwise_differences

STEPS, US = 3, 300.0
BROADCAST = "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<…>>"
OF_ONE_SHAPE = "void at::native::vectorized_elementwise_kernel<4, …>"
REDUCES = "void at::native::reduce_kernel<512, 1, …>"


def steps(*ops: str, views: int = 2, kernel: str = BROADCAST, trained: bool = False) -> Eager:
    """Steps with views of both operands, and ops of which the first computes with all pairs."""
    program = Eager()
    for step in range(STEPS):
        for _ in range(views):
            program.note("aten::unsqueeze")
        for number, op in enumerate(ops):
            sequence = 10 * step + number if trained else None
            named = kernel if number == 0 else REDUCES if op == "aten::sum" else OF_ONE_SHAPE
            program.run(op, kernel=named, us=US, sequence=sequence)
        program.run("aten::mm", kernel="gemm", us=US)
        if trained:
            for number in reversed(range(len(ops))):
                program.backward("SubBackward0", "aten::neg", sequence=10 * step + number, us=US)
        program.step()
    return program


SQUARES = ["aten::sub", "aten::pow", "aten::sum"]


def test_squared_differences_go_but_for_what_a_product_writes() -> None:
    (finding,) = pairwise_differences.find(steps(*SQUARES).view())
    assert finding.title == (
        "1 difference or product of all pairs per step is written out and summed up: "
        "900 µs with their gradients"
    )
    assert finding.saving.us == pytest.approx(2.5 * US, rel=0.02)


def test_their_gradients_go_too() -> None:
    (finding,) = pairwise_differences.find(steps(*SQUARES, trained=True).view())
    assert finding.affected_us == pytest.approx(6 * US)
    assert finding.saving.us == pytest.approx(5.5 * US, rel=0.02)


@pytest.mark.parametrize(
    "ops",
    [["aten::sub", "aten::linalg_vector_norm"], ["aten::mul", "aten::sum"], ["aten::cosine_similarity"]],
)
def test_norms_products_and_cosines_are_found(ops: list[str]) -> None:
    assert list(pairwise_differences.find(steps(*ops).view()))


@pytest.mark.parametrize(
    ("ops", "views", "kernel"),
    [
        (SQUARES, 1, BROADCAST),  # from their mean
        (SQUARES, 2, OF_ONE_SHAPE),  # both have the same new dimension
        (["aten::sub", "aten::exp", "aten::sum"], 2, BROADCAST),  # no product
        (["aten::sub", "aten::pow", "aten::argmin"], 2, BROADCAST),  # not summed up
    ],
)
def test_others_are_no_matrix_product(ops: list[str], views: int, kernel: str) -> None:
    assert not list(pairwise_differences.find(steps(*ops, views=views, kernel=kernel).view()))
