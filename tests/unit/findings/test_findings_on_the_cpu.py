"""What rules say of programs without a device, whose ops compute on the CPU."""

from __future__ import annotations

import pytest

import traces
from eager import NODE, Eager
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules import dense_embedding_gradients, gather_scatter, recurrent_cells

STEPS = 3


def on_cpu(program: Eager) -> RankView:
    program.events = traces.on_cpu(program.events)
    return program.view()


def test_an_op_computes_that_no_other_op_is_in() -> None:
    program = Eager()
    for _ in range(STEPS):
        program.run("aten::linear", "aten::addmm")
        program.note("aten::view")
        program.run("aten::to", "aten::copy_")  # decides what is to be copied, and leaves it to another op
        with program.around(NODE + "MmBackward0"):
            program.run("aten::mm")
        program.step()
    computed = on_cpu(program).computed
    assert computed["name"].to_list() == ["aten::linear", "aten::copy_", "aten::mm"] * STEPS
    assert computed["category"].cast(str).to_list() == ["matmul", "copy", "matmul"] * STEPS
    assert computed["step"].to_list() == [number for number in range(STEPS) for _ in range(3)]


def embedding(filled: float, rows: float) -> Eager:
    """Steps with a table whose gradient is filled and summed up, and which Adam updates by four ops."""
    program = Eager()
    for _ in range(STEPS):
        with program.around("aten::embedding_dense_backward"):
            with program.around("aten::zeros"):
                program.note("aten::fill_", us=filled)
            program.at += rows
        began = program.at
        for op in ("lerp_", "mul_", "addcmul_", "addcdiv_"):
            program.note(f"aten::{op}", us=4_000)
        program.events.append(
            traces.host("Optimizer.step#Adam.step", began - 1, program.at - began + 1, "user_annotation")
        )
        program.step()
    return program


def test_dense_gradients_of_tables_cost_their_zeros_and_the_optimizer_s_passes() -> None:
    (finding,) = dense_embedding_gradients.find(on_cpu(embedding(1_000, 100)))
    # 3, 2, 3 and 4 tensors of the table's size, and the zeros, less what a sparse update takes.
    assert finding.saving.us == pytest.approx(1_000 * (1 + 3 + 2 + 3 + 4) - 700, rel=0.01)
    assert not list(dense_embedding_gradients.find(on_cpu(embedding(1_000, 900))))


def test_messages_that_are_gathered_and_added_up_go_if_they_are_a_sparse_product() -> None:
    program = Eager()
    for _ in range(STEPS):
        for op in ("aten::index", "aten::mul", "aten::index_add_"):
            program.note(op, us=1_000)
        program.note("aten::mm", us=1_000)
        program.step()
    (finding,) = gather_scatter.find(on_cpu(program))
    assert finding.saving.us == pytest.approx(2_500, rel=0.01)
    assert finding.saving.condition == "each row's factor is one number, and the edges stay the same"


def test_an_lstm_keeps_the_products_of_its_cells() -> None:
    calls = 20
    program = Eager()
    for _ in range(STEPS):
        for call in range(calls):
            with program.around("aten::lstm_cell"):
                program.run("aten::linear", sequence=2 * call)
                program.run("aten::sigmoid", sequence=2 * call + 1)
        for call in reversed(range(calls)):
            program.backward("SigmoidBackward0", "aten::sigmoid_backward", sequence=2 * call + 1)
            program.backward("AddmmBackward0", "aten::mm", sequence=2 * call)
        program.step()
    (finding,) = recurrent_cells.find(on_cpu(program))
    # Of each cell but one: 40 µs without a product of 18, and two nodes of 18 without a product of 14.
    assert finding.saving.us == pytest.approx((calls - 1) * (40 - 18 + 36 - 14), rel=0.05)
    assert "cuDNN" not in finding.advice
