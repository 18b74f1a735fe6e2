"""The manifest of a recording: what was run, where, how it was timed, and which files hold the rest.

A recording is a folder:

    manifest.json                 this file, versioned
    ranks/rank0.json              what each process of the run wrote about itself, merged into manifest.json
    trace/rank0.json              one Kineto trace a rank: of the pass that records the host and the device
    trace/rank0.device.json       the same of the light pass, which records the device and little else
    trace/rank0.lines.json        the ops of one step more, in the lines of the program that call them
    trace/rank0.capture0.json     how a CUDA graph was captured, one file a capture
    compile/rank0.log             torch's structured compile log of each rank (TORCH_TRACE format)
    compile/rank0.scheduler.log   fusion rounds and cudagraph messages, as Inductor logs them
    compile/rank0.bytecode.jsonl  bytecode before and after, where the compile log lacks it
    compile/rank0.kernels.jsonl   registers, spills and shared memory of each Triton kernel's configurations
    compile/rank0.counters.json   torch._dynamo counters at exit
    generated/                    every module and kernel file that Inductor wrote
    whole_run/rank0.json          where the main thread was, from the import of torch to the end
    program/rank0.json            the source of the program's modules, and of what was compiled
    output/                       what the program's failure left behind: its traceback
    memory/rank0.pickle           the allocator's snapshot and history, on request, as torch's viewer reads it
    memory/rank0.json             the owners of that memory, by the program's own account; rank0.oom.… are
                                  both of the first allocation that failed
    inputs/rank0.json             what kernels were called with in one step, on request; tensors in rank0.bin
    signature                     that this user made generated/ and inputs/ (see ``recording.trust``)
    bench/                        what `bench` and `tune` measured
    tables/                       the trace's tables as Parquet, written by the first reader"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from kinetoscope.errors import InputError
from kinetoscope.hardware.nvml import NvmlReading
from kinetoscope.recording import plain_file

SCHEMA = "kinetoscope.recording/1"
FILE = "manifest.json"
MOST_RANKS = 1 << 20
_NUMBER = re.compile(r"[0-9]{1,4}")
# Errors of msgspec on bytes that are not the expected JSON: malformed, not UTF-8, nested past the stack.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    index: int
    name: str
    kind: str = "cuda"
    total_memory_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    multiprocessors: int | None = None
    driver: str | None = None


class ClockSample(NvmlReading, frozen=True, kw_only=True, omit_defaults=True):
    """NVML's reading of one device at one moment of the run (``time_ns`` on the wall clock)."""

    device: int
    time_ns: int
    moment: str


class TimedSteps(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Consecutive steps, each timed from one boundary to the next; seconds, one figure per step."""

    # by ``clock``; the device's is read at events that lie where the host marks its boundaries
    step_s: tuple[float, ...] = ()
    # by the host's clock: when the host got there, however far it runs ahead of the device
    host_s: tuple[float, ...] = ()
    # data_s, sync_s, gc_s: what the host spent waiting for its data loader, in calls that wait for the
    # device, and collecting garbage
    data_s: tuple[float, ...] = ()
    sync_s: tuple[float, ...] = ()
    gc_s: tuple[float, ...] = ()
    # of ``data_s``, in calls that found a batch of the loader's workers ready; empty: not known
    ready_s: tuple[float, ...] = ()
    # from the end of the step before to the beginning of this one, in an evaluation; empty: each began where
    # the one before had ended, or it is not known
    between_s: tuple[float, ...] = ()
    # the program's own number of the first of these steps; None where some between them are missing
    first: int | None = None
    clock: Literal["device", "host"] = "host"


class StepLevel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step, or a part that it is made of: an update of an iteration, a pass of a denoising step."""

    kind: str  # the source that it is taken from, as ``found_by`` of :class:`StepTimings`
    name: str  # in words: ``2 calls of UNet.forward under sample (guided.py:80)``
    calls: float = 1.0  # how many a step has
    # the NAME of ``run --step NAME`` that makes it the step; empty of one that is found unasked
    option: str = ""
    # from one to the next, at the median, by the host's clock, while steps were looked for; None: not timed,
    # or the step itself, whose times are those of the timed steps
    seconds: float | None = None


class StepCandidate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A source that ticked while steps were looked for, whether steps are taken from it or not."""

    kind: str
    name: str
    ticks: int  # how often it was seen; not all its calls of the whole run
    # from one to the next, at the median, by the host's clock; None where it ticked once
    seconds: float | None = None


class OptimizerStep(msgspec.Struct, frozen=True, omit_defaults=True):
    optimizer: str  # the class
    gradients: int  # how many of its parameters had one, as the program's first steps ended
    options: int = 0  # how many groups of parameters would do: those that differ in more than their names


class BatchPadding(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens of batches that have padding: the first of a data loader, or a step's models'."""

    tokens: int  # all of them
    padding: int  # those that are padding
    beyond: int  # those of ``padding`` that lie beyond the longest row of their batch
    rows: int = 0  # in which they are; 0: not known
    by_lengths: bool = False  # lengths tell it: what gets them may leave padding out
    by_ends: bool = False  # the tokens tell it: all rows end with one that is nowhere else


class LossLabels(msgspec.Struct, frozen=True):
    """The labels that a step's losses get, or its functions, which may pass them on to each other."""

    labels: int  # all of them
    ignored: int  # those that count nothing (``ignore_index``)
    tables: int  # in which they are, each for a softmax


class StepTimings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How steps were found and what they cost without and with the profiler.

    ``before`` and ``after`` are steps timed while nothing records, before the recording and after it;
    ``later`` are those that followed, timed on for some seconds by the host's clock and nothing else;
    ``recorded`` are those of the full pass. ``unprofiled_s`` is ``before.step_s`` and ``profiled_s`` is
    ``recorded.step_s``, in seconds. Older recordings have these two alone, by the host's clock, with the
    device waited for at both ends, so that only the mean is exact; of ``profiled_s`` this holds to this day.
    """

    found_by: str = "whole"
    """user | iteration | optimizer | request | module | compiled | graph | range | loop | whole, or program:
    of the one that its own profiler recorded"""
    step_name: str | None = None  # the module, function or range whose calls are the steps
    first_step: int | None = None  # the program's own number of the first recorded step, counted from 0
    passed: int | None = None  # steps of the program until they were only counted, if at all
    steps_after: int | None = None  # steps from then to the program's end; None where they were not counted
    warmup_steps: int = 0
    settled: bool = True  # the step time had settled before these steps were recorded
    cold: bool = False  # the trace holds the program's beginning, or all of it, not steps in steady state
    warmup_s: tuple[float, ...] = ()
    unprofiled_s: tuple[float, ...] = ()
    profiled_s: tuple[float, ...] = ()
    before: TimedSteps | None = None
    after: TimedSteps | None = None
    later: TimedSteps | None = None
    recorded: TimedSteps | None = None
    released: bool = False  # nothing of the profiler was left in the process when ``after`` was timed
    slowed: bool = False  # CUPTI was attached to the process when ``before`` was timed
    paused_s: float = 0.0  # seconds in which the program stood still for the recording
    loader_workers: int | None = None  # processes of the data loader that was waited for last; 0: it has none
    padding: BatchPadding | None = None  # None: no mask of it was seen
    labels: LossLabels | None = None  # None: none were seen
    # of the calls of modules in the step with lines, which gets what an earlier one got, with the same
    # weights: (3, 5) where the sixth repeats the fourth
    same_calls: tuple[tuple[int, int], ...] = ()
    uncounted_calls: tuple[int, ...] = ()  # of the later ones: in inference mode, which counts no writes
    collects_at: str | None = None  # the line that requests collections of garbage: train.py:12
    levels: tuple[StepLevel, ...] = ()  # the step, then what it is made of, the outermost first
    candidates: tuple[StepCandidate, ...] = ()  # the surest sign of a step first
    updates: tuple[OptimizerStep, ...] = ()  # of a step, in order
    notes: tuple[str, ...] = ()

    @property
    def profiled_step_s(self) -> float | None:
        """Seconds of a step with the profiler: the mean, which holds by either clock."""
        return sum(self.profiled_s) / len(self.profiled_s) if self.profiled_s else None


class RankRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The files and timings of one process of the run: paths are relative to the recording."""

    rank: int
    pid: int = 0
    trace: str | None = None
    device_trace: str | None = None  # of the light pass: device, runtime calls and steps, no ops
    lines: str | None = None  # the trace of one step more, with the lines of the program
    captures: tuple[str, ...] = ()  # of how CUDA graphs were captured, by the numbers of their replays
    compile_log: str | None = None
    steps: StepTimings = StepTimings()
    clocks: tuple[ClockSample, ...] = ()
    recording_ended: bool = False  # no more is waited for, though the program may still run
    exit: str = "ok"  # running | ok | exception: TYPE | sys.exit: N | os.CALL: ARGUMENT | signal: NAME
    host: str = ""
    traceback: str | None = None
    scheduler_log: str | None = None
    bytecode: str | None = None
    kernels: str | None = None
    counters: str | None = None
    memory: str | None = None  # the allocator's snapshot at the end of the recorded steps
    memory_held: str | None = None
    oom: str | None = None  # the snapshot where the first allocation failed
    oom_held: str | None = None
    program: str | None = None
    whole_run: str | None = None  # what the program did from its start to its end
    spawned: bool = False  # it started processes of its own by multiprocessing, which are not recorded
    wall_s: float | None = None  # from the import of torch to the end
    phase: str | None = None  # what the recorder was doing when the process died of a fault; else None
    peak_memory_bytes: int | None = None  # of the device's allocator; of the process where there is no device
    notes: tuple[str, ...] = ()

    def died_recording(self) -> str | None:
        """A sentence where a fault ended the process while the recorder was at work, and may be its doing."""
        if self.phase is None:
            return None
        return (
            f"the program died ({self.exit}) while it was being recorded (phase: {self.phase}), which may be "
            'the cause: try "kinetoscope run --careful …", and run it without kinetoscope to compare'
        )


# Fields of a RankRecord that name files, relative to the recording.
PATHS = (
    "trace", "device_trace", "lines", "compile_log", "traceback", "scheduler_log", "bytecode", "kernels",
    "counters", "memory", "memory_held", "oom", "oom_held", "program", "whole_run",
)  # fmt: skip


class Environment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The machine and software that it ran on; ``variables``: names known to matter and not to be secret."""

    python: str = ""
    torch: str | None = None
    triton: str | None = None
    cuda: str | None = None
    rocm: str | None = None
    host: str = ""
    cpu: str = ""
    cpu_count: int = 0
    load_average: float | None = None  # of the last minute, of the whole machine
    devices: tuple[DeviceInfo, ...] = ()
    variables: dict[str, str] = {}

    @property
    def busy(self) -> bool:
        """Whether more wanted to run than there are cores when the program began, as far as is known."""
        return self.cpu_count > 0 and (self.load_average or 0.0) > self.cpu_count


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    schema: str = SCHEMA
    kinetoscope: str = ""
    created: str = ""
    commit: str | None = None  # that was checked out where it was begun; changes since are not in it
    command: tuple[str, ...] = ()
    options: dict[str, object] = {}  # those of capture, as they were
    environment: Environment = Environment()
    ranks: tuple[RankRecord, ...] = ()
    exit: str = "running"  # as in RankRecord, of the command that was run
    status: int | None = None  # the program's own exit status; minus the number of the signal that ended it
    notes: tuple[str, ...] = ()


def is_recording(path: Path) -> bool:
    """True for a folder that holds a manifest."""
    return (path / FILE).is_file()


def read(folder: Path) -> Manifest:
    """The manifest of the recording in ``folder``. Raises InputError where there is none, it is not JSON, or
    a newer kinetoscope wrote it."""
    path = folder / FILE
    try:
        data = plain_file.content(path)
    except OSError as error:
        raise InputError(
            f"cannot read the recording's manifest: {error.strerror or error}",
            where=str(path),
            hint="name a folder that `kinetoscope run` wrote, or a trace file",
        ) from error
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except UNREADABLE as error:
        raise InputError(f"the manifest is damaged: {error}", where=str(path)) from error
    name, _, version = manifest.schema.rpartition("/")
    known, _, newest = SCHEMA.rpartition("/")
    if name != known or not _NUMBER.fullmatch(version) or int(version) > int(newest):
        raise InputError(
            f"the recording has schema {manifest.schema!r}; this kinetoscope reads {SCHEMA!r}",
            where=str(path),
            hint="upgrade kinetoscope",
        )
    check(folder, manifest.ranks)
    return manifest


def check(folder: Path, ranks: tuple[RankRecord, ...]) -> None:
    """See that what the records name lies in the recording itself. Raises InputError where it does not, links
    followed, or ranks are not numbered as ranks are."""
    where = str(folder / FILE)
    numbers = [record.rank for record in ranks]
    if len(set(numbers)) < len(numbers) or not all(0 <= number < MOST_RANKS for number in numbers):
        raise InputError("the manifest is damaged: its ranks are not numbered from 0", where=where)
    home = os.path.realpath(folder)
    for record in ranks:
        for path in (*(getattr(record, field) for field in PATHS), *record.captures):
            if path is not None and not _is_inside(home, path):
                raise InputError(
                    f"the manifest names a file outside of its recording, {path!r}, which is not opened",
                    where=where,
                    hint="if you trust it, copy that file into the recording and name it there",
                )


def _is_inside(home: str, path: str) -> bool:
    """Whether a path, links followed, stays in the folder."""
    if not path or "\0" in path or os.path.isabs(path):
        return False
    return os.path.realpath(os.path.join(home, path)).startswith(home + os.sep)


def write(folder: Path, manifest: Manifest) -> None:
    write_whole(folder / FILE, indented(manifest))


def indented(manifest: Manifest) -> bytes:
    return msgspec.json.format(encoded(manifest), indent=2)


def encoded(row: object) -> bytes:
    """The JSON of anything. Bytes of a command line or a path that are no UTF-8 stand in it as ``\\xff``."""
    try:
        return msgspec.json.encode(row)
    except UnicodeEncodeError:
        return msgspec.json.encode(_as_text(msgspec.to_builtins(row)))


def _as_text(value: object) -> object:
    match value:
        case str():
            with suppress(UnicodeEncodeError):  # a surrogate that stands for no byte
                return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {_as_text(name): _as_text(one) for name, one in value.items()}
        case list() | tuple():
            return [_as_text(one) for one in value]
        case _:
            return value


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that others may read at any time: they see all of it, or what was there before."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)  # it is still there where the disk was full


PROGRAM_SCHEMA = "kinetoscope.program/1"


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """``program/rank0.json`` of a recording: the program's own source.

    ``files``: the text of each by its absolute path, as it stood when the program ended."""

    schema: str = PROGRAM_SCHEMA
    files: dict[str, str]
