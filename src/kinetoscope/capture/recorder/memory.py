"""The allocator's own history (`run --memory`): kept in the steps that are recorded, and whenever else no
step is timed; written down at their end, and in the moment that an allocation fails.

What lay where at the peak is worked out from the snapshot at the end and the history before it: no other
snapshot is needed, and none is taken while steps run.
"""

from __future__ import annotations

import inspect
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from kinetoscope.capture import torch_private
from kinetoscope.capture.recorder.tensors import MOST, HeldByProgram
from kinetoscope.recording.manifest import write_whole
from kinetoscope.recording.memory import DeviceMemory, Held, HeldTensor

# A step of a large model makes some 20,000 entries in eager mode; each takes about 1 KB of the host's memory.
ENTRIES = 200_000


class MemoryHistory(Protocol):
    """What the recorder needs of :class:`AllocatorHistory`."""

    def keep(self, on: bool) -> None:
        """Keep the history from here on, anew where it was not kept."""
        ...

    def boundary(self) -> None:
        """A step that a profiler records begins or ends."""
        ...

    def write(self) -> None:
        """Write down what there is."""
        ...


class NoMemoryHistory:
    """Where none was asked for."""

    def keep(self, on: bool) -> None: ...
    def boundary(self) -> None: ...
    def write(self) -> None: ...


class AllocatorHistory:
    """History of this process's CUDA or ROCm allocator; a failure is a note, never the program's.

    Attributes:
        files: what is written, by its field of :class:`RankRecord`, relative to the recording.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank, self.pid = folder, rank, os.getpid()
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
        """The program has begun to use a device."""
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
        """Of those that empty_cache() makes alone: all would cost as much again as the allocations'."""
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
        """Leave the allocator as it was."""
        self.keep(False)
        self.in_use = False

    def _harmlessly(self, act: Callable[[], None]) -> None:
        try:
            with torch_private.asked_in_silence():
                act()
        except Exception as error:
            note = f"the allocator's history is incomplete: {type(error).__name__}: {error}"
            if note not in self.notes:
                self.notes.append(note)
