"""Differences and products of all pairs that are written out."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import traces
from eager import Eager
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules import pairwise_differences
from kinetoscope.recording.manifest import Manifest, Program, RankRecord
from kinetoscope.sources.run import LoadedRun

STEPS, US = 3, 300.0
BROADCAST = "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<…>>"
OF_ONE_SHAPE = "void at::native::vectorized_elementwise_kernel<4, …>"
PAIRS = [[2048, 1, 64], [1, 512, 64]]
REDUCES = "void at::native::reduce_kernel<512, 1, …>"


def steps(
    *ops: str,
    views: int = 2,
    kernel: str = BROADCAST,
    trained: bool = False,
    dims: list[list[int]] | None = PAIRS,
) -> Eager:
    """Steps with views of both operands, and ops of which the first computes with all pairs."""
    program = Eager()
    for step in range(STEPS):
        for _ in range(views):
            program.note("aten::unsqueeze")
        for number, op in enumerate(ops):
            sequence = 10 * step + number if trained else None
            named = kernel if number == 0 else REDUCES if op == "aten::sum" else OF_ONE_SHAPE
            program.run(op, kernel=named, us=US, sequence=sequence, dims=None if number else dims)
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
    "program",
    [
        steps(*SQUARES, views=1),  # from their mean
        steps(*SQUARES, kernel=OF_ONE_SHAPE),  # both have the same new dimension
        steps("aten::sub", "aten::exp", "aten::sum"),  # no product
        steps("aten::sub", "aten::pow", "aten::argmin"),  # not summed up
        steps("aten::mul", "aten::sum", dims=[[32, 64, 56, 56], [32, 64, 1, 1]]),  # weighted channels
        steps(*SQUARES, dims=None),  # neither shapes nor lines
    ],
)
def test_others_are_no_pairs(program: Eager) -> None:
    assert not list(pairwise_differences.find(program.view()))


@pytest.mark.parametrize(
    ("line", "is_of_pairs"),
    [
        ("distances = ((x[:, None] - y[None]) ** 2).sum(-1)", True),
        ("distances = (x.unsqueeze(1) - y.unsqueeze(0)).pow(2).sum(-1)", True),
        ("spread = ((x - mean[:, :, None, None]) ** 2).sum(1)", False),
        ("%matplotlib inline", False),
    ],
)
def test_without_shapes_the_source_says_whether_both_have_a_new_dimension(
    tmp_path: Path, line: str, is_of_pairs: bool
) -> None:
    view = steps(*SQUARES, dims=None).view()
    (tmp_path / "kept.json").write_bytes(msgspec.json.encode(Program(files={"/home/train.py": line})))
    manifest = Manifest(ranks=(RankRecord(rank=0, program="kept.json"),))
    lines = traces.noted(*((op, "train.py(1): <module>") for op in ["aten::unsqueeze"] * 2 + SQUARES))
    run = LoadedRun((view.trace,), manifest, folder=tmp_path, lines={0: lines})
    assert bool(list(pairwise_differences.find(RankView(run, view.trace)))) == is_of_pairs


def test_all_pairs_are_written_out_on_a_cpu_too() -> None:
    program = steps(*SQUARES, trained=True)
    program.events = traces.on_cpu(program.events)
    (finding,) = pairwise_differences.find(program.view())
    # Three ops of 18 µs and their gradients of 14, but for half of the first.
    assert finding.saving.us == pytest.approx(2.5 * 18 + 3 * 14, rel=0.01)
    alone = steps("aten::sub", "aten::pow", "aten::mean", dims=[[512, 64], [512, 64]])
    alone.events = traces.on_cpu(alone.events)
    assert not list(pairwise_differences.find(alone.view()))
