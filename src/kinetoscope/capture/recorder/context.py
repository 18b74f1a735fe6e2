"""What all phases of one recording share, and what they find out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kinetoscope.capture.compiler.kernel_inputs import KernelInputs
from kinetoscope.capture.options import Options
from kinetoscope.capture.recorder.profiler import Device, ProfilerSession
from kinetoscope.capture.recorder.provisional import Provisional
from kinetoscope.capture.steps.detector import Source, StepDetector
from kinetoscope.capture.steps.start import Start, at_once
from kinetoscope.capture.steps.timer import StepTimer
from kinetoscope.recording.manifest import StepTimings


@dataclass
class Measured:
    """What the phases find out; the fields of :class:`StepTimings`, and whether a trace is written."""

    found_by: str = "whole"
    step_name: str | None = None
    first_step: int | None = None
    warmup_s: list[float] = field(default_factory=list[float])
    settled: bool = True
    unprofiled_s: list[float] = field(default_factory=list[float])
    profiled_s: list[float] = field(default_factory=list[float])
    notes: list[str] = field(default_factory=list[str])
    written: bool = False

    def timings(self) -> StepTimings:
        """How the steps were found and timed."""
        return StepTimings(
            found_by=self.found_by,
            step_name=self.step_name or None,
            first_step=self.first_step,
            warmup_steps=self.first_step or 0,
            settled=self.settled and bool(self.profiled_s),
            cold=self.written and not self.profiled_s,
            warmup_s=tuple(self.warmup_s),
            unprofiled_s=tuple(self.unprofiled_s),
            profiled_s=tuple(self.profiled_s),
            notes=tuple(self.notes),
        )


@dataclass
class Context:
    """What all phases of one recording share.

    Attributes:
        device: torch's profiler and device, behind a few verbs.
        trace: the file to write.
        inputs: keeps what kernels are called with in the step after the recorded ones.
        start_agreed: agrees on the step at which to start.
        lockstep: other ranks record the same steps, so that their number must not depend on our clock.
        compilations: a number that grows while something compiles.
        following: called with the source that leads, once that is decided.
        moment: called with the names of the moments worth a reading of the device's clocks.
        saved: called when the trace is on disk, and again when all is that was asked for.
        clock: seconds.
    """

    options: Options
    device: Device
    trace: Path
    inputs: KernelInputs | None = None
    start_agreed: Start = at_once
    lockstep: bool = False
    compilations: Callable[[], int] = lambda: 0
    following: Callable[[Source], None] = lambda source: None
    moment: Callable[[str], None] = lambda name: None
    saved: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        self.detector = StepDetector(may_lead=not self.options.whole)
        self.timer = StepTimer(self.clock, self.compilations)
        self.provisional = Provisional(self.device, whole=self.options.whole)
        self.measured = Measured()

    def write(self, session: ProfilerSession) -> None:
        """End a session that is recording, and write its trace."""
        session.mark(None)
        session.stop()
        session.export(self.trace)
        self.measured.written = True
