"""Host time for what could be launched once, or need not be recorded."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import traces
from eager import GIB, NODE, Eager
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules import recurrent_cells, split_batches, unused_graph
from kinetoscope.recording.manifest import BatchPadding, Manifest, RankRecord, StepTimings
from kinetoscope.sources.run import LoadedRun

STEPS = 3
CELL = "aten::lstm_cell"


def cells(calls: int = 20, trained: bool = True, between: str | None = None) -> Eager:
    """A recurrent net in a loop over time: cells of three launches each, and a loss over all."""
    program = Eager()
    for _ in range(STEPS):
        for call in range(calls):
            with program.around(CELL):
                program.run("aten::mm", kernel="gemm", sequence=2 * call)
                program.run("aten::mm", kernel="gemm", sequence=2 * call)
                program.run("aten::_thnn_fused_lstm_cell", kernel="lstm_cell_forward", sequence=2 * call + 1)
            if between:
                program.run(between, sequence=1000)
        for call in reversed(range(calls if trained else 0)):
            program.backward("ThnnFusedLstmCellBackward0", sequence=2 * call + 1)
            program.backward("MmBackward0", "aten::mm", kernel="gemm", sequence=2 * call)
        program.step()
    return program


def test_cells_in_a_loop_save_the_host_their_calls() -> None:
    (finding,) = recurrent_cells.find(cells().view())
    assert finding.title == "LSTMCell is called 20 times per step, one time step after the other"
    launches = 3 + 2  # forward and back
    assert finding.saving.us == pytest.approx(19 * launches * 20, rel=0.25)  # Python between nodes stays
    assert "nn.LSTM over the whole sequence" in finding.advice


@pytest.mark.parametrize(
    "program",
    [
        cells(between="aten::argmax"),  # the next input may be what was chosen
        cells(trained=False),  # an agent gets one input at a time
        cells(calls=4),  # the layers of a net that runs for one time step
    ],
)
def test_cells_whose_inputs_may_not_be_known_promise_nothing(program: Eager) -> None:
    (finding,) = recurrent_cells.find(program.view())
    assert finding.saving.us == 0
    assert "not predicted" in finding.saving.basis


def test_a_few_cells_are_no_loop() -> None:
    assert not list(recurrent_cells.find(cells(calls=2).view()))


def forward(program: Eager, begin: int, ops: int = 20, us: float = 5.0, numbered: bool = True) -> None:
    for number in range(ops):
        sequence = {"sequence": begin + number} if numbered else {}
        program.run("aten::linear", "aten::addmm", kernel="gemm", us=us, **sequence)


def teacher(numbered: bool = True, us: float = 5.0, backward: bool = True) -> Eager:
    """A student is trained on a teacher's answers."""
    program = Eager()
    for step in range(STEPS):
        begin = 100 * step
        forward(program, begin, us=us, numbered=numbered)
        forward(program, begin + 20)
        for number in reversed(range(20 if backward else 0)):
            program.backward("AddmmBackward0", "aten::mm", kernel="gemm", sequence=begin + 20 + number)
        program.step()
    return program


def test_a_teacher_whose_graph_is_recorded_is_named() -> None:
    (finding,) = unused_graph.find(teacher().view())
    assert finding.title == "Autograd records 20 ops per step that no backward pass follows"
    assert finding.saving.us == pytest.approx(0.2 * 20 * 18, rel=0.2)
    assert "torch.no_grad()" in finding.advice


def test_a_graph_is_at_the_line_that_records_most_of_it() -> None:
    """Ops without a node, as a metric's, have the number of the next one, and may be many."""
    ops = [("aten::mul", 3, 0)] * 30 + [("aten::addmm", 9, number) for number in range(20)]
    ops.append(("aten::mm", 12, 50))
    program = Eager()
    for number in range(STEPS):
        for op, _, sequence in ops:
            program.run(op, sequence=100 * number + sequence)
        program.backward("MmBackward0", "aten::mm", sequence=100 * number + 50)
        program.step()
    view = program.view()
    lines = traces.noted(*((op, f"train.py({line}): train") for op, line, _ in ops))
    (finding,) = unused_graph.find(RankView(replace(view.run, lines={0: lines}), view.trace))
    assert finding.source == "train.py:9"


def test_inference_that_records_a_graph_is_no_more_than_low() -> None:
    (finding,) = unused_graph.find(teacher(backward=False).view())
    assert finding.title.startswith("Autograd records 40 ops per step and no backward pass was recorded")
    assert finding.at_most == "low"


@pytest.mark.parametrize(
    "program",
    [
        teacher(numbered=False),  # under no_grad an op has no number
        teacher(us=0.5),  # a metric's few ops
    ],
)
def test_a_graph_that_is_used_or_small_is_none(program: Eager) -> None:
    assert not list(unused_graph.find(program.view()))


def test_backward_ops_of_old_files_have_the_forward_ops_numbers_as_well() -> None:
    program = Eager()
    for step in range(STEPS):
        forward(program, 100 * step)
        for number in reversed(range(20)):
            program.run("AddmmBackward", "aten::mm", tid=2, sequence=100 * step + number, forward_thread=1)
        program.step()
    assert not any(NODE in one["name"] for one in program.events)
    assert not list(unused_graph.find(program.view()))


MODEL_US = 29 * 20  # from its first launch to its last


def documents(
    sizes: tuple[int, ...] = (800, 2400, 1600), read: int = 4, us: float = 4.0, pause_us: float = 0.0
) -> Eager:
    """A document is copied to the device, read by the model, and scored, one after the other."""
    program = Eager()
    for size in sizes:
        program.run("aten::to", kernel="Memcpy HtoD (Pageable -> Device)", us=2, bytes=size)
        for _ in range(30):
            program.run("aten::linear", "aten::addmm", kernel="gemm", us=us)
        program.run("aten::item", kernel="Memcpy DtoH (Device -> Pinned)", us=2, bytes=read)
        program.at += pause_us
        program.step()
    return program


def test_documents_that_are_read_one_at_a_time_could_be_a_batch() -> None:
    (finding,) = split_batches.find(documents().view("module"))
    assert finding.subject == "one at a time"
    assert finding.saving.us == pytest.approx(7 / 8 * MODEL_US, rel=0.1)
    assert "8 inputs or more at a time" in finding.advice


def test_whoever_waits_for_requests_goes_on_waiting() -> None:
    (finding,) = split_batches.find(documents(pause_us=5000).view("module"))
    assert finding.saving.us == pytest.approx(7 / 8 * MODEL_US, rel=0.1)


def test_a_batch_is_no_larger_than_memory() -> None:
    (finding,) = split_batches.find(documents().view("module", peak=40 * GIB))
    assert finding.saving.us == pytest.approx(2 / 3 * MODEL_US, rel=0.1)


@pytest.mark.parametrize(("rows", "found"), [(1, 1), (16, 0)])
def test_tables_of_several_documents_are_a_batch_already(rows: int, found: int) -> None:
    """As the padding in them tells."""
    view = documents().view("module")
    steps = StepTimings(found_by="module", padding=BatchPadding(600, 400, 0, rows=rows, by_ends=True))
    ranks = (RankRecord(rank=0, steps=steps, peak_memory_bytes=GIB),)
    view = RankView(LoadedRun((view.trace,), manifest=Manifest(ranks=ranks)), view.trace)
    assert len(list(split_batches.find(view))) == found


@pytest.mark.parametrize(
    "program",
    [
        documents(sizes=(800, 800, 800)),  # an agent's observations
        documents(read=8),  # a token, from which the next input is made
        documents(us=40.0),  # the device is busy all the time
    ],
)
def test_inputs_that_may_depend_on_results_or_fill_the_device_are_no_batch(program: Eager) -> None:
    found = split_batches.find(program.view("module"))
    assert not [finding for finding in found if finding.subject == "one at a time"]
