"""One process being recorded: its recorder, sources and compile log, put together and taken apart again."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import msgspec

from kinetoscope.capture import torch_private
from kinetoscope.capture.compiler.compile_log import CompileLog
from kinetoscope.capture.compiler.kernel_inputs import KernelInputs
from kinetoscope.capture.hooks.imports import ImportWatch
from kinetoscope.capture.options import Options
from kinetoscope.capture.process import environment, source
from kinetoscope.capture.process.environment import Clocks
from kinetoscope.capture.process.ranks import leader
from kinetoscope.capture.process.whole_run import Sampler, watches
from kinetoscope.capture.recorder.graphs import GraphCaptures
from kinetoscope.capture.recorder.memory import AllocatorHistory
from kinetoscope.capture.recorder.profiler import ForeignProfilers, TorchDevice
from kinetoscope.capture.recorder.provisional import Budget, Decisions
from kinetoscope.capture.recorder.recorder import Recorder
from kinetoscope.capture.steps.call_sites import ProgramStack
from kinetoscope.capture.steps.detector import Source
from kinetoscope.capture.steps.ledgers import Ledgers
from kinetoscope.capture.steps.sources import Sources
from kinetoscope.capture.steps.start import StartAgreement, at_once
from kinetoscope.errors import in_one_line
from kinetoscope.recording import folder as folders
from kinetoscope.recording import manifest as manifests
from kinetoscope.recording.folder import RankReport
from kinetoscope.recording.manifest import RankRecord, StepTimings
from kinetoscope.recording.whole_run import Period

# The period of the run that a phase of the recorder is in; in the others the program is not as it is.
PERIOD_OF: dict[str, Period] = {
    "watching": "before",
    "settling": "settling",
    "timing": "timed",
    "preparing": "timed",
    "recovering": "timed",
    "timing again": "timed",
    "timing on": "after",
    "standing by": "after",
    "done": "after",
}

# Modules that Python imports once it starts a process of these kinds.
SPAWNS = {f"multiprocessing.popen_{kind}" for kind in ("fork", "forkserver", "spawn_posix", "spawn_win32")}


def say(text: str) -> None:
    """A message for who started the program, on the stderr that it was started with: what the program has put
    in place of ``sys.stderr``, or of ``print``, is its own."""
    write(text, sys.__stderr__)


def write(text: str, stream: TextIO | None) -> None:
    """A message of ours. A stream that is closed or full changes nothing of the program's end."""
    with suppress(OSError, ValueError):
        if stream is not None:
            stream.write(f"kinetoscope: {text}\n")
            stream.flush()


_active: ProcessRecording | None = None  # the recording of this process; there is at most one


def active() -> ProcessRecording | None:
    """The recording of this process that is being made, if any."""
    return _active


class ProcessRecording:
    """Records this process into ``folder`` as ``rank``, from now until :meth:`end`. Torch is imported.
    ``api``: begun by kinetoscope.profile, not by `kinetoscope run`."""

    def __init__(self, folder: Path, rank: int, world: int, options: Options, *, api: bool = False) -> None:
        global _active
        self.folder, self.rank, self.options, self.api = folder, rank, options, api
        self.pid, self.began = os.getpid(), time.perf_counter()
        self.ended = False
        self.phase: str | None = None  # the recorder's, when the accelerator failed
        self.followed: Source | None = None
        self.when_saved = lambda: None  # called once there is a trace that an early end would not better
        self.files: dict[str, str] = {}
        self.scripts = source.script()
        self.trace = folder / "trace" / f"rank{rank}.json"
        self.trace.parent.mkdir(exist_ok=True)
        self.own_trace = folder / "trace" / f"rank{rank}.program.json"
        self.clocks = Clocks()
        self.imports = ImportWatch()
        self.log = CompileLog(folder, rank, self.imports) if options.compile_log else None
        # One rank's inputs stand for all ranks'.
        self.inputs = KernelInputs(folder, rank) if options.kernel_inputs and rank == 0 else None
        self.memory = AllocatorHistory(folder, rank) if options.memory else None
        self.device = TorchDevice(options, self.memory)
        self.ledgers = Ledgers(self.imports)
        self.device.captures.replayed = lambda: self.sources.replays
        self.graphs = GraphCaptures(self.device, self.trace)
        decisions = Decisions.of(os.environ)
        self.recorder = Recorder(
            options,
            self.device,
            self.trace,
            inputs=self.inputs,
            ledgers=self.ledgers,
            memory=self.memory,
            graphs=self.graphs,
            compilations=self._compilations,
            stack=ProgramStack(),
            following=self._follow,
            widen=lambda: self.sources.widen(),
            updates=lambda: self.sources.updates,
            loads=lambda: self.sources.batches + self.ledgers.read().data_ns,
            moment=self.clocks.sample,
            saved=self._saved,
            start_agreed=StartAgreement(folder, leads=rank == leader(options.ranks))
            if world > 1
            else at_once,
            lockstep=world > 1,
            tell=self._tell,
            entered=self._entered,
            lock=self.device.captures.lock,
            decisions=decisions,
        )
        captures = self.device.captures
        captures.before, captures.after = self.recorder.capture_begins, self.recorder.capture_ended
        self.tick = self.recorder.tick
        self.sources = Sources(
            self.tick,
            self.imports,
            self.recorder.part,
            self.recorder.model_called,
            options.step,
            self.ledgers,
        )
        captures.replaying = lambda: self.sources.replaying
        self.foreign = ForeignProfilers(self._foreign_began, self._foreign_ended, self.own_trace)
        self.sampler = None if api or not watches(options) else Sampler(self._period, self._may_look_soon)
        if self.sampler is not None:
            self.device.undisturbed = self.sampler.standing_still
        _active = self
        try:
            self._begin(decisions)
        except BaseException:
            self.forget()
            raise

    def _begin(self, decisions: Decisions) -> None:
        self.device.captures.install()
        self.sources.install(self.options.range)
        self._report("running")
        if self.options.range is None:
            self.recorder.begin()
            self._restart_with_device()
            provisional = self.recorder.provisional
            Budget(
                lambda: provisional.running,
                lambda: self.sources.compiling,
                torch_private.tries_algorithms,
                self.recorder.budget_spent,
                self.options,
                decisions,
            ).watch()
        if self.sampler is not None:
            self.sampler.begin()

    def _entered(self, phase: str) -> None:
        folders.mark_phase(self.folder, self.rank, phase)
        if self.sampler is not None:
            self.sampler.changed()

    def _period(self) -> Period | None:
        """The period of the run that it is now; None: what runs is the recorder's, or under a profiler."""
        recorder = self.recorder
        recorder.look_for_silence()
        period = None if recorder.inside else PERIOD_OF.get(recorder.phase.name)
        # An evaluation is no step, whenever it comes.
        return "after" if recorder.evaluation.running and period in ("settling", "timed") else period

    def _may_look_soon(self) -> bool:
        """Whether steps run that are neither timed nor recorded."""
        return self.recorder.phase.name in ("settling", "preparing", "recovering")

    def _foreign_began(self) -> None:
        if self.sampler is not None and not self.recorder.foreign:
            self.sampler.profiler_began()
        self.device.captures.untraced = True  # once it has ended
        self.recorder.foreign_began()

    def _foreign_ended(self) -> None:
        running = self.recorder.foreign
        self.recorder.foreign_ended()
        if self.sampler is not None and running and not self.recorder.foreign:
            self.sampler.profiler_ended()

    def _tell(self, text: str) -> None:
        """Tell the user of `kinetoscope run` how far it is; of many ranks the first speaks."""
        if not self.api and self.rank == leader(self.options.ranks):
            say(text)

    def _restart_with_device(self) -> None:
        """Kineto looks at the devices in use when it starts: start again when the program takes one up."""
        pid, recorder, device = self.pid, self.recorder, self.device

        def device_in_use() -> None:
            if os.getpid() == pid:
                device.cuda = True
                recorder.restart()

        torch_private.when_cuda_starts(device_in_use)

    def _compilations(self) -> int:
        return self.log.records if self.log is not None else 0

    def _follow(self, source: Source, also: Collection[str], looking: bool) -> None:
        if self.sampler is not None and (also or source != self.followed or not self.sampler.samples_here()):
            self.sampler.ticked()
        self.followed = source
        if self.options.range is None:
            iterations = self.recorder.detector.iterations
            self.sources.follow(
                source,
                lambda: iterations.looking,
                lambda: self.ledgers.read().data_ns,
                also,
                looking=looking,
            )

    def _saved(self) -> None:
        """Something is on disk. Once that is all, leave the program alone but for its compile log."""
        if self.recorder.measured.written or self.recorder.done:
            self.when_saved()
        if self.recorder.done:
            self.ledgers.close()
            leader = self.recorder.detector.leader
            if leader is None:
                self.sources.remove()
            else:
                self.sources.only_count(leader)
            self.device.captures.remove()
        if not self.ended:
            self._report("running")

    def _count_later_steps(self) -> None:
        detector = self.recorder.detector
        leader = detector.leader
        if leader is not None and (ticks := self.sources.ticks_counted(leader)) is not None:
            steps = ticks // detector.ticks_of_a_step
            # Of an iteration that had begun, its optimizers' steps come later.
            running = leader[0] == "iteration"
            measured = self.recorder.measured
            measured.steps_after = measured.stood_by + max(0, steps - running)

    def forked(self) -> bool:
        """This process is a fork of the recorded one, and is none to record."""
        if active() is self:
            self.forget()
        return False

    def forget(self) -> None:
        """Take everything of ours out of this process, which is not recorded any more: a fork, perhaps."""
        self.ended = True
        if self.sampler is not None:
            self.sampler.end()
        if os.getpid() != self.pid:
            if self.recorder.recording:
                torch_private.leave_recording_to_parent()
            self.recorder.abandon()
        if self.inputs is not None:
            self.inputs.remove()
        self._take_out()

    def _take_out(self) -> None:
        global _active
        _active = None
        if self.memory is not None:
            self.memory.close()
        self.ledgers.close()
        self.sources.remove()
        self.device.captures.remove()
        self.foreign.remove()
        self.imports.stop()

    def end(self, exit: str, failure: BaseException | None = None) -> RankRecord | None:
        """Write what there is; the first call counts."""
        if self.ended or os.getpid() != self.pid:
            return None
        self.ended = True
        if self.sampler is not None:
            self.sampler.end()
        if failure is not None and _is_of_accelerator(failure):
            self.phase = folders.last_phase(self.folder, self.rank)
        try:
            self.recorder.end()
        except Exception as error:
            note = f"the trace could not be written: {in_one_line(error)}"
            self.recorder.measured.notes.append(note)
        self._count_later_steps()
        self._take_out()
        try:
            if self.inputs is not None:
                self.inputs.end()
            if self.log is not None:
                self.files.update(self.log.close())
            if self.options.source and self.rank == 0:  # one rank's program stands for all
                log = self.folder / self.files["compile_log"] if "compile_log" in self.files else None
                self.files["program"] = source.keep(self.folder, self.rank, self.scripts, log)
            if failure is not None:
                self._keep_traceback(failure)
        except Exception as error:  # at the program's end nothing else catches it
            note = f"the recording is incomplete: {getattr(error, 'strerror', None) or error}"
            self.recorder.measured.notes.append(note)
        return self._report(exit)

    def _keep_traceback(self, failure: BaseException) -> None:
        self.files["traceback"] = f"output/rank{self.rank}.traceback.txt"
        path = self.folder / self.files["traceback"]
        path.parent.mkdir(exist_ok=True)
        text = "".join(traceback.format_exception(type(failure), failure, failure.__traceback__))
        path.write_text(text, encoding="utf-8", errors="backslashreplace")

    def _report(self, exit: str) -> RankRecord:
        trace, own = self._trace(), self._relative(self.own_trace)
        light = self.recorder.context.light_trace  # over the same steps; none with a program's own trace
        two_passes = self.recorder.measured.recorded and light.is_file()
        lines = self.recorder.context.lines
        record = RankRecord(
            rank=self.rank,
            pid=self.pid,
            host=os.uname().nodename if hasattr(os, "uname") else "",
            trace=trace,
            device_trace=self._relative(light) if two_passes else None,
            lines=self._relative(lines) if lines.is_file() else None,
            captures=tuple(map(self._relative, self.graphs.paths)),
            steps=StepTimings(found_by="program") if trace == own else self.recorder.timings(),
            clocks=tuple(self.clocks.samples),
            recording_ended=not self.recorder.records_more,
            exit=exit,
            phase=self.phase,
            spawned=not SPAWNS.isdisjoint(sys.modules),
            wall_s=time.perf_counter() - self.began,
            peak_memory_bytes=environment.peak_memory_bytes(),
            notes=self._notes(),
        )
        files = self.files
        if not files and self._compilations():
            files = {"compile_log": f"compile/rank{self.rank}.log"}
        record = msgspec.structs.replace(record, **files, **(self.memory.files if self.memory else {}))
        record = msgspec.structs.replace(record, whole_run=self._write_whole_run())
        described = environment.describe(self.clocks.driver())
        try:
            folders.write_rank(self.folder, RankReport(record=record, environment=described))
        except OSError as error:  # a full disk: the program has nothing to do with it
            if exit != "running":
                say(f"the recording is incomplete: {error.strerror or error}")
        return record

    def _write_whole_run(self) -> str | None:
        """The file of what was seen of the whole run so far."""
        if self.sampler is None:
            return None
        path = self.folder / "whole_run" / f"rank{self.rank}.json"
        with suppress(OSError):  # a full disk: the rest of the recording goes first
            path.parent.mkdir(exist_ok=True)
            manifests.write_whole(path, manifests.encoded(self.sampler.written()))
        return self._relative(path) if path.is_file() else None

    def _trace(self) -> str | None:
        """The trace to read: ours, unless the program's own is all there is worth reading."""
        ours, own = self.trace.is_file(), self.own_trace.is_file()
        if own and (not ours or not self.recorder.measured.recorded):
            return self._relative(self.own_trace)
        return self._relative(self.trace) if ours else None

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _notes(self) -> tuple[str, ...]:
        notes = [*(self.inputs.notes if self.inputs else ()), *(self.log.notes if self.log else ())]
        if self.memory is not None:
            notes += self.memory.notes
            if self.ended and not torch_private.cuda_in_use():
                notes.append("the program used no CUDA device: there is no history of an allocator to record")
        if self.foreign.seen:
            kept = "; the trace is the one it exported" if self._trace() and self.own_trace.is_file() else ""
            notes.append(f"the program runs a profiler of its own, which was left to work undisturbed{kept}")
        return tuple(notes)


def _is_of_accelerator(failure: BaseException) -> bool:
    """Whether the device failed: torch.AcceleratorError, or RuntimeError in older versions of torch."""
    named = any(kind.__name__ == "AcceleratorError" for kind in type(failure).__mro__)
    return named or (
        isinstance(failure, RuntimeError) and str(failure).startswith(("CUDA error", "HIP error"))
    )
