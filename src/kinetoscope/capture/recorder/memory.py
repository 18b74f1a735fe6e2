"""The allocator's own history (`run --memory`): kept in the steps that are recorded, and whenever else no
step is timed; written down at their end, and in the moment that an allocation fails.

What lay where at the peak is worked out from the snapshot at the end and the history before it: no other
snapshot is needed, and none is taken while steps run.
"""

from __future__ import annotations

import gc
import inspect
import os
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, cast

import msgspec

from kinetoscope.capture import torch_private
from kinetoscope.errors import in_one_line
from kinetoscope.recording.manifest import write_whole
from kinetoscope.recording.memory import DeviceMemory, Held, HeldTensor, Role

MOST = 20_000  # rows; a model of a thousand layers has as many parameters
DEEP = 3  # containers in each other that a variable's tensors are looked for in
# Whose frames are not the program's own: installed libraries', ours, the interpreter's.
FOREIGN = ("site-packages", "dist-packages", "<frozen", os.path.join("kinetoscope", "capture"))

Named = tuple[str, Any]  # a tensor, or what may be one


class HeldByProgram:
    """The tensors that the program has on its devices, and as what, found in the live process.

    Modules and optimizers are found among the objects of the garbage collector, by their type alone; they are
    kept while steps are recorded.
    """

    def __init__(self) -> None:
        from torch.nn import Module
        from torch.optim import Optimizer

        objects = gc.get_objects()  # hundreds of thousands: looking at their types takes some 50 ms
        self.modules = [one for one in objects if issubclass(type(one), Module)]
        self.optimizers = [one for one in objects if issubclass(type(one), Optimizer)]
        self.names: dict[int, str] = {}
        self.parameters: list[Named] = []
        for name, parameter in (*self._of_modules("named_parameters"), *self._of_optimizers()):
            if id(parameter) not in self.names:
                self.names[id(parameter)] = name
                self.parameters.append((name, parameter))

    def _of_modules(self, listing: str) -> Iterator[Named]:
        inner = {id(child) for module in self.modules for child in vars(module).get("_modules", {}).values()}
        for root in self.modules:
            if id(root) in inner:
                continue
            owner = type(vars(root).get("_modules", {}).get("_orig_mod", root)).__name__  # what is compiled
            with suppress(Exception):  # the program may have given its module a method of that name
                for name, tensor in getattr(root, listing)():
                    yield f"{owner}.{name.replace('_orig_mod.', '')}", tensor

    def _of_optimizers(self) -> Iterator[Named]:
        for optimizer in self.optimizers:
            with suppress(Exception):
                for at, group in enumerate(optimizer.param_groups):
                    for place, parameter in enumerate(group["params"]):
                        yield f"{type(optimizer).__name__}.param_groups[{at}]['params'][{place}]", parameter

    def _states(self) -> Iterator[Named]:
        for optimizer in self.optimizers:
            with suppress(Exception):
                for parameter, state in optimizer.state.items():
                    whose = self.names.get(id(parameter), type(optimizer).__name__)
                    for name, tensor in _tensors(state, ""):
                        yield f"{name.strip('[]')!s} of {whose}".replace("'", ""), tensor

    def gradients(self, time_ns: int) -> Iterator[HeldTensor]:
        named = ((name, parameter.grad) for name, parameter in self.parameters)
        return _rows("gradient", ((name, grad) for name, grad in named if grad is not None), time_ns)

    def tensors(self, frame: FrameType | None) -> tuple[HeldTensor, ...]:
        """All of them; variables of the functions that run, from ``frame`` outwards, and of their modules."""
        rows = (
            *_rows("parameter", self.parameters),
            *_rows("buffer", self._of_modules("named_buffers")),
            *self.gradients(0),
            *_rows("optimizer state", self._states()),
            *_rows("variable", _variables(frame)),
        )
        return rows[:MOST]


def _on_device(tensor: Any) -> bool:
    return tensor.is_cuda


def _rows(role: Role, named: Iterator[Named] | list[Named], time_ns: int = 0) -> Iterator[HeldTensor]:
    for name, tensor in islice(named, MOST):
        with suppress(Exception):  # fake tensors and those of other devices have no storage to point to
            local = getattr(tensor, "_local_tensor", tensor)  # of one that is sharded
            storage = local.untyped_storage()
            if _on_device(local) and storage.nbytes():
                yield HeldTensor(
                    role=role,
                    name=name,
                    device=local.device.index or 0,
                    address=storage.data_ptr(),
                    bytes=storage.nbytes(),
                    shape=tuple(map(int, local.shape)),
                    dtype=str(local.dtype).removeprefix("torch."),
                    time_ns=time_ns,
                )


def _variables(frame: FrameType | None) -> Iterator[Named]:
    seen: set[int] = set()
    while frame is not None:
        code = frame.f_code
        if not any(part in code.co_filename for part in FOREIGN):
            place = f"{os.path.basename(code.co_filename)}:{frame.f_lineno}"
            for variables, where in ((frame.f_locals, code.co_name), (frame.f_globals, "<module>")):
                if id(variables) not in seen:
                    seen.add(id(variables))
                    for name, value in list(variables.items()):
                        for at, tensor in _tensors(value, name):
                            yield f"{at} ({place}, {where})", tensor
        frame = frame.f_back


def _tensors(value: object, name: str, deep: int = DEEP) -> Iterator[Named]:
    """The tensors of a value, which may be in containers; a thousand of each container."""
    import torch

    if issubclass(type(value), torch.Tensor):
        yield name, value
    elif deep and type(value) in (list, tuple):
        for place, one in enumerate(islice(cast(list[object], value), 1000)):
            yield from _tensors(one, f"{name}[{place}]", deep - 1)
    elif deep and issubclass(type(value), dict):
        for key, one in islice(list(cast(Mapping[object, object], value).items()), 1000):
            if isinstance(key, (str, int)):
                yield from _tensors(one, f"{name}[{key!r}]", deep - 1)
    elif deep and type(value).__name__.endswith("Cache"):  # of keys and values, as transformers has them
        yield from _tensors(getattr(value, "__dict__", {}), name, deep - 1)


# A step of a large model makes some 20,000 entries in eager mode; each takes about 1 KB of the host's memory.
ENTRIES = 200_000


class NoMemoryHistory:
    def keep(self, on: bool) -> None:
        """Keep the history from here on, anew where it was not kept."""

    def boundary(self) -> None:
        """Note that a step which a profiler records begins or ends."""

    def write(self) -> None:
        """Write down what there is."""


class AllocatorHistory(NoMemoryHistory):
    """History of this process's CUDA or ROCm allocator; a failure is a note, never the program's."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank, self.pid = folder, rank, os.getpid()
        # what is written, by its field of :class:`RankRecord`, relative to the recording
        self.files: dict[str, str] = {}
        self.notes: list[str] = []
        self.in_use, self.wanted, self.on = False, True, False
        self.failed = 0  # allocations
        self.program: HeldByProgram | None = None
        self.boundaries: list[int] = []
        self.gradients: list[HeldTensor] = []
        self.peaks: dict[int, dict[str, int]] = {}  # by device, from before the program reset them
        if torch_private.cuda_in_use():
            self.device_in_use()
        else:
            torch_private.when_cuda_starts(self.device_in_use)

    def device_in_use(self) -> None:
        if os.getpid() == self.pid:
            self.in_use = True
            self._harmlessly(lambda: torch_private.watch_out_of_memory(self._out_of_memory))
            self._harmlessly(
                lambda: torch_private.watch_empty_cache(
                    lambda: self._stacks_of_releases(True), lambda: self._stacks_of_releases(False)
                )
            )
            self._harmlessly(lambda: torch_private.watch_peak_resets(self._peaks_go))
            self.keep(self.wanted)

    def keep(self, on: bool) -> None:
        self.wanted = on
        if self.in_use and on != self.on:
            self._harmlessly(lambda: self._switch(on))

    def _switch(self, on: bool) -> None:
        if torch_private.memory_history_is_kept() != self.on:
            self.in_use = False
            self.notes.append("the program keeps a history of its memory itself, which was left alone")
            return
        torch_private.keep_memory_history(ENTRIES if on else 0)
        self.on = on
        self.program, self.boundaries, self.gradients = None, [], []

    def _stacks_of_releases(self, on: bool) -> None:
        """Keep stacks of releases in empty_cache() alone: all would cost what the allocations' do again."""
        if self.on and os.getpid() == self.pid:
            self._harmlessly(lambda: torch_private.keep_memory_history(ENTRIES, releases=on, anew=False))

    def _peaks_go(self, device: int) -> None:
        if self.in_use and os.getpid() == self.pid:
            self._harmlessly(lambda: self._keep_peaks(device))

    def _keep_peaks(self, device: int) -> None:
        self.peaks[device] = self._since_start(device, torch_private.memory_peaks(device))

    def _since_start(self, device: int, counters: dict[str, int]) -> dict[str, int]:
        """The same, with the peaks since the program began."""
        kept = self.peaks.get(device, {})
        return counters | {name: max(peak, counters[name]) for name, peak in kept.items()}

    def boundary(self) -> None:
        if self.on:
            self._harmlessly(self._boundary)

    def _boundary(self) -> None:
        self.program = self.program or HeldByProgram()  # before the first step begins
        self.boundaries.append(time.time_ns())
        if len(self.gradients) < MOST:
            self.gradients += self.program.gradients(self.boundaries[-1])

    def write(self) -> None:
        if self.on:
            self._harmlessly(lambda: self._write("memory", f"rank{self.rank}"))
        self.program = None  # modules and optimizers are the program's to keep

    def _write(self, field: str, name: str, failed_bytes: int | None = None) -> None:
        time_ns = time.time_ns()
        snapshot = torch_private.memory_snapshot()
        home = self.folder / "memory"
        home.mkdir(exist_ok=True)
        program = HeldByProgram()
        held = Held(
            time_ns=time_ns,
            failed_bytes=failed_bytes,
            boundaries_ns=tuple(self.boundaries),
            entries=ENTRIES,
            has_optimizer=bool(program.optimizers),
            tensors=(*program.tensors(inspect.currentframe()), *self.gradients),
            devices=tuple(
                DeviceMemory(**self._since_start(counters["device"], counters))
                for counters in torch_private.memory_counters()
            ),
        )
        write_whole(
            home / f"{name}.pickle", pickle.dumps(snapshot, protocol=4)
        )  # as torch's own viewer reads it
        write_whole(home / f"{name}.json", msgspec.json.encode(held))
        self.files |= {field: f"memory/{name}.pickle", f"{field}_held": f"memory/{name}.json"}

    def _out_of_memory(self, device: int, wanted: int, limit: int, free: int) -> None:
        """An allocation fails: called by the allocator, before the program learns of it."""
        if os.getpid() != self.pid or not self.in_use:
            return
        self.failed += 1
        if self.failed == 1:
            self._harmlessly(lambda: self._write("oom", f"rank{self.rank}.oom", wanted))

    def close(self) -> None:
        self.keep(False)
        self.in_use = False

    def _harmlessly(self, act: Callable[[], None]) -> None:
        try:
            with torch_private.asked_in_silence():
                act()
        except Exception as error:
            note = f"the allocator's history is incomplete: {in_one_line(error)}"
            if note not in self.notes:
                self.notes.append(note)
