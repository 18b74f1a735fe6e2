"""One process being recorded: its recorder, its sources, its compile log, put together and taken apart again."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import msgspec

from kinetoscope.capture import torch_private
from kinetoscope.capture.compiler.compile_log import CompileLog
from kinetoscope.capture.compiler.kernel_inputs import KernelInputs
from kinetoscope.capture.options import Options
from kinetoscope.capture.process import environment
from kinetoscope.capture.process.imports import ImportWatch
from kinetoscope.capture.recorder.budget import Budget
from kinetoscope.capture.recorder.clocks import Clocks
from kinetoscope.capture.recorder.foreign import ForeignProfilers
from kinetoscope.capture.recorder.machine import Recorder
from kinetoscope.capture.recorder.profiler import TorchDevice
from kinetoscope.capture.steps.ranks import agreement
from kinetoscope.capture.steps.sources import Sources
from kinetoscope.recording import folder as folders
from kinetoscope.recording.folder import RankReport
from kinetoscope.recording.manifest import RankRecord, StepTimings

# The session of this process; there is at most one.
_active: Session | None = None


def active() -> Session | None:
    """The session that is recording this process, if any."""
    return _active


class Session:
    """Records this process into ``folder`` as ``rank``, from now until :meth:`end`. Torch is imported."""

    def __init__(self, folder: Path, rank: int, world: int, options: Options, *, api: bool = False) -> None:
        global _active
        self.folder, self.rank, self.options = folder, rank, options
        self.pid, self.began = os.getpid(), time.perf_counter()
        self.api = api  # begun by kinetoscope.profile, not by `kinetoscope run`
        self.ended = False
        self.files: dict[str, str] = {}
        self.trace = folder / "trace" / f"rank{rank}.json"
        self.trace.parent.mkdir(exist_ok=True)
        self.own_trace = folder / "trace" / f"rank{rank}.program.json"
        self.clocks = Clocks()
        self.imports = ImportWatch()
        self.log = CompileLog(folder, rank, self.imports) if options.compile_log else None
        self.device = TorchDevice(options)
        self.recorder = Recorder(
            options,
            self.device,
            self.trace,
            compilations=self._compilations,
            following=self._follow,
            moment=self.clocks.sample,
            finished=self.recorded,
            start=agreement(folder, rank, world),
            lockstep=world > 1,
        )
        # One rank's inputs stand for all ranks'.
        self.inputs = KernelInputs(folder, rank) if options.kernel_inputs and rank == 0 else None
        self.tick = self.recorder.tick if self.inputs is None else self._tick
        self.sources = Sources(self.tick, self.imports)
        self.foreign = ForeignProfilers(
            self.recorder.foreign_began, self.recorder.foreign_ended, self.own_trace
        )
        self.sources.install(options.range)
        self._report("running")
        _active = self
        if options.range is None:
            self.recorder.begin()
            self._restart_with_device()
            Budget(lambda: self.recorder.provisional.running, self.recorder.budget_spent, options).watch()

    def _restart_with_device(self) -> None:
        """Kineto looks at the devices that are in use when it starts: start again when the program takes one up."""

        pid, recorder, device = self.pid, self.recorder, self.device

        def device_in_use() -> None:
            if os.getpid() == pid:
                device.cuda = True
                recorder.restart()

        torch_private.when_cuda_starts(device_in_use)

    def _compilations(self) -> int:
        return self.log.records if self.log is not None else 0

    def _follow(self, kind: str, key: Hashable) -> None:
        if self.options.range is None:
            self.sources.follow(kind, key)

    def recorded(self) -> None:
        """The trace is written: leave the program alone, but for its compile log, or see one more step's inputs."""
        if self.inputs is not None and self.recorder.profiled and not self.ended:
            self._safely(self.inputs.start)
        if self.inputs is None or not self.inputs.watching:
            self.sources.remove()
        if not self.ended:
            self._report("running")

    def _tick(self, kind: str, key: Hashable, name: str) -> None:
        """As the recorder's, and past it: the step after the recorded ones ends the look at kernels' inputs."""
        assert self.inputs is not None
        if not self.inputs.watching:
            self.recorder.tick(kind, key, name)
        elif kind == "range end" or (
            self.options.range is None
            and ("module" if kind == "training module" else kind, key) == self.recorder.leader
        ):
            self._safely(self.inputs.stop)
            self.sources.remove()
            self._report("running")

    def _safely(self, act: Callable[[], None]) -> None:
        """Do what the program can do without; a failure is a note."""
        assert self.inputs is not None
        try:
            act()
        except Exception as error:
            self.inputs.notes.append(f"kernel inputs were not kept: {type(error).__name__}: {error}")
            self.inputs.remove()

    def forget(self) -> None:
        """Take everything of ours out of this process, which is a fork of the recorded one."""
        global _active
        _active = None
        self.ended = True
        if self.inputs is not None:
            self.inputs.remove()
        self.sources.remove()
        self.foreign.remove()
        self.imports.stop()

    def end(self, exit: str, failure: BaseException | None = None) -> RankRecord | None:
        """Write what there is; the first call counts."""
        global _active
        if self.ended or os.getpid() != self.pid:
            return None
        self.ended, _active = True, None
        try:
            self.recorder.end()
        except Exception as error:
            self.recorder.notes.append(f"the trace could not be written: {type(error).__name__}: {error}")
        if self.inputs is not None:
            self._safely(self.inputs.end)
        self.sources.remove()
        self.foreign.remove()
        self.imports.stop()
        if self.log is not None:
            self.files.update(self.log.close())
        if failure is not None:
            output = self.folder / "output"
            output.mkdir(exist_ok=True)
            text = "".join(traceback.format_exception(type(failure), failure, failure.__traceback__))
            (output / f"rank{self.rank}.traceback.txt").write_text(
                text, encoding="utf-8", errors="backslashreplace"
            )
            self.files["traceback"] = f"output/rank{self.rank}.traceback.txt"
        return self._report(exit)

    def _report(self, exit: str) -> RankRecord:
        record = RankRecord(
            rank=self.rank,
            pid=self.pid,
            host=os.uname().nodename if hasattr(os, "uname") else "",
            trace=self._trace(),
            steps=self._steps(),
            clocks=tuple(self.clocks.samples),
            exit=exit,
            wall_s=time.perf_counter() - self.began,
            peak_memory_bytes=_peak_memory(),
            notes=self._notes(),
        )
        files = self.files or (
            {"compile_log": f"compile/rank{self.rank}.log"}
            if self.log is not None and self.log.records
            else {}
        )
        record = msgspec.structs.replace(record, **files)
        folders.write_rank(
            self.folder, RankReport(record=record, environment=environment.describe(self.clocks.driver()))
        )
        return record

    def _steps(self) -> StepTimings:
        own = self._trace() == self.own_trace.relative_to(self.folder).as_posix()
        return StepTimings(found_by="program") if own else self.recorder.timings()

    def _trace(self) -> str | None:
        """The trace to read: ours, unless the program's own is all there is worth reading."""
        ours, own = self.trace.is_file(), self.own_trace.is_file()
        if own and (not ours or not self.recorder.profiled):
            return self.own_trace.relative_to(self.folder).as_posix()
        return self.trace.relative_to(self.folder).as_posix() if ours else None

    def _notes(self) -> tuple[str, ...]:
        notes = list(self.inputs.notes) if self.inputs is not None else list[str]()
        if self.foreign.seen:
            kept = "; the trace is the one it exported" if self._trace() and self.own_trace.is_file() else ""
            notes.append(f"the program runs a profiler of its own, which was left to work undisturbed{kept}")
        return tuple(notes)


def _peak_memory() -> int | None:
    torch: Any = sys.modules["torch"]
    if torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024
