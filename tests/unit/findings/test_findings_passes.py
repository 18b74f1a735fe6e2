"""Forward passes that run again, and passes that could be one: by traces made by hand."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
import pytest
from msgspec.structs import replace

import traces
from kinetoscope.analysis.events.backward import passes, recomputed
from kinetoscope.findings import in_force, savings
from kinetoscope.findings.model import Finding
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules import (
    discarded_gradients,
    needless_checkpointing,
    overhead_bound,
    split_batches,
)
from kinetoscope.recording.manifest import Manifest, OptimizerStep, RankRecord, StepTimings
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import DeviceProperties, Trace

GIB = 1 << 30
H200 = DeviceProperties(0, "NVIDIA H200", 140 * GIB, (9, 0), 132)
NODE = "autograd::engine::evaluate_function: "
ENGINE = 2  # the thread of autograd


class Program:
    """Events in the order in which a program makes them: each op 100 µs after the one before, and a kernel of
    20 µs on few blocks right after its launch."""

    def __init__(self) -> None:
        self.at, self.number, self.sequence = 0.0, 0, 0
        self.events: list[traces.Event] = []
        self.began = 0.0

    def launch(self, op: str, kernel: str, tid: int = 1, blocks: int = 8, **arguments: object) -> None:
        self.number += 1
        self.events += [
            traces.host(op, self.at, 80, tid=tid, **arguments),
            traces.call("cudaLaunchKernel", self.at + 10, 5, self.number, tid),
            traces.kernel(
                kernel, self.at + 30, 20, self.number, grid=[blocks, 1, 1], block=[128, 1, 1],
                **{"registers per thread": 32, "shared memory": 0},
            ),
        ]  # fmt: skip
        self.at += 100

    def forward(self, op: str, kernel: str, **how: int) -> int:
        self.sequence += 1
        self.launch(op, kernel, **how, **{"Sequence number": self.sequence})
        return self.sequence

    def backward(
        self,
        name: str,
        kernel: str,
        sequence: int | None,
        again: int = 0,
        blocks: int = 8,
        op: str = "aten::mm",
    ) -> None:
        """A node of autograd; ``again``: so many forward ops run first."""
        begin = self.at
        self.at += 2
        for _ in range(again):
            extra = {"Sequence number": 1000 + self.number, "Fwd thread id": 0}
            self.launch("aten::mm", "forward_gemm", ENGINE, **extra)
        if kernel:
            self.launch(op, kernel, ENGINE, blocks)
        self.at += 12
        numbered = {} if sequence is None else {"Sequence number": sequence, "Fwd thread id": 1}
        for outer, wider in ((name, 0), (NODE + name, 1)):
            start = begin + 1 - wider
            end = self.at - 10 + wider
            self.events.append(traces.host(outer, start, end - start, tid=ENGINE, **numbered))
        self.at += 10

    def zero_grad(self) -> None:
        self.events.append(traces.host("Optimizer.zero_grad#SGD.zero_grad", self.at, 5, "user_annotation"))
        self.at += 10

    def optimizer(self) -> None:
        annotation = traces.host("Optimizer.step#SGD.step", self.at, 150, "user_annotation")
        self.events.append(annotation)
        self.launch("aten::_foreach_add_", "multi_tensor_apply_kernel")
        self.at += 100

    def step(self, number: int) -> None:
        """The end of a step, which began where the one before ended."""
        self.events.append(traces.step(number, self.began, self.at - self.began))
        self.began = self.at = self.at + 1

    def view(
        self, peak: int | None = GIB, found_by: str = "optimizer", updates: tuple[OptimizerStep, ...] = ()
    ) -> RankView:
        trace: Trace = replace(traces.trace(*self.events), devices=(H200,))
        timings = StepTimings(found_by=found_by, updates=updates)
        record = RankRecord(rank=0, steps=timings, peak_memory_bytes=peak)
        return RankView(LoadedRun((trace,), manifest=Manifest(ranks=(record,))), trace)


def checkpointed(again: int = 2, marker: str = "_NoopSaveInputs", entering: str = "") -> Program:
    program = Program()
    for number in range(2):
        if entering:
            program.events.append(traces.host("aten::embedding", program.at, 10))
            program.events.append(traces.host(entering, program.at + 40, 5))
            program.at += 50
        program.events.append(traces.host(marker, program.at, 5))
        program.at += 10
        sequence = program.forward("aten::mm", "forward_gemm")
        program.backward("MmBackward0", "backward_gemm", sequence, again)
        program.optimizer()
        program.step(number)
    return program


def accumulated(batches: int = 4, blocks: int = 8) -> Program:
    program = Program()
    for number in range(2):
        for batch in range(batches):
            sequences = [program.forward("aten::mm", f"gemm_{i}", blocks=blocks) for i in range(12)]
            for i in reversed(range(12)):
                program.backward("MmBackward0", f"gradient_{i}", sequences[i], blocks=blocks)
            program.backward("torch::autograd::AccumulateGrad", "add" if batch else "", None)
        program.optimizer()
        program.step(number)
    return program


def only(found: Iterator[Finding] | object) -> Finding:
    (finding,) = found  # type: ignore[misc]
    return finding


# Backward passes.


def test_a_node_of_a_later_op_than_all_before_begins_a_pass() -> None:
    found = passes(accumulated(batches=3).view().trace)
    assert found["step"].to_list() == [0, 0, 0, 1, 1, 1]


def test_a_forward_op_inside_of_a_node_runs_again() -> None:
    again = recomputed(checkpointed(again=3).view().trace)
    assert len(again) == 2
    assert again["duration_ns"].to_list() == [301_000, 301_000]  # from the node's start to its own op


def test_a_compiled_layer_inside_of_a_node_runs_again() -> None:
    program = Program()
    program.events.append(traces.host("_NoopSaveInputs", 0, 5))
    program.at = 10
    sequence = program.forward("CompiledFunction", "triton_forward")
    region = traces.host("Torch-Compiled Region: 0/0", program.at + 2, 99, tid=ENGINE)
    graph = "## Call CompiledFxGraph abc ##"
    program.events.append(region)
    program.backward("CompiledFunctionBackward", "triton_backward", sequence, 1, op=graph)
    program.step(0)
    again = recomputed(program.view().trace)
    assert again["duration_ns"].to_list() == [101_000]  # up to the call of the graph of its own
    assert "20.0 µs of device time" in only(needless_checkpointing.find(program.view())).title


def test_the_state_of_random_numbers_is_put_back_before_a_node_does_its_own() -> None:
    program = checkpointed()
    node = next(event for event in program.events if event["name"] == "MmBackward0")
    after = node["ts"] + 1 + 2 * 100 - 10  # the last of two ops has ended
    program.events.append(traces.call("cudaStreamIsCapturing", after, 1, 0, ENGINE))
    assert recomputed(program.view().trace)["duration_ns"][0] == 201_000


def test_gradients_that_are_differentiated_are_no_recomputation() -> None:
    assert recomputed(checkpointed(marker="aten::relu").view().trace).is_empty()


# Checkpointing.


def test_checkpointing_costs_what_runs_again_where_memory_is_left() -> None:
    finding = only(needless_checkpointing.find(checkpointed().view()))
    assert "1 time per step" in finding.title
    # Two ops of a hundred, the way back to the node's own, and the layer's entry.
    assert 2 * 100 < finding.saving.us <= 2 * 100 + 20 + 60
    assert set(finding.saving.change.device["saved_ns"]) == {20_000}


def test_a_layer_is_entered_from_where_the_state_of_random_numbers_is_read() -> None:
    views = [checkpointed(entering=name).view() for name in ("aten::empty", "aten::relu")]
    own, other = (only(needless_checkpointing.find(view)).saving.us for view in views)
    assert own - other == pytest.approx(35)


def test_a_full_device_needs_its_checkpointing() -> None:
    saving = only(needless_checkpointing.find(checkpointed().view(126 * GIB))).saving
    assert saving.us == 0
    assert saving.most_us > 0


def test_where_memory_is_not_known_that_it_is_there_is_the_condition() -> None:
    known, unknown = (only(needless_checkpointing.find(program)).saving for program in (
        checkpointed().view(), checkpointed().view(None),
    ))  # fmt: skip
    assert unknown.us == known.us > 0
    assert (known.condition, unknown.condition) == ("", "all activations fit into the device's memory")


def test_nothing_runs_again_without_checkpointing() -> None:
    assert not list(needless_checkpointing.find(accumulated().view()))


# Batches.


def test_batches_that_leave_the_device_empty_become_one() -> None:
    view = accumulated().view()
    finding = only(split_batches.find(view))
    assert finding.title.startswith("Gradients of 4 batches are accumulated")
    assert 0.5 * view.own_step_us < finding.saving.us < 0.75 * view.own_step_us
    gone = finding.saving.change.device
    added = view.work.filter(pl.col("name").cast(pl.String) == "add")["id"]
    assert gone.filter(gone["id"].is_in(added.implode()))["saved_ns"].sum() == 2 * 3 * 20_000


def test_kernels_that_fill_the_device_take_as_long_together_but_for_what_each_takes_to_begin_and_end() -> (
    None
):
    gone = only(split_batches.find(accumulated(blocks=100_000).view())).saving.change.device
    # Additions to gradients go; of four kernels that become one three begin and end no more.
    assert set(gone["saved_ns"]) == {20_000, 3 * split_batches.FIXED_NS}
    few = only(split_batches.find(accumulated(blocks=8).view())).saving.change.device
    assert few["saved_ns"].sum() > 2 * gone["saved_ns"].sum()


def test_as_many_become_one_as_fit() -> None:
    assert "memory has room for 2 at once" in only(split_batches.find(accumulated().view(60 * GIB))).title
    assert not list(split_batches.find(accumulated().view(80 * GIB)))
    unknown = only(split_batches.find(accumulated().view(None)))
    assert unknown.saving.condition == "the larger batch fits into the device's memory"
    assert unknown.saving.us > 0
    assert "memory has room" not in unknown.title


def test_one_batch_a_step_is_one() -> None:
    assert not list(split_batches.find(accumulated(batches=1).view()))


def test_a_discriminators_two_passes_with_a_generator_between_them_are_not_joined() -> None:
    program = Program()
    for number in range(2):
        for other in (0, 12):
            for i in range(other):
                program.launch("aten::mm", f"generator_{i}")
            sequences = [program.forward("aten::mm", f"gemm_{i}") for i in range(6)]
            for i in reversed(range(6)):
                program.backward("MmBackward0", f"gradient_{i}", sequences[i])
        program.optimizer()
        program.step(number)
    assert not list(split_batches.find(program.view()))


def calls(*more: int, blocks: tuple[int, ...] = (8,)) -> RankView:
    """Steps that are calls of one module: 20 kernels, and so many after it."""
    program = Program()
    for number, after in enumerate(more):
        for i in range(20):
            program.launch("aten::mm", f"gemm_{i}", blocks=blocks[number % len(blocks)])
        for _ in range(after):
            program.launch("aten::add", "add")
        program.step(number)
    return program.view(found_by="module")


def test_calls_of_a_module_in_a_row_may_be_one() -> None:
    finding = only(split_batches.find(calls(0, 3, 0, 3)))
    assert finding.title.startswith("2 calls of the module in a row launch the same 20 kernels")
    assert finding.saving.condition == "no call needs another's result"
    assert finding.saving.us > 0


@pytest.mark.parametrize("by_caller", [0, 2])
def test_what_the_caller_computes_between_calls_is_what_the_next_one_needs(by_caller: int) -> None:
    view = calls(0, 3, 0, 3)
    net = " ".join(["aten::mm"] * (20 - by_caller))
    lines = [
        (f"Net/{net}", "run.py(2): forward"),
        ("aten::mm", "run.py(9): sample"),
        ("aten::mm", "run.py(9): sample"),
    ]
    run = replace(view.run, lines={0: traces.noted(*lines[: 1 + by_caller])})
    assert bool(list(split_batches.find(RankView(run, view.trace)))) == (not by_caller)


def jacobian(rows: int, blocks: int = 8) -> Program:
    """Steps that take a gradient of one graph of three ops for each row, and then one of the loss."""
    program = Program()
    for number in range(2):
        sequences = [program.forward("aten::mm", f"gemm_{i}") for i in range(3)]
        for _ in range(rows + 1):
            program.forward("aten::sum", "sum")
            program.backward("SumBackward0", "expand", program.sequence)
            for i in reversed(range(3)):
                program.backward("MmBackward0", f"gradient_{i}", sequences[i], blocks=blocks)
        program.optimizer()
        program.step(number)
    return program


def test_gradients_of_one_graph_row_by_row_are_one_batched_pass() -> None:
    view = jacobian(12).view()
    found = only(split_batches.find(view))
    assert found.title == (
        "Gradients of one graph are taken 12 times, node by node: 33 nodes per step run again"
    )
    assert "is_grads_batched=True" in (found.snippet or "")
    # Eleven of twelve rows' three nodes, of 112 µs each; what is between them stays, and so does the loss's.
    assert 0.8 * 33 * 102 < found.saving.us <= 33 * 130
    gone = found.saving.change.device
    assert gone["saved_ns"].sum() == pytest.approx(2 * 33 * 20_000, rel=0.01)


def test_kernels_of_one_graph_that_fill_the_device_take_as_long_in_one_pass() -> None:
    few, full = (only(split_batches.find(jacobian(12, blocks).view())).saving for blocks in (8, 100_000))
    assert full.change.device["saved_ns"].sum() < 0.5 * few.change.device["saved_ns"].sum()
    assert 0 < full.us <= few.us


def losses(count: int, *, between: int = 1, updates: bool = False, cleared: bool = False) -> Program:
    """Steps that go backward through one graph of three ops for each of several losses, which add to what
    gradients they find, unless these are ``cleared``."""
    program = Program()
    for number in range(2):
        sequences = [program.forward("aten::mm", f"gemm_{i}") for i in range(3)]
        for _ in range(count):
            for _ in range(between):
                program.launch("aten::fill_", "fill")
            for i in reversed(range(3)):
                program.backward("MmBackward0", f"gradient_{i}", sequences[i])
                program.backward(
                    "torch::autograd::AccumulateGrad", "" if cleared else "add", None, op="aten::add_"
                )
            if updates:
                program.optimizer()
        program.optimizer()
        program.step(number)
    return program


def test_losses_of_one_graph_are_added_up_before_they_go_backward() -> None:
    found = only(split_batches.find(losses(4).view()))
    assert found.title == ("4 losses of one graph each go backward through it: 9 nodes per step run again")
    assert found.saving.condition == ""
    # Three of four passes: three nodes and three additions of 20 µs.
    assert found.saving.change.device["saved_ns"].sum() == pytest.approx(2 * 3 * 6 * 20_000)


def test_losses_of_one_graph_go_backward_once_on_a_cpu_too() -> None:
    program = losses(4)
    program.events = traces.on_cpu(program.events)
    found = only(split_batches.find(program.view()))
    assert found.title == ("4 losses of one graph each go backward through it: 9 nodes per step run again")
    # Three of four passes, of three nodes and three additions each: their ops of 80 µs, and what is around.
    assert found.saving.us == pytest.approx(3 * 6 * 105, rel=0.01)


def test_losses_whose_own_gradients_may_be_read_are_added_up_where_they_are_not() -> None:
    found = only(split_batches.find(losses(4, between=9).view()))
    assert found.saving.condition == "no loss's own gradients are read"


def test_losses_whose_gradients_are_cleared_in_between_may_each_be_of_a_network() -> None:
    found = only(split_batches.find(losses(4, cleared=True).view()))
    assert found.title == ("4 losses of one graph each go backward through it: 9 nodes per step run again")
    assert found.saving.condition == "each loss trains a network of its own"
    # Of three of four passes, gradients of three weights each: three quarters.
    assert found.saving.change.device["saved_ns"].sum() == pytest.approx(0.75 * 2 * 3 * 3 * 20_000)
    assert "inputs=" in (found.snippet or "")
    # Who reads them in between, such as to project them on each other, needs them all.
    assert not list(split_batches.find(losses(4, between=9, cleared=True).view()))


def test_losses_between_which_an_optimizer_steps_are_not_added_up() -> None:
    assert not [one for one in split_batches.find(losses(4, updates=True).view()) if one.subject == "losses"]


def test_a_penalty_and_a_loss_of_one_graph_are_no_rows_of_it() -> None:
    assert not list(split_batches.find(jacobian(2).view()))
    assert not list(split_batches.find(jacobian(3).view()))


def test_calls_that_follow_each_other_without_end_need_each_others_results() -> None:
    assert not list(split_batches.find(calls(0, 0, 0, 0)))
    assert not list(split_batches.find(calls(0, 0, 0, 0, 0, 3)))


def test_a_prefill_is_no_call_like_the_decoding_after_it() -> None:
    assert not list(split_batches.find(calls(0, 3, 0, 3, blocks=(64, 8))))


# Whole steps as graphs, and larger batches.


def test_no_graph_holds_a_step_in_which_the_host_decides() -> None:
    advice = in_force.fewer_launches(accumulated().view()).advice
    assert "accumulates the gradients of 4 batches" in advice
    assert "or replay the whole step" not in advice
    assert "random numbers' state" in in_force.fewer_launches(checkpointed().view()).advice
    assert "or replay the whole step" in in_force.fewer_launches(accumulated(batches=1).view()).advice


@pytest.mark.parametrize(
    ("program", "part"), [(accumulated(batches=1), 1.0), (accumulated(), 0.5), (checkpointed(), 0.5)]
)
def test_where_no_graph_holds_a_step_half_of_its_waiting_for_launches_is_promised(
    program: Program, part: float
) -> None:
    view = program.view()
    whole = savings.captured(view, view.idle("launch-bound"), "").us
    found = only(overhead_bound.find(view))
    assert found.saving.us == pytest.approx(part * whole, rel=0.1)
    assert ("CUDA graph of the whole step is not possible" in found.advice) == (part < 1)
    assert part == 1 or found.saving.most_us == pytest.approx(whole, rel=0.1)


def test_larger_batches_are_said_to_be_worth_what_the_memory_allows() -> None:
    assert "at 2 times the batch" in in_force.larger_batch(accumulated(1).view())
    assert "at 4" in in_force.larger_batch(accumulated(1).view())
    assert in_force.larger_batch(accumulated(1).view(peak=80 * GIB)) == ""
    assert in_force.larger_batch(accumulated(1).view(peak=None)) == ""


# Gradients that the next update does not use.


def adversarial(*backwards: tuple[str, ...], kept: str = "") -> Program:
    """Two steps, each of so many updates, with the nets that a backward pass before each goes through: two
    layers each, whose products take 20 µs and whose gradients are added in 20 µs. Nobody clears the gradients
    of the net that is ``kept``."""
    program = Program()
    for number in range(2):
        for nets in backwards:
            layers = [f"{net}{i}" for net in nets for i in range(2)]
            sequences = [program.forward("aten::mm", layer) for layer in layers]
            for layer, sequence in reversed(list(zip(layers, sequences, strict=True))):
                program.backward("MmBackward0", f"gemm of {layer}", sequence)
                op = "aten::add_" if kept and layer.startswith(kept) else "aten::detach"
                program.backward("torch::autograd::AccumulateGrad", "add", None, op=op)
            program.optimizer()
        program.step(number)
    return program


def updates(*gradients: int) -> tuple[OptimizerStep, ...]:
    return tuple(OptimizerStep("SGD", number) for number in gradients)


GENERATOR_LAST = (("discriminator",), ("generator", "discriminator"))


@pytest.mark.parametrize("had", [(2, 2), (2, 4)])
def test_a_generator_s_pass_computes_gradients_of_the_discriminator(had: tuple[int, int]) -> None:
    generator = ("generator", "generator") if had[1] == 4 else ("generator",)
    program = adversarial(("discriminator",), (*generator, "discriminator"))
    # The program's first steps may have been looked at from either update on.
    for order in (had, had[::-1]):
        view = program.view(updates=updates(*order))
        finding = only(discarded_gradients.find(view))
        assert finding.title.startswith(f"2 of {sum(had) + 2} gradients per step")
        gone = finding.saving.change.device.join(view.work, on="id").sort("id")
        names = gone["name"].cast(pl.String)
        assert names.to_list() == ["gemm of discriminator1", "add", "gemm of discriminator0", "add"] * 2
        assert gone["saved_ns"].to_list() == [10_000, 20_000] * 4


def test_gradients_that_nobody_uses_take_the_time_of_their_ops_on_a_cpu() -> None:
    program = adversarial(("discriminator",), ("generator", "discriminator"))
    program.events = traces.on_cpu(program.events)
    finding = only(discarded_gradients.find(program.view(updates=updates(2, 2))))
    assert finding.title.startswith("2 of 6 gradients per step")
    # Half of two nodes with a product each, and of what the engine takes until the next.
    assert finding.saving.us == pytest.approx(2 * 124 / 2, rel=0.01)


@pytest.mark.parametrize(
    ("backwards", "had"),
    [
        ((("net",),), (2,)),
        ((("actor",), ("critic",)), (2, 2)),
        ((("actor", "critic"), ()), (2, 2)),  # one backward pass for two optimizers
        ((("net",), ("net",)), (2,)),  # accumulated twice for one update: the updates are others
        (GENERATOR_LAST, ()),  # nobody looked at the updates
        (GENERATOR_LAST, (2, 4)),  # the optimizer of the generator has both
    ],
)
def test_gradients_that_an_optimizer_uses_are_not_discarded(
    backwards: tuple[tuple[str, ...], ...], had: tuple[int, ...]
) -> None:
    assert not list(discarded_gradients.find(adversarial(*backwards).view(updates=updates(*had))))


def test_an_optimizer_that_steps_as_a_step_begins_uses_the_gradients_of_the_step_before() -> None:
    program = Program()
    for number in range(3):
        program.optimizer()  # the decoder's: a step ends with the encoder's
        sequences = [program.forward("aten::mm", f"layer{i}") for i in range(4)]
        for i in reversed(range(4)):
            program.backward("MmBackward0", f"gemm of {i}", sequences[i])
            program.backward("torch::autograd::AccumulateGrad", "add", None, op="aten::detach")
        program.optimizer()
        program.step(number)
    for had in ((2, 2), (1, 3)):
        assert not list(discarded_gradients.find(program.view(updates=updates(*had))))


def test_of_gradients_that_no_optimizer_has_the_cheaper_ones_are_promised() -> None:
    # A body of two layers under a head of two: which of them is trained shows in no trace.
    program = adversarial(("body", "head"))
    program.events = [
        event | {"dur": 60} if "gemm of body" in event["name"] else event for event in program.events
    ]
    view = program.view(updates=updates(2))
    finding = only(discarded_gradients.find(view))
    gone = finding.saving.change.device.join(view.work, on="id").sort("id")
    assert set(gone["name"].cast(pl.String)) == {"gemm of head0", "gemm of head1", "add"}


@pytest.mark.parametrize("nets", [("teacher", "student"), ("teacher", "student", "regressor")])
def test_the_whole_backward_pass_of_a_teacher_goes(nets: tuple[str, ...]) -> None:
    # The optimizer clears the gradients of its own weights: those of the teacher add up, step after step.
    view = adversarial(nets, kept="teacher").view(updates=updates(2 * len(nets) - 2))
    finding = only(discarded_gradients.find(view))
    assert finding.title.startswith(f"2 of {2 * len(nets)} gradients per step")
    assert "torch.no_grad()" in finding.advice + finding.snippet
    gone = finding.saving.change.device.join(view.work, on="id").sort("id")
    names = gone["name"].cast(pl.String)
    assert names.to_list() == ["gemm of teacher1", "add", "gemm of teacher0", "add"] * 2
    assert gone["saved_ns"].to_list() == [20_000] * 8


def test_behind_a_trained_net_only_gradients_of_weights_go() -> None:
    program = adversarial(("generator", "features"), kept="features")
    finding = only(discarded_gradients.find(program.view(updates=updates(2))))
    assert "torch.no_grad()" not in finding.advice + finding.snippet
    assert finding.saving.change.device["saved_ns"].to_list() == [10_000, 20_000] * 4


def test_a_net_of_the_loss_that_nothing_trains_goes_with_the_discriminator() -> None:
    program = adversarial(("discriminator",), ("generator", "features", "discriminator"))
    view = program.view(updates=updates(2, 2))
    finding = only(discarded_gradients.find(view))
    assert finding.title.startswith("4 of 8 gradients per step")
    gone = finding.saving.change.device.join(view.work, on="id")["name"].cast(pl.String)
    assert {name for name in gone if name != "add"} == {
        f"gemm of {net}{layer}" for net in ("features", "discriminator") for layer in range(2)
    }


def attacked(clears: bool = True, uses: str = "", repeated: int = 1) -> Program:
    """Two steps, each of three passes of an attack on the input, whose gradients are added to those before,
    and one pass of training, for which they are cleared. ``uses``: an op that runs on the gradients after
    each pass of the attack, so often."""
    program = Program()
    for number in range(2):
        for attack in (True, True, True, False):
            if clears and not attack:
                program.zero_grad()
            sequences = [program.forward("aten::mm", f"layer{layer}") for layer in range(4)]
            for layer in reversed(range(4)):
                program.backward("MmBackward0", f"gemm{layer}", sequences[layer])
                add = "add" if attack or not clears else ""
                program.backward("torch::autograd::AccumulateGrad", add, None, op="aten::add_")
            for _ in range(repeated if attack and uses else 0):
                program.launch(uses, "elementwise_kernel")
        program.optimizer()
        program.step(number)
    return program


@pytest.mark.parametrize("known", [True, False])
def test_the_passes_of_an_attack_compute_gradients_that_are_cleared(known: bool) -> None:
    # Without a record of the updates, or of a call of zero_grad: either tells.
    program = attacked()
    if known:
        program.events = [event for event in program.events if "zero_grad" not in event["name"]]
    view = program.view(updates=updates(4) if known else ())
    finding = only(discarded_gradients.find(view))
    assert finding.title.startswith("The gradients of 3 of 4 backward passes per step")
    gone = finding.saving.change.device.join(view.work, on="id")
    assert len(gone) == 2 * 3 * 8
    assert set(gone["saved_ns"]) == {10_000, 20_000}
    assert not list(split_batches.find(view))


@pytest.mark.parametrize(
    "program",
    [
        attacked(clears=False),  # accumulated
        attacked(uses="aten::mul", repeated=6),  # a search for flat minima moves each weight by its gradient
        attacked(uses="aten::_foreach_mul"),
    ],
)
def test_gradients_that_are_added_up_or_computed_with_are_not_cleared(program: Program) -> None:
    assert not list(discarded_gradients.find(program.view(updates=updates(4))))


def test_of_a_convolution_s_products_those_named_after_the_weights_gradient_go() -> None:
    program = attacked()
    program.events = [
        event | {"name": f"sm90_{'w' if event['name'][4] in '02' else 'd'}grad_implicit_gemm"}
        if event["name"].startswith("gemm")
        else event
        for event in program.events
    ]
    view = program.view(updates=updates(4))
    finding = only(discarded_gradients.find(view))
    gone = finding.saving.change.device.join(view.work, on="id").filter(pl.col("saved_ns") > 0)
    assert set(gone["name"].cast(pl.String)) == {"sm90_wgrad_implicit_gemm", "add"}
