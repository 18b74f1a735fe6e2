"""The allocator's history around a program that does as it is told, and what the live process holds."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path
from typing import cast

import pytest
import torch

from fake_program import FakeDevice, FakeSession, Program
from kinetoscope.capture import torch_private
from kinetoscope.capture.recorder import memory as recorded_memory
from kinetoscope.capture.recorder.memory import AllocatorHistory
from kinetoscope.capture.recorder.phases import Done, RecordSteps, TimeBefore
from kinetoscope.recording import memory as recorded

SNAPSHOT = {"segments": [], "device_traces": [[]]}


class FakeAllocator:
    """What torch's allocator answers; ``log`` says when its history was kept, and read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.in_use, self.kept = False, False
        self.log: list[str] = []
        self.starting = lambda: None
        self.fails = lambda *_: None
        replace = lambda name, act: monkeypatch.setattr(torch_private, name, act)  # noqa: E731
        replace("cuda_in_use", lambda: self.in_use)
        replace("when_cuda_starts", lambda act: setattr(self, "starting", act))
        replace("watch_out_of_memory", lambda act: setattr(self, "fails", act))
        replace("watch_empty_cache", lambda begins, ends: setattr(self, "emptying", (begins, ends)))
        replace("keep_memory_history", self.keep)
        replace("memory_history_is_kept", lambda: self.kept)
        replace("memory_snapshot", self.snapshot)
        self.peaks = dict.fromkeys((f"peak_{kind}_bytes" for kind in torch_private.COUNTED), 0)
        replace("watch_peak_resets", lambda before: setattr(self, "reset", before))
        replace("memory_peaks", lambda device: self.peaks)
        counters = {"device": 0, "reserved_bytes": 1 << 20}
        replace("memory_counters", lambda: iter([counters | self.peaks]))

    def keep(self, entries: int, *, releases: bool = False, anew: bool = True) -> None:
        self.kept = entries > 0
        self.log.append(("on" if self.kept else "off") if anew else f"releases {releases}")

    def snapshot(self) -> object:
        self.log.append("snapshot")
        return SNAPSHOT


class Session(FakeSession):
    """Tells the history of its marks, as torch's does."""

    def mark(self, step: int | None) -> None:
        super().mark(step)
        cast(Device, self.device).history.boundary()


class Device(FakeDevice):
    def __init__(self, history: AllocatorHistory) -> None:
        super().__init__()
        self.history = history

    def session(self, *, kind: str, any_thread: bool) -> FakeSession:
        return Session(self, super().session(kind=kind, any_thread=any_thread).name)


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> FakeAllocator:
    return FakeAllocator(monkeypatch)


def test_history_is_kept_whenever_no_step_is_timed_and_read_once(allocator: FakeAllocator, tmp_path: Path):
    history = AllocatorHistory(tmp_path, 0)
    program = Program(device=Device(history), memory=history)
    assert allocator.log == []  # the program has not begun to use its device
    allocator.starting()
    assert allocator.log == ["on"]
    program.until(TimeBefore, 0.1)
    assert allocator.log == ["on", "off"]
    program.until(RecordSteps, 0.1)
    assert allocator.log == ["on", "off", "on"]
    program.until(Done, 0.1)
    assert allocator.log == ["on", "off", "on", "snapshot", "off", "on"]
    held = recorded.read(tmp_path / history.files["memory_held"])
    assert len(held.boundaries_ns) == 4  # of three steps
    assert held.devices[0].reserved_bytes == 1 << 20
    assert pickle.loads((tmp_path / history.files["memory"]).read_bytes()) == SNAPSHOT
    history.close()
    assert allocator.log[-1] == "off"


def test_the_first_allocation_that_fails_is_written_down(allocator: FakeAllocator, tmp_path: Path):
    history = AllocatorHistory(tmp_path, 3)
    optimizer = object.__new__(torch.optim.SGD)  # a real one imports all of the compiler
    allocator.starting()
    for _ in range(2):
        allocator.fails(0, 512, 1 << 30, 0)
    assert history.files == {"oom": "memory/rank3.oom.pickle", "oom_held": "memory/rank3.oom.json"}
    held = recorded.read(tmp_path / history.files["oom_held"])
    assert (held.failed_bytes, held.has_optimizer) == (512, optimizer is not None)
    assert allocator.log == ["on", "snapshot"]


def test_peaks_are_the_program_s_whatever_it_resets(allocator: FakeAllocator, tmp_path: Path):
    """Of each kind the most of all stretches between resets, and of the last one, which has no end yet."""
    history = AllocatorHistory(tmp_path, 0)
    allocator.starting()
    names = list(allocator.peaks)
    for peaks in ((5, 6, 80), (7, 9, 80), (3, 4, 90)):
        allocator.peaks = dict(zip(names, peaks, strict=True))
        allocator.reset(0)
    allocator.peaks = dict(zip(names, (1, 10, 70), strict=True))
    allocator.reset(1)  # another device's
    allocator.fails(0, 512, 1 << 30, 0)
    (device,) = recorded.read(tmp_path / history.files["oom_held"]).devices
    assert (device.peak_requested_bytes, device.peak_allocated_bytes, device.peak_reserved_bytes) == (
        7,
        10,
        90,
    )


def test_peaks_are_read_before_the_program_resets_them_by_whichever_name(
    allocator: FakeAllocator, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.undo()
    calls: list[tuple[str, int]] = []
    for name in torch_private.RESET_PEAKS:
        monkeypatch.setattr(
            torch._C, name, lambda device, name=name: calls.append((name, device)), raising=False
        )
    torch_private.watch_peak_resets(lambda device: calls.append(("before", device)))
    torch._C._cuda_resetPeakMemoryStats(2)
    torch._C._accelerator_resetPeakStats(3)
    one, other = torch_private.RESET_PEAKS
    assert calls == [("before", 2), (one, 2), ("before", 3), (other, 3)]


def test_a_history_that_the_program_keeps_is_left_alone(allocator: FakeAllocator, tmp_path: Path):
    allocator.in_use = allocator.kept = True
    history = AllocatorHistory(tmp_path, 0)
    history.keep(False)
    history.write()
    history.close()
    assert allocator.log == []
    assert len(history.notes) == 1


def test_the_stack_of_an_emptied_cache_is_kept_and_of_no_other_release(
    allocator: FakeAllocator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In the history as it goes on, by whichever name the program empties the cache."""
    monkeypatch.undo()
    monkeypatch.setattr(torch._C, "_cuda_emptyCache", lambda: allocator.log.append("emptied"), raising=False)
    monkeypatch.setattr(torch._C, "_accelerator_emptyCache", lambda: None, raising=False)
    monkeypatch.setattr(torch_private, "keep_memory_history", allocator.keep)
    monkeypatch.setattr(torch_private, "memory_history_is_kept", lambda: allocator.kept)
    monkeypatch.setattr(torch_private, "watch_out_of_memory", lambda act: None)
    monkeypatch.setattr(torch_private, "watch_peak_resets", lambda before: None)
    history = AllocatorHistory(tmp_path, 0)
    history.device_in_use()
    torch._C._cuda_emptyCache()
    assert allocator.log == ["on", "releases True", "emptied", "releases False"]
    history.close()
    torch._C._cuda_emptyCache()
    assert allocator.log[4:] == ["off", "emptied"]
    assert not history.notes


def test_a_failure_is_a_note_and_never_the_program_s(
    allocator: FakeAllocator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse() -> object:
        raise RuntimeError("no\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1")

    history = AllocatorHistory(tmp_path, 0)
    allocator.starting()
    monkeypatch.setattr(torch_private, "memory_snapshot", refuse)
    allocator.fails(0, 512, 1 << 30, 0)
    history.write()
    assert history.notes == ["the allocator's history is incomplete: RuntimeError: no"]
    assert history.files == {}


def test_every_tensor_of_modules_optimizers_and_variables_has_its_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recorded_memory, "_on_device", lambda tensor: True)
    gc.collect()

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)
            self.register_buffer("mean", torch.ones(5))

    net, free = Net(), torch.nn.Parameter(torch.ones(7))
    optimizer = torch.optim.AdamW([*net.parameters(), free])
    (net.layer(torch.ones(4)).sum() + free.sum()).backward()
    optimizer.step()
    losses = [torch.ones(2), {"a": torch.ones(3)}]
    found = {
        (one.role, one.name.split(" (")[0]): one for one in recorded_memory.HeldByProgram().tensors(_here())
    }
    weight = net.layer.weight
    assert found["parameter", "Net.layer.weight"].address == weight.untyped_storage().data_ptr()
    assert found["parameter", "Net.layer.weight"].bytes == 4 * 12
    assert found["parameter", "AdamW.param_groups[0]['params'][2]"].bytes == 4 * 7
    assert found["buffer", "Net.mean"].shape == (5,)
    assert weight.grad is not None
    assert found["gradient", "Net.layer.weight"].address == weight.grad.untyped_storage().data_ptr()
    state = optimizer.state[weight]["exp_avg"]
    assert (
        found["optimizer state", "exp_avg of Net.layer.weight"].address == state.untyped_storage().data_ptr()
    )
    assert found["variable", "losses[1]['a']"].bytes == 4 * 3
    assert losses


def _here() -> object:
    import sys

    return sys._getframe(1)
