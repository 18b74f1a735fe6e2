"""The host's side of a step: checks that wait, loops over results, and what Python makes of results."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from pathlib import Path

import msgspec
import polars as pl
import pytest
from msgspec.structs import replace

import traces
from kinetoscope.findings.model import Finding
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules import (
    host_op_stall,
    launch_gap,
    pageable_copy,
    python_overhead,
    results_on_host,
    sync_in_step,
    unexplained_idle,
)
from kinetoscope.recording.manifest import Manifest, RankRecord
from kinetoscope.recording.manifest import Program as ProgramText
from kinetoscope.sources.run import LoadedRun

STEP_US = 2000


class Program:
    """The events of a thread that calls one op after another; a launch takes 10 µs to arrive."""

    def __init__(self) -> None:
        self.at = 0.0
        self.free_at = 0.0
        self.events: list[traces.Event] = []
        self.number = count(1)

    def op(self, name: str = "aten::mul", kernel_us: float = 2.0) -> None:
        number = next(self.number)
        self.events += [
            traces.host(name, self.at, 12),
            traces.call("cudaLaunchKernel", self.at + 4, 5, number),
            self._work(traces.kernel("multiply", 0, kernel_us, number)),
        ]
        self.at += 16

    def read(self, name: str = "aten::item", size: int = 4, us: float = 2) -> None:
        number = next(self.number)
        start = self.at
        copied = self._work(
            traces.kernel("Memcpy DtoH (Device -> Pageable)", 0, us, number, bytes=size)
            | {"cat": "gpu_memcpy"}
        )
        end = copied["ts"] + copied["dur"] + 2
        self.events += [
            traces.host(name, start, end - start + 2),
            traces.host("aten::_local_scalar_dense", start + 0.5, end - start + 1),
            traces.call("cudaMemcpyAsync", start + 1, 3, number),
            copied,
            traces.call("cudaStreamSynchronize", start + 5, end - start - 5, 0),
        ]
        self.at = end + 6

    def on_cpu(self, name: str) -> None:
        self.events.append(traces.host(name, self.at, 2))
        self.at += 4

    def python(self, us: float, name: str | None = None, category: str = "python_function") -> None:
        if name is not None:
            self.events.append(traces.event(category, name, self.at, us))
        self.at += us

    def _work(self, event: traces.Event) -> traces.Event:
        event["ts"] = max(self.free_at, self.at + 14)
        self.free_at = event["ts"] + event["dur"]
        return event

    def view(self, steps: int = 1) -> RankView:
        length = self.at / steps
        marks = [traces.step(i, i * length, length) for i in range(steps)]
        trace = traces.trace(*marks, *self.events)
        return RankView(LoadedRun((trace,)), trace)


def only(found: Iterable[Finding]) -> Finding:
    (finding,) = found
    return finding


def checked(*ops: str) -> RankView:
    program = Program()
    for _ in range(10):
        program.op()
    for op in ops:
        program.op(op)
    program.read("aten::is_nonzero")
    for _ in range(10):
        program.op()
    return program.view()


def test_checks_of_distributions_are_named_as_such_and_go_with_their_comparisons() -> None:
    view = checked("aten::sub", "aten::eq", "aten::all", "aten::_is_all_true")
    finding = only(sync_in_step.find(view))
    assert finding.title == "torch.distributions checks its arguments once per step, and waits for the answer"
    assert "set_default_validate_args(False)" in str(finding.snippet)
    names = view.trace.host_events["name"].cast(str)
    gone = view.trace.host_events["start_ns"].is_in(finding.saving.change.host["start_ns"].implode())
    assert {"aten::eq", "aten::all", "aten::_is_all_true", "aten::is_nonzero"} <= set(names.filter(gone))
    assert "aten::sub" not in set(names.filter(gone))
    assert finding.saving.us > 4 * 16


def test_the_program_s_own_checks_are_not_torch_s() -> None:
    finding = only(sync_in_step.find(checked("aten::isfinite", "aten::all")))
    assert finding.title.startswith("The program checks all values of a tensor once per step")
    assert finding.snippet is None


def test_a_condition_that_checks_no_tensor_s_values_stays_a_wait() -> None:
    finding = only(sync_in_step.find(checked("aten::sum")))
    assert "waits for the device" in finding.title


BACKWARD = "autograd::engine::evaluate_function: MulBackward0"


def scored(between_ops: int = 1, reads: int = 12, kernel_us: float = 2.0, trains: bool = True) -> RankView:
    program = Program()
    program.on_cpu(BACKWARD if trains else "aten::view")
    program.op(kernel_us=300)
    for _ in range(reads):
        for _ in range(between_ops):
            program.op(kernel_us=kernel_us)
        program.read()
        program.python(20)
    for _ in range(10):
        program.op()
    return program.view()


def test_a_loop_over_results_is_one_finding_with_all_that_it_takes() -> None:
    view = scored()
    finding = only(results_on_host.find(view))
    assert "one by one, 12 in a row" in finding.title
    assert "every fiftieth step" in finding.advice
    assert "--stacks" in finding.advice
    assert finding.saving.us == pytest.approx(12 * 60, rel=0.2)
    assert not list(sync_in_step.find(view))


def test_what_l_bfgs_reads_is_a_matter_of_its_history() -> None:
    program = Program()
    program.op(kernel_us=300)
    began = program.at
    for _ in range(12):
        program.op()
        program.read()
    step = "Optimizer.step#LBFGS.step"
    program.events.append(traces.host(step, began - 1, program.at - began + 1, "user_annotation"))
    for _ in range(10):
        program.op()
    finding = only(results_on_host.find(program.view()))
    assert "history_size=10" in finding.advice
    assert finding.snippet is None


def test_whoever_serves_has_to_read_once() -> None:
    served, trained = scored(trains=False), scored()
    assert only(results_on_host.find(served)).saving.us < only(results_on_host.find(trained)).saving.us
    assert "once per step" in only(sync_in_step.find(served)).title


def test_a_state_that_is_saved_is_no_result_that_is_scored() -> None:
    program = Program()
    program.op(kernel_us=300)
    for _ in range(20):
        program.read("aten::copy_", 4 << 20)
    program.op()
    finding = only(results_on_host.find(program.view()))
    assert "copies 83.9 MB to the host by tensors, 20 in a row" in finding.title
    assert finding.advice.startswith("Save less often")


@pytest.mark.parametrize(("between_ops", "kernel_us"), [(9, 2.0), (1, 60.0)])
def test_passes_of_a_model_whose_result_is_read_are_no_loop_over_results(
    between_ops: int, kernel_us: float
) -> None:
    view = scored(between_ops, kernel_us=kernel_us)
    assert not [finding for finding in results_on_host.find(view) if finding.subject == "loop"]


def test_a_backward_on_a_thread_of_its_own_is_between_two_reads() -> None:
    program = Program()
    for _ in range(12):
        program.op()
        program.read()
        for _ in range(9):
            program.op("aten::mm")
    for event in program.events:
        if event["name"] == "aten::mm":
            event["tid"] = 2
            next(one for one in program.events if one["ts"] == event["ts"] + 4)["tid"] = 2
    assert not [finding for finding in results_on_host.find(program.view()) if finding.subject == "loop"]


def decoded(size: int = 4 << 20, python: str | None = None, loads: bool = False) -> RankView:
    program = Program()
    program.op(kernel_us=300)
    program.read("aten::to", size)
    program.on_cpu("aten::detach")
    if loads:
        program.python(1500, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation")
        program.python(200)
    else:
        program.python(1500, python)
    program.on_cpu("aten::set_")
    for _ in range(10):
        program.op()
    return program.view()


def test_what_python_makes_of_results_is_named_by_the_read() -> None:
    view = decoded()
    finding = only(results_on_host.find(view))
    assert "4.19 MB that aten::to copied" in finding.title
    assert finding.advice.startswith("Compute it on the device, and copy what comes out.")
    assert finding.saving.us == pytest.approx(1500, rel=0.05)
    assert not list(unexplained_idle.find(view))


@pytest.mark.parametrize(
    ("sends", "advice"), [(True, "copy the data as they are"), (False, "another thread")]
)
def test_what_is_prepared_for_the_device_may_be_prepared_there(sends: bool, advice: str) -> None:
    program = Program()
    for _ in range(4):
        for _ in range(10):
            program.op()
        program.python(1000)
        if sends:
            program.read("aten::to")
            program.events[-2] |= {"name": "Memcpy HtoD (Pageable -> Device)"}
    finding = only(unexplained_idle.find(program.view()))
    assert ("is then copied to it" in finding.title) == sends
    assert advice in finding.advice


def test_what_is_prepared_and_then_copied_from_ordinary_memory_is_one_saving() -> None:
    program = Program()
    for _ in range(4):
        for _ in range(10):
            program.op()
        program.python(1000)
        program.read("aten::to", size=4 << 20, us=800)
        program.events[-2] |= {"name": "Memcpy HtoD (Pageable -> Device)"}
    view = program.view()
    prepared, copied = only(unexplained_idle.find(view)), only(pageable_copy.find(view))
    assert copied.saving.us > 4 * 600
    assert prepared.saving.us == pytest.approx(4000 + copied.saving.us, rel=0.05)
    assert "page-locked" in prepared.advice


@pytest.mark.parametrize(
    ("op_us", "python_us", "copy_us", "whole"),
    [
        (3000, 1200, 500, True),
        (200, 2000, 500, True),
        (400, 1100, 5000, False),  # the copies themselves are what takes long
    ],
)
def test_what_ops_and_python_prepare_and_is_then_copied_is_one_saving(
    op_us: int, python_us: int, copy_us: int, whole: bool
) -> None:
    """The larger part names it."""
    program = Program()
    for _ in range(4):
        for _ in range(10):
            program.op()
        program.python(op_us, "aten::pad_sequence", "cpu_op")
        program.python(2)
        program.on_cpu("aten::view")
        program.python(python_us)
        program.read("aten::to", size=4 << 20, us=copy_us)
        program.events[-2] |= {"name": "Memcpy HtoD (Pageable -> Device)"}
    view = program.view()
    copied = only(pageable_copy.find(view)).saving.us
    by_op, by_python = only(host_op_stall.find(view)), only(unexplained_idle.find(view))
    both = 4 * (op_us + python_us)
    assert by_op.title.endswith("computes on the CPU what is then sent to it")
    larger, part = (by_op, by_python) if op_us > python_us else (by_python, by_op)
    assert larger.saving.us == pytest.approx(both + whole * copied, rel=0.05)
    assert ("page-locked" in larger.advice) == whole
    assert part.saving.us < larger.saving.us


@pytest.mark.parametrize(("size", "prepared"), [(1 << 20, True), (4096, False)])
def test_what_is_prepared_after_a_result_was_read_is_no_work_on_that_result(
    size: int, prepared: bool
) -> None:
    """An evolution strategy reads each member's reward, and NumPy then draws the next member's weights; an
    environment returns a small state for the action that was read."""
    program = Program()
    for _ in range(4):
        for _ in range(10):
            program.op()
        program.read()
        program.python(1000)
        for _ in range(2):
            program.read("aten::copy_", size // 2)
            program.events[-2] |= {"name": "Memcpy HtoD (Pageable -> Device)"}
    view = program.view()
    finding = only(unexplained_idle.find(view) if prepared else results_on_host.find(view))
    assert not list(results_on_host.find(view) if prepared else unexplained_idle.find(view))
    assert ("is then copied to it" in finding.title) == prepared
    assert "several" in finding.advice
    assert finding.saving.us == pytest.approx(4000, rel=0.05)


def test_copying_much_and_ops_of_the_cpu_on_it_are_part_of_the_work_on_it() -> None:
    program = Program()
    program.op(kernel_us=300)
    for size, us in ((4 << 20, 700), (8, 2)):
        program.read("aten::to", size, us=us)
    for _ in range(100):
        program.on_cpu("aten::mul")
    program.python(1000)
    program.on_cpu("aten::set_")
    for _ in range(10):
        program.op()
    view = program.view()
    finding = only(results_on_host.find(view))
    assert "works on 4.19 MB that aten::to copied from it: 1.41 ms per step, after 702" in finding.title
    assert finding.saving.us == pytest.approx(700 + 400 + 1000, rel=0.02)
    assert only(pageable_copy.find(view)).saving.us < 700


def lined(program: Program, lines: list[traces.Event], steps: int, folder: Path, text: str = "") -> RankView:
    """The program with the lines that it came by, in each of its steps."""
    trace = program.view(steps).trace
    clock = [traces.event("python_function", traces.CLOCK, at, 1) for at in (-9.0, -6.0)]
    clock += [traces.event("user_annotation", traces.CLOCK, at, 0.2) for at in (-8.5, -5.5)]
    noted = traces.trace(traces.step(9, -1, program.at + 1), *clock, *lines, *program.events)
    kept = ProgramText(files={"/home/eval.py": text})
    (folder / "kept.json").write_bytes(msgspec.json.encode(kept))
    manifest = Manifest(ranks=(RankRecord(rank=0, program="kept.json"),))
    return RankView(LoadedRun((trace,), manifest, folder=folder, lines={0: noted}), trace)


@pytest.mark.parametrize(("line", "goes_on"), [(3, True), (4, False)])
def test_the_line_that_copies_gives_memory_back(tmp_path: Path, line: int, goes_on: bool) -> None:
    """A silence after the copy, in its line; another line's is none of that."""
    program = Program()
    for _ in range(10):
        program.op()
    program.read("aten::to", size=8 << 20, us=500)
    program.events[-2] |= {"name": "Memcpy HtoD (Pageable -> Device)"}
    began = program.at
    program.python(800)
    program.op()
    places = ((3, 0, began), (line, began, program.at))
    lines = [
        traces.event("python_function", f"eval.py({number}): evaluate", start, end - start - 0.1)
        for number, start, end in places
    ]
    view = lined(program, lines, 1, tmp_path)
    silence = pageable_copy.freeing(view, view.kernels("HtoD")["launch"])
    assert silence["duration_ns"].to_list() == ([pytest.approx(800_000, rel=0.02)] if goes_on else [])


SCORED = """
def evaluate(batches):
    for pictures, labels in batches:
        logits = model(pictures.cuda()).cpu()
        {score}
"""


@pytest.mark.parametrize(
    ("score", "of_results"),
    [("meter.add(labels, logits.argmax(1))", True), ("labels = prepared(labels)", False)],
)
def test_lines_tell_work_on_results_from_what_is_prepared(
    tmp_path: Path, score: str, of_results: bool
) -> None:
    """Each batch is sent after the work on the one before, which may as well have prepared it."""
    program, lines = Program(), list[traces.Event]()
    for _ in range(2):
        begins = [program.at]
        for _ in range(10):
            program.op()
        program.read("aten::to")
        begins.append(program.at)
        program.python(1000)
        program.on_cpu("aten::set_")
        begins.append(program.at)
        program.read("aten::to", size=1 << 20)
        program.events[-2] |= {"name": "Memcpy HtoD (Pageable -> Device)"}
        for number, start, end in zip((4, 5, 3), begins, [*begins[1:], program.at], strict=True):
            place = f"eval.py({number}): evaluate"
            lines.append(traces.event("python_function", place, start, end - start - 0.1))
    view = lined(program, lines, 2, tmp_path, SCORED.format(score=score))
    finding = only(results_on_host.find(view) if of_results else unexplained_idle.find(view))
    assert not list(unexplained_idle.find(view) if of_results else results_on_host.find(view))
    assert finding.saving.us == pytest.approx(1000, rel=0.05)


def test_stacks_name_the_line() -> None:
    finding = only(results_on_host.find(decoded(python="/p/eval.py(12): peaks")))
    assert finding.source == "/p/eval.py:12"
    assert "--stacks" not in finding.advice


def test_small_results_may_be_scored_rarely() -> None:
    assert "every fiftieth step" in only(results_on_host.find(decoded(size=64))).advice


def test_loading_the_next_batch_is_no_work_on_results() -> None:
    assert not list(results_on_host.find(decoded(loads=True)))


def narrow(trains: bool) -> RankView:
    """Long kernels, and short ones that each wait for their launch; one value is read."""
    program = Program()
    for _ in range(4):
        program.op(kernel_us=400)
        for _ in range(30):
            program.op()
    program.read()
    if trains:
        program.on_cpu(BACKWARD)
    return program.view()


def test_pauses_between_launches_go_where_a_graph_can_be_captured() -> None:
    """A step of training that waits for the device keeps them."""
    served, trained = (only(launch_gap.find(narrow(trains))).saving for trains in (False, True))
    assert trained.us < served.us
    assert served.change.pause_ns == 0
    assert trained.change.pause_ns > 0


@pytest.mark.parametrize(
    ("library", "named"),
    [
        ("sklearn/metrics/_ranking.py(12): roc_auc_score", "mostly in roc_auc_score of sklearn"),
        (None, "runs Python"),
    ],
)
def test_what_a_library_computes_is_its_caller_s(library: str | None, named: str) -> None:
    program = Program()
    program.op(kernel_us=300)
    program.read()
    start = program.at
    if library is not None:
        program.events.append(traces.event("python_function", library, start + 50, 1300))
    program.python(1500, "/p/eval.py(12): score")
    for _ in range(10):
        program.op()
    finding = only(python_overhead.find(program.view()))
    assert named in finding.title
    assert finding.source == "/p/eval.py:12"
    assert finding.saving.us == pytest.approx(1500, rel=0.05)


def test_what_a_framework_does_is_not_its_caller_s() -> None:
    program = Program()
    program.op(kernel_us=300)
    program.read()
    program.events.append(
        traces.event("python_function", "torch/nn/modules/module.py(9): _call", program.at, 1490)
    )
    program.python(1500, "/p/eval.py(12): score")
    program.op()
    assert not list(python_overhead.find(program.view()))


def test_what_python_does_in_a_loop_over_results_is_the_loop_s() -> None:
    program = Program()
    program.on_cpu(BACKWARD)
    program.op(kernel_us=300)
    program.read()
    for _ in range(12):
        program.python(200)
        program.read()
    for _ in range(10):
        program.op()
    assert only(results_on_host.find(program.view())).subject == "loop"


def test_a_thread_that_serves_may_wait_for_requests_and_nothing_is_promised() -> None:
    view = decoded()
    lanes = view.trace.lanes.with_columns(tid=pl.when(pl.col("is_device")).then("tid").otherwise(pl.lit("9")))
    server = replace(view.trace, lanes=lanes)
    finding = only(results_on_host.find(RankView(LoadedRun((server,)), server)))
    assert finding.title.endswith("or waits for requests")
    assert finding.saving.us == 0
    assert finding.saving.most_us == pytest.approx(1500, rel=0.05)
    trains = replace(
        server,
        host_events=server.host_events.with_columns(name=pl.col("name").replace("aten::set_", BACKWARD)),
    )
    assert only(results_on_host.find(RankView(LoadedRun((trains,)), trains))).saving.us > 0
