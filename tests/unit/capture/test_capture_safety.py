"""Nothing of ours touches the device while a graph is captured or gradients are computed."""

from __future__ import annotations

import gc
import inspect
import itertools
import pickle
import sys
import threading
import warnings
import weakref
from collections.abc import Hashable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
import torch.overrides
from torch.optim.optimizer import register_optimizer_step_post_hook

from fake_program import FakeDevice, Program
from kinetoscope.capture import torch_private
from kinetoscope.capture.hooks.calls import CallWatch, EveryCallWatch, ReturnWatch
from kinetoscope.capture.hooks.imports import ImportWatch
from kinetoscope.capture.options import Options
from kinetoscope.capture.recorder import provisional
from kinetoscope.capture.recorder.phases import RecordSteps, TimeBefore
from kinetoscope.capture.recorder.profiler import Captures
from kinetoscope.capture.recorder.provisional import Budget, Decisions, MainThread, is_delicate
from kinetoscope.capture.steps.detector import Signal, StepDetector
from kinetoscope.capture.steps.sources import Sources

TOUCHES = ("prepare", "start", "stop", "export", "synchronize", "release")


def touched(device: FakeDevice) -> list[str]:
    return [line for line in device.log if any(word in line.split() for word in TOUCHES)]


# The recorder, at every step of its way.


@pytest.mark.parametrize("steps", range(1, 60))
def test_what_a_graph_captures_is_no_step_and_nothing_is_touched(steps: int) -> None:
    device = FakeDevice(light=True)
    program = Program(device=device)
    program.steps(steps, 0.1)
    before, index = touched(device), program.recorder.detector.index
    device.capturing = "here"
    program.steps(10, 0.1)
    assert touched(device) == before
    assert program.recorder.detector.index == index


@pytest.mark.parametrize("steps", range(1, 60))
def test_nothing_is_touched_while_another_thread_captures_and_all_is_recorded_later(steps: int) -> None:
    device = FakeDevice(light=True)
    program = Program(device=device)
    program.steps(steps, 0.1)
    before = touched(device)
    device.capturing = "elsewhere"
    program.steps(5, 0.1)
    assert touched(device) == before
    device.capturing = None
    program.steps(440, 0.1)
    timings = program.recorder.timings()
    assert program.recorder.done
    assert timings.recorded is not None
    assert all(second == pytest.approx(0.1) for second in timings.profiled_s)
    assert all(second == pytest.approx(0.1) for second in timings.unprofiled_s)
    assert [line.split()[1] for line in device.log if line.split()[1:2] in (["start"], ["stop"])] == [
        "start",
        "stop",
    ] * 3


@pytest.mark.parametrize("why", ["here", "elsewhere"])
def test_a_spent_budget_waits_until_no_graph_is_captured(why: str) -> None:
    device = FakeDevice()
    program = Program(device=device)
    device.capturing = why
    program.recorder.budget_spent("spent")
    assert not any("stop" in line for line in device.log)
    device.capturing = None
    program.recorder.budget_spent("spent")
    assert any("stop" in line for line in device.log)


def test_a_spent_budget_ends_nothing_from_its_own_thread() -> None:
    program = Program()
    program.recorder.main_thread.soon = lambda: None  # the main thread never gets to it
    thread = threading.Thread(target=program.recorder.budget_spent, args=("spent",))
    thread.start()
    thread.join()
    assert program.recorder.provisional.running
    program.steps(1, kind="module")  # but the program's own thread does
    assert not program.recorder.provisional.running


def test_with_care_the_first_steps_are_not_recorded() -> None:
    program = Program(Options(careful=True))
    program.until(TimeBefore)
    assert touched(program.device) == ["synchronize"]  # a device without a clock, which is waited for
    program.until(RecordSteps)
    assert "full1 start" in program.device.log
    program.steps(40)
    assert program.recorder.timings().recorded is not None


def test_with_a_seed_recordings_begin_and_end_anywhere_and_are_whole() -> None:
    seen = set[tuple[int, int]]()
    for seed in range(20):
        device = FakeDevice(light=True)
        program = Program(device=device, decisions=Decisions(seed))
        program.steps(200, 0.1)
        timings = program.recorder.timings()
        assert program.recorder.done
        assert timings.recorded is not None
        seen.add((timings.first_step or 0, len(timings.profiled_s)))
    assert len(seen) > 10


@pytest.mark.parametrize("at", range(1, 40, 3))
def test_an_interrupt_in_our_own_code_is_the_program_s_and_ends_the_recording(at: int) -> None:
    program = Program()
    program.steps(at, 0.1)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    program.device.synchronize = interrupted
    program.device.export = interrupted  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        program.steps(60, 0.1)
    assert program.recorder.done
    program.steps(10, 0.1)


# Captures and backward passes of torch.


class Graph:
    """As torch's: captures between two calls, of which the second may fail."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def capture_begin(self, pool: object = None, *, capture_error_mode: str = "global") -> str:
        return capture_error_mode

    def capture_end(self) -> None:
        if self.fails:
            raise RuntimeError("operation failed due to a previous error during capture")


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Iterator[Captures]:
    monkeypatch.setattr(torch_private, "graph_classes", lambda: iter([Graph]))
    captures, before = Captures(), dict(vars(Graph))
    captures.install()
    yield captures
    captures.remove()
    assert dict(vars(Graph)) == before


@pytest.mark.parametrize("fails", [False, True])
def test_a_capture_lasts_from_its_beginning_to_its_end_even_if_that_fails(
    captures: Captures, fails: bool
) -> None:
    graph = Graph(fails)
    assert captures.occupied() is None
    assert graph.capture_begin(capture_error_mode="relaxed") == "relaxed"
    assert captures.occupied() == "here"
    if fails:
        with pytest.raises(RuntimeError):
            graph.capture_end()
    else:
        graph.capture_end()
    assert captures.occupied() is None


def test_another_thread_s_capture_is_elsewhere(captures: Captures) -> None:
    begun, end = threading.Event(), threading.Event()

    def capture() -> None:
        graph = Graph()
        graph.capture_begin()
        begun.set()
        end.wait()
        graph.capture_end()

    thread = threading.Thread(target=capture)
    thread.start()
    begun.wait()
    assert captures.occupied() == "elsewhere"
    end.set()
    thread.join()
    assert captures.occupied() is None


def test_a_backward_pass_is_noticed_in_its_own_thread(captures: Captures) -> None:
    inside: list[str | None] = []
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda gradient: inside.append(captures.occupied()))
    x.sum().backward()
    assert inside == ["here"]
    assert captures.occupied() is None


def test_torch_has_the_classes_that_are_watched() -> None:
    assert torch.cuda.CUDAGraph in set(torch_private.graph_classes())


def test_a_capture_begins_once_whoever_touches_the_device_is_done(captures: Captures) -> None:
    begun = threading.Event()

    def capture() -> None:
        graph = Graph()
        graph.capture_begin()
        begun.set()
        graph.capture_end()

    thread = threading.Thread(target=capture)
    with captures.lock:
        thread.start()
        assert not begun.wait(0.2)
    assert begun.wait(5)
    thread.join()


def test_looking_at_other_threads_keeps_nothing_alive() -> None:
    from kinetoscope.capture.recorder import cupti

    def step() -> weakref.ref[torch.Tensor]:
        loss = torch.ones(2, requires_grad=True).sum()
        cupti._pythons_wait()
        return weakref.ref(loss)

    gc.collect()
    gc.disable()
    try:
        assert step()() is None
    finally:
        gc.enable()


# What stands in for methods of torch's.


@pytest.mark.parametrize(
    ("compiles", "tries", "spent"), [(False, True, True), (False, False, False), (True, True, False)]
)
def test_the_beginning_is_not_recorded_for_long_while_cudnn_tries_out_algorithms(
    monkeypatch: pytest.MonkeyPatch, compiles: bool, tries: bool, spent: bool
) -> None:
    monkeypatch.setattr(provisional, "TRIED_S", 0.02)
    monkeypatch.setattr(provisional, "LOOK_EVERY_S", 0.005)
    why, looks = list[str](), iter(range(20))

    def running() -> bool:
        return not why and next(looks, None) is not None

    Budget(running, lambda: compiles, lambda: tries, why.append, Options(), Decisions())._look()
    assert [one.startswith("torch.backends.cudnn.benchmark was on for") for one in why] == [True] * spent


class Owner:
    def call(self) -> str:
        return "as it was"


def test_what_the_program_puts_in_a_method_s_place_stays_there() -> None:
    watch, seen = CallWatch(Owner, "call", lambda owner: seen.append(owner)), list[Any]()
    original = Owner.call
    watch.install()
    Owner.call = lambda self: "the program's"  # type: ignore[method-assign]
    watch.remove()
    assert Owner().call() == "the program's"
    watch.install()
    assert Owner().call() == "the program's"
    watch.remove()
    assert Owner().call() == "the program's"
    assert len(seen) == 1
    Owner.call = original  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", [CallWatch, ReturnWatch])
def test_what_a_class_s_dict_holds_is_called_and_pickled_as_the_method(kind: type[CallWatch]) -> None:
    """cloudpickle, by which many programs hand classes of ``__main__`` to other processes, takes it there."""
    watch, method = kind(Owner, "call", lambda owner: None), Owner.call
    watch.install()
    found = vars(Owner)["call"]
    watch.remove()
    assert found is watch
    assert found(Owner()) == Owner().call()
    assert pickle.loads(pickle.dumps(found)) is method


def test_a_watched_call_of_modules_is_mocked_as_ever() -> None:
    watch = CallWatch(torch.nn.Module, "__call__", lambda module: None)
    watch.install()
    try:
        with mock.patch.object(torch.nn.Module, "__call__", autospec=True, return_value="mocked"):
            assert torch.nn.ReLU()(torch.ones(1)) == "mocked"
        assert torch.nn.ReLU()(torch.ones(1)).item() == 1.0
    finally:
        watch.remove()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("below", [False, True])
@pytest.mark.parametrize("kind", [CallWatch, EveryCallWatch])
def test_several_watches_of_one_method_all_see_its_calls(
    kind: type[CallWatch], order: tuple[int, ...], below: bool
) -> None:
    class Owner:
        def call(self) -> str:
            return "called"

    class Below(Owner): ...

    watched, seen = Below if below else Owner, list[int]()
    original = Owner.call
    watches = [kind(watched, "call", lambda _, number=n: seen.append(number)) for n in range(3)]
    for watch in (*watches, watches[0]):
        watch.install()
    there = {0, 1, 2}
    for number in order:
        seen.clear()
        assert watched().call() == "called"
        assert sorted(seen) == sorted(there)
        assert watched.call is original
        watches[number].remove()
        assert not watches[number].installed
        there.remove(number)
    assert watched().call() == "called"
    assert ("call" in vars(Below)) is False
    assert vars(Owner)["call"] is original


def test_each_call_of_a_method_that_a_program_keeps_is_seen_while_it_is_watched() -> None:
    frames, seen = list[str](), list[Any]()

    class Inner(Owner):
        def call(self) -> str:
            frame = inspect.currentframe()
            frames.append(frame.f_back.f_code.co_name if frame and frame.f_back else "")
            return super().call()

    owner = Inner()
    watch, over = EveryCallWatch(Inner, "call", seen.append), EveryCallWatch(Inner, "call", seen.append)
    watch.install()
    kept = owner.call
    assert [kept(), kept(), owner.call()] == ["as it was"] * 3
    assert seen == [owner] * 3
    over.install()  # later than what the program keeps was looked up
    kept()
    assert len(seen) == 5
    over.remove()
    watch.remove()
    assert kept() == "as it was"
    assert len(seen) == 5
    watch.install()
    kept()
    watch.remove()
    assert len(seen) == 6
    # No frame of ours is on the stack while it runs.
    assert set(frames) == {"test_each_call_of_a_method_that_a_program_keeps_is_seen_while_it_is_watched"}


@pytest.mark.parametrize("kind", [CallWatch, EveryCallWatch, ReturnWatch])
def test_a_failure_of_ours_is_none_of_the_method_s(kind: type[CallWatch]) -> None:
    def fail(owner: object) -> None:
        raise ValueError("ours")

    watch = kind(Owner, "call", fail)
    watch.install()
    try:
        assert Owner().call() == "as it was"
    finally:
        watch.remove()


class Below(Owner):
    pass


def test_a_method_that_is_inherited_is_the_program_s_latest() -> None:
    watch, original = CallWatch(Below, "call", lambda owner: None), Owner.call
    watch.install()
    Owner.call = lambda self: "put there since"  # type: ignore[method-assign]
    try:
        assert Below().call() == "put there since"
    finally:
        watch.remove()
        Owner.call = original  # type: ignore[method-assign]
    assert "call" not in vars(Below)


def test_an_optimizer_s_hooks_may_end_a_recording_and_the_program_s_own_still_run() -> None:
    ticks, after = list[str](), list[str]()
    sources = Sources(lambda signal, key, name: (ticks.append(name), sources.remove())[0], ImportWatch())
    sources.install()
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    handles = [register_optimizer_step_post_hook(lambda *_: after.append("any")) for _ in range(2)]
    try:
        weight.sum().backward()
        optimizer.step()
        assert (ticks, after) == (["SGD"], ["any", "any"])
    finally:
        for handle in handles:
            handle.remove()
        sources.remove()
    optimizer.step()
    assert ticks == ["SGD"]


def test_neither_modules_nor_their_methods_are_called() -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(2, 2)
            self.itself = [self]

        def __hash__(self) -> int:
            raise AssertionError("hashed")

        def parameters(self, recurse: bool = True) -> Any:
            raise AssertionError("called")

    heard: list[object] = []

    class Heard(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            heard.append(function)
            return function(*args, **(kwargs or {}))

    odd = Odd()
    with Heard():
        assert torch_private.trains(odd)
    assert not heard
    assert not torch_private.trains(torch.nn.Linear(2, 2).requires_grad_(False))
    assert not torch_private.trains(torch.nn.ReLU())


@pytest.mark.parametrize("name", ["profile", "emit_nvtx", "emit_itt"])
def test_everything_that_takes_torch_s_profiler_is_known(name: str) -> None:
    assert getattr(torch.autograd.profiler, name) in set(torch_private.profilers())


# Memory, warnings, the environment.


def test_calls_of_a_model_wait_for_its_optimizer_once_that_has_been_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rollout calls the policy thousands of times before the first update: its calls are not the steps."""

    signals = list[str]()
    sources = Sources(lambda signal, key, name: signals.append(signal), ImportWatch())
    sources.install()
    made, optimizer_made = list[bool](), torch_private.optimizer_made  # other tests make optimizers too
    monkeypatch.setattr(torch_private, "optimizer_made", lambda: bool(made))
    try:
        policy = torch.nn.Linear(2, 2)
        with torch.no_grad():
            policy(torch.ones(1, 2))
        optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
        made.append(optimizer_made())
        with torch.no_grad():
            policy(torch.ones(1, 2))
            torch.nn.ReLU()(torch.ones(2))  # an optimizer trains nothing of it
        policy(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert signals == [
            "idle module", "acting module", "module", "optimizer's module", "optimizer"
        ]  # fmt: skip
        monkeypatch.setattr("kinetoscope.capture.steps.sources.OPTIMIZER_PATIENCE_S", 0.0)
        policy(torch.ones(1, 2))
        assert signals[-1] == "training module"
    finally:
        sources.remove()


@pytest.mark.parametrize("calls", ["modules", "reads"])
@pytest.mark.parametrize("iterations", [20, 200])
def test_calls_in_the_closure_of_an_optimizer_wait_for_its_step(
    calls: str, iterations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call leads before, patience over or not; in a step of very many calls one does."""
    for patience in ("WAITS_PATIENCE_S", "OPTIMIZER_PATIENCE_S"):
        monkeypatch.setattr(f"kinetoscope.capture.steps.sources.{patience}", 0.0)
    detector = StepDetector()
    led = list[str]()

    def ticked(signal: Signal, key: Hashable, name: str) -> None:
        boundary = detector.tick(signal, key, 0, name)
        if boundary is not None and boundary.role == "leads":
            led.append(boundary.source[0])

    sources = Sources(ticked, ImportWatch())
    sources.install()
    try:
        network, loss = torch.nn.Linear(2, 2), torch.nn.MSELoss()
        optimizer = torch.optim.LBFGS(
            network.parameters(), 1e-6, max_iter=iterations, tolerance_grad=0, tolerance_change=0
        )

        def closure() -> float:
            optimizer.zero_grad()
            if calls == "modules":
                error = loss(network(torch.ones(1, 2)), torch.zeros(1, 2))
            else:
                error = (network.weight - 1).square().mean()
                sources._waits(error)  # pyright: ignore[reportPrivateUsage]
            error.backward()
            return error.item()

        optimizer.step(closure)
    finally:
        sources.remove()
    inside = {"modules": "module", "reads": "loop"}[calls]
    assert led == (["optimizer"] if iterations == 20 else [inside, "optimizer"])


def test_a_cell_that_is_trained_a_hundred_times_a_step_is_heard_once() -> None:
    heard = list[bool]()
    sources = Sources(
        lambda *tick: None, ImportWatch(), model_called=lambda training: heard.append(training) or training
    )
    sources.install()
    try:
        cell = torch.nn.RNNCell(2, 2)
        optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
        sources.trained = cell
        sources.follow(("optimizer", id(optimizer)))
        for _ in range(3):
            state = torch.zeros(1, 2)
            with torch.no_grad():
                state = cell(torch.ones(1, 2), state)
            for _ in range(100):
                state = cell(torch.ones(1, 2), state)
            state.sum().backward()
            optimizer.step()
        assert heard == [False, True] * 3
    finally:
        sources.remove()


def test_a_module_that_is_made_anew_is_the_one_of_its_class_that_is_gone() -> None:
    """As where an application loads its model for each request."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    keys, data = list[Hashable](), torch.ones(1, 2)
    sources = Sources(lambda signal, key, name: keys.append(key), ImportWatch())
    sources.install()
    try:
        kept = list[torch.nn.Module]()  # so that no identity comes again
        for _ in range(3):
            net = Net().eval()
            net(data)
            del net
            gc.collect()
            kept.append(Net())
        first = keys[0]
        assert keys == [first] * 3
        alive, other = Net().eval(), Net().eval()
        alive(data), other(data)
        assert keys[3:] == [first, id(other)]
        del other
        gc.collect()
        alive(data)
        del keys[:]
        sources.module = alive
        sources.follow(("module", sources._key(alive)))
        alive(data)
        del alive
        gc.collect()
        torch.nn.Sequential(kept[0])(data)  # inside of another it is none of the program's calls
        kept[1].eval()(data)
        kept[2].eval()(data)
        assert len(keys) == 2
        assert len(set(keys)) == 1
    finally:
        sources.remove()


def test_modules_that_the_program_drops_are_gone() -> None:
    sources = Sources(lambda *tick: None, ImportWatch())
    sources.install()
    try:
        model = torch.nn.Linear(2, 2)
        model(torch.ones(1, 2))
        assert sources.trained is model
        alive = weakref.ref(model)
        del model
        gc.collect()
        assert alive() is None
        assert sources.module is None
    finally:
        sources.remove()


def test_warnings_of_this_thread_alone_are_dropped_and_the_filters_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.autograd.profiler, "warn", warnings.warn, raising=False)  # as 2.11 has it
    elsewhere = threading.Thread(target=lambda: warnings.warn("elsewhere", stacklevel=1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        filters, warn = list(warnings.filters), warnings.warn
        with torch_private.warnings_kept_in():
            warnings.warn("here", stacklevel=1)
            elsewhere.start()
            elsewhere.join()
            sys.modules["torch.autograd.profiler"].warn("under a name of its own")
        assert [str(one.message) for one in caught] == ["elsewhere"]
        assert (warnings.filters, warnings.warn) == (filters, warn)


def test_variables_for_cupti_do_not_reach_the_program_s_children(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.delenv("TEARDOWN_CUPTI", raising=False)
    monkeypatch.setenv("DISABLE_CUPTI_LAZY_REINIT", "the program's")
    with torch_private.profiler_variables_kept_in():
        os.environ |= {"TEARDOWN_CUPTI": "0", "DISABLE_CUPTI_LAZY_REINIT": "1"}
    assert "TEARDOWN_CUPTI" not in os.environ
    assert os.environ["DISABLE_CUPTI_LAZY_REINIT"] == "the program's"


# The main thread.


def test_work_for_the_main_thread_is_done_there_whoever_asks() -> None:
    threads: list[int] = []
    main = MainThread(lambda: threads.append(threading.get_ident()))
    asking = threading.Thread(target=main.soon)
    asking.start()
    asking.join()
    for _ in range(1000):
        if threads:
            break
    assert threads == [threading.main_thread().ident]
    assert not main.waiting


def test_torch_s_own_code_is_not_disturbed_while_it_captures_or_compiles() -> None:
    code = compile("import sys\nframe = sys._getframe()", "/site-packages/torch/cuda/graphs.py", "exec")
    names: dict[str, Any] = {}
    exec(code, names)
    assert is_delicate(names["frame"])
    assert not is_delicate(sys._getframe())


def test_an_optimizer_of_fastai_s_ends_steps_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is none of torch's classes, and calls none of their hooks."""

    class Optimizer:
        param_groups = ()

        def step(self, closure: None = None) -> None:
            assert closure is None

    module = ModuleType("fastai.optimizer")
    vars(module)["Optimizer"] = Optimizer
    monkeypatch.setitem(sys.modules, "fastai.optimizer", module)
    ticks = list[str]()
    sources = Sources(lambda signal, key, name: ticks.append(signal), ImportWatch())
    sources.install()
    try:
        optimizer = Optimizer()
        optimizer.step()
        assert ticks == ["optimizer"]
        leader = ("optimizer", id(optimizer))
        sources.only_count(leader)
        for _ in range(5):
            optimizer.step()
        assert ticks == ["optimizer"]
        assert sources.ticks_counted(leader) == 5
    finally:
        sources.remove()
    assert "step" in vars(Optimizer)
    optimizer.step()
    assert sources.ticks_counted(leader) is None
