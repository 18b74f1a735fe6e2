"""`kinetoscope run`: start the program as its own interpreter would, wait for it, merge what it left.

The program runs in a child process of the same interpreter, started with the very command line that plain
Python would have been given: `sys.argv`, `__main__`, `sys.path`, `-m`, multiprocessing and tracebacks are
as without us because they are made by the same interpreter from the same words. What records it is a
`sitecustomize` that PYTHONPATH leads to, and that hides itself from the program and from the program's own
children.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import kinetoscope
from kinetoscope import numbers
from kinetoscope.capture.options import Options
from kinetoscope.capture.process.child import Instructions
from kinetoscope.capture.process.ranks import job, on_several_hosts, rank_and_world, recorded_count
from kinetoscope.capture.process.recording import write
from kinetoscope.capture.process.wait import wait
from kinetoscope.errors import InputError, KinetoscopeError, UsageError
from kinetoscope.recording import folder as folders
from kinetoscope.recording import manifest as manifests
from kinetoscope.recording.manifest import Manifest, RankRecord, encoded
from kinetoscope.recording.rendezvous import agree_on_folder, await_ranks

# Once the recording has ended, steps may be timed on for that long (`recorder.phases`: what `STANDBY_S` is
# longer than `TIMED_ON_S`), and a moment.
TIMED_ON_S = 22.0
PATIENCE_S = 2.0  # a process that was asked to end has that long


@dataclass(frozen=True)
class ProgramCommand:
    """The command line to run, a name for the recording, and whether it starts other processes."""

    command: tuple[str, ...]
    name: str
    launcher: bool


def program(words: Sequence[str]) -> ProgramCommand:
    """The command line of ``script.py args…``, ``-m module args…``, or another program that starts Python.
    Raises UsageError where nothing is named, and InputError where the script does not exist."""
    interpreter = [sys.executable, *_interpreter_flags()]
    if words[:1] == ["-m"]:
        if len(words) < 2:
            raise UsageError(
                "-m needs the name of a module", hint="kinetoscope run -m package.module [arguments]"
            )
        module, words = words[1], words[2:]
        launcher = module.startswith(("torch.distributed.run", "torch.distributed.launch", "accelerate"))
        return ProgramCommand(
            (*interpreter, "-m", module, *words), _script(words) if launcher else module, launcher
        )
    if not words:
        raise UsageError("there is nothing to run", hint="kinetoscope run [options] script.py [arguments]")
    first = words[0]
    if first == "-":  # as for Python: the script is standard input
        return ProgramCommand((*interpreter, *words), "stdin", False)
    is_file = os.path.exists(first) and not os.path.isdir(first)  # or a pipe, as of `<(...)`
    if first.endswith(".py") or (is_file and not os.access(first, os.X_OK)):
        if not is_file:
            raise InputError("the script does not exist", where=first, hint="check the path")
        return ProgramCommand((*interpreter, *words), Path(first).stem, False)
    if os.path.isdir(first) and os.path.isfile(os.path.join(first, "__main__.py")):
        return ProgramCommand((*interpreter, *words), Path(first).name, False)
    # A console script of this very environment may not be on PATH.
    sibling = os.path.join(os.path.dirname(sys.executable), first)
    executable = shutil.which(first) or (sibling if os.access(sibling, os.X_OK) else None)
    if executable is None:
        raise InputError(
            "no such script or program", where=first, hint="name a Python script, or use -m for a module"
        )
    return ProgramCommand((executable, *words[1:]), _script(words[1:]) or Path(first).name, True)


def _script(words: Sequence[str]) -> str:
    """The name of the script that a launcher is to start; empty where there is none."""
    return next((Path(word).stem for word in words if word.endswith(".py")), "")


def environment(instructions: Instructions, launcher: bool, variables: Mapping[str, str]) -> dict[str, str]:
    """The child's environment: the user's, with what ``bootstrap/sitecustomize.py`` reads and removes."""
    home = Path(kinetoscope.__file__).parent
    bootstrap = str(home / "capture" / "process" / "bootstrap")
    given = variables.get("PYTHONPATH")
    return {
        **variables,
        "KINETOSCOPE_CAPTURE": encoded(instructions).decode(),
        "KINETOSCOPE_HOME": str(home.parent),
        **({"KINETOSCOPE_LAUNCHER": ".".join(map(str, sys.version_info[:2]))} if launcher else {}),
        **({"KINETOSCOPE_ON_REQUEST": "1"} if instructions.options.on_request else {}),
        **({} if given is None else {"KINETOSCOPE_PYTHONPATH": given}),
        "PYTHONPATH": os.pathsep.join([bootstrap, given] if given else [bootstrap]),
    }


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended: the recording, and the program's exit status (minus a signal's number)."""

    folder: Path | None  # None where the program ran without being recorded
    manifest: Manifest
    status: int
    speaks: bool  # False for the ranks but the first, where a launcher started a `kinetoscope run` a rank
    host: str = ""  # which, where it is one of several
    stopped: bool = False  # the program was ended on purpose, since all was recorded


def run(
    what: ProgramCommand,
    options: Options,
    out: Path | None,
    announce: Callable[[Path], None],  # called with the recording's folder before the program starts
    *,
    stop: bool = False,  # end the program once everything is recorded
    # a report is wanted at the end, for which the recording is read as soon as it is made
    report: bool = False,
) -> RunOutcome:
    """Run the program to its end and return its recording; without one where none can be made. Raises
    UsageError where ``out`` cannot be the recording's folder, OSError where the program cannot be started."""
    place = rank_and_world(os.environ)
    host = folders.host() if what.launcher and on_several_hosts(what.command, os.environ) else ""
    try:
        folder, variables = _begin(what, options, out, place, host, announce)
    except Exception as error:
        if out is not None and isinstance(error, UsageError):
            raise
        reason = " ".join(str(error).split())
        say(f"the program runs without being recorded: {reason or type(error).__name__}")
        status, _ = wait(what.command, os.environ)
        return RunOutcome(None, Manifest(exit=_exit(status), status=status), status, False)
    is_recorded = _recorded(folder)
    speaks = place is None or place[0] == 0
    ahead = (
        report and speaks and not (stop or options.on_request or os.environ.get("KINETOSCOPE_CACHE") == "0")
    )
    reading = _ReadAhead(folder, is_recorded) if ahead else None
    try:
        status, stopped = wait(
            what.command, variables, is_recorded if stop else None, reading.begin if reading else None
        )
    finally:
        if reading is not None:
            reading.end()
    if options.on_request:
        return RunOutcome(folder, Manifest(exit=_exit(status), status=status), status, speaks, host)
    if place is not None:
        rank, world = place
        if rank != 0:
            ended = Manifest(exit=_exit(status), status=status)
            return RunOutcome(folder, ended, status, False, stopped=stopped)
        await_ranks(what.name, out, folder, recorded_count(options.ranks, world, os.environ))
    manifest = folders.finish(
        folder, exit=_exit(status), status=status, alone=not what.launcher and place is None
    )
    return RunOutcome(folder, manifest, status, True, host, stopped)


def _begin(
    what: ProgramCommand,
    options: Options,
    out: Path | None,
    place: tuple[int, int] | None,
    host: str,
    announce: Callable[[Path], None],
) -> tuple[Path, dict[str, str]]:
    """The recording's folder, made, and the environment of the program that is to be recorded there."""
    named = job(what.command, os.environ) if host and out is None else ""
    if named:
        out = folders.of_job(what.name, named, host)
    folder, first = agree_on_folder(what.name, out, place[0] if place else None, host)
    variables = environment(
        Instructions(folder=os.fsencode(folder), options=options), what.launcher, os.environ
    )
    if first and options.on_request:  # a folder of recordings, and none itself
        announce(folder)
    elif first:
        try:
            folders.begin(folder, what.command, options)
        except UsageError as error:  # a full disk: no fault of the folder that was named
            raise KinetoscopeError(error.what, where=error.where) from error
        announce(folder)
    return folder, variables


def _recorded(folder: Path) -> Callable[[], bool]:
    """Whether every process that is recorded has recorded all that it was to."""

    def is_over() -> bool:
        try:
            records = [report.record for report in folders.read_ranks(folder)]
        except (InputError, OSError):  # the folder is being taken away
            return False
        return bool(records) and all(record.recording_ended for record in records)

    return is_over


class _ReadAhead:
    """Reads a recording while its program goes on, in a process of its own (`sources.ahead`).

    It begins when steps are no longer timed, which it would slow.
    """

    def __init__(self, folder: Path, is_recorded: Callable[[], bool]) -> None:
        self.folder, self.is_recorded = folder, is_recorded
        self.recorded_at: float | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def begin(self) -> bool:
        """Begin if it is time; whether it has begun."""
        now = time.monotonic()
        if self.recorded_at is None and self.is_recorded():
            self.recorded_at = now
        if self.recorded_at is None or now - self.recorded_at < TIMED_ON_S:
            return False
        command = [sys.executable, "-m", "kinetoscope.sources.ahead", str(self.folder)]
        with suppress(OSError):  # without it the report reads
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        return True

    def end(self) -> None:
        """End it; what it has not read by now the report reads faster."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _exit(status: int) -> str:
    if status < 0:
        return f"signal: {_signal_name(-status)}"
    return f"sys.exit: {status}" if status else "ok"


def _signal_name(number: int) -> str:
    """Python names only the first and the last of the real-time signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}" if hasattr(signal, "SIGRTMIN") else str(number)


def _interpreter_flags() -> list[str]:
    """The options of Python that we were started with: `python -O -X dev -m kinetoscope run …`, or `-Om`."""
    flags: list[str] = []
    words = iter(sys.orig_argv[1:])
    for word in words:
        if word.startswith("--"):  # Python has one such option, with a value
            flags += [word, next(words, "")]
            continue
        option = re.match("-[^cmWX]*", word)
        if option is None:
            break
        letters, value = option[0], word[option.end() :]
        if value[:1] in ("W", "X"):
            flags += [letters + value, *([] if value[1:] else [next(words, "")])]
            continue
        flags += [letters] if letters != "-" else []
        if value:  # -c or -m, which is us
            break
    return flags


def say(text: str) -> None:
    write(text, sys.stderr)


def announce(folder: Path) -> None:
    say(f"recording into {shown(folder)}")


def announce_waiting(folder: Path) -> None:
    say(f"nothing is recorded until it is requested: kinetoscope record {shown(folder)} --steps 200")


def shown(folder: Path) -> str:
    """The folder as the user would type it."""
    try:
        relative = os.path.relpath(folder)
    except FileNotFoundError:  # there is no working directory any more
        return str(folder)
    return str(folder) if relative.startswith("..") else relative


def summarize(outcome: RunOutcome, *, report: bool) -> None:
    """Say how the program ended, what was recorded, and where it is; then show the report."""
    manifest, recording = outcome.manifest, outcome.folder
    if recording is None:
        return
    for death in filter(None, map(RankRecord.died_recording, manifest.ranks)):
        say(death)
        break
    if outcome.stopped:
        say("everything is recorded, so the program was ended, as --stop asks")
    elif outcome.status == -signal.SIGINT or manifest.exit == "exception: KeyboardInterrupt":
        say("the program was interrupted")
    elif outcome.status < 0:
        by = manifest.exit.removeprefix("signal: ")
        say(f"the program was ended by {by}; its exit status was {outcome.status}")
    elif outcome.status:
        say(f"the program failed ({manifest.exit}); its exit status was {outcome.status}")
    if not manifest.ranks and not manifest.notes and not manifests.is_recording(recording):
        made = sum(map(manifests.is_recording, recording.iterdir())) if recording.is_dir() else 0
        say(f"recordings that were requested: {made}{f', in {shown(recording)}' if made else ''}")
        return
    if not manifest.ranks:
        unseen = (
            "nothing was recorded: no process of the program imported torch, or none could be watched; "
            "processes that a script starts are not recorded: `kinetoscope run` what they run"
        )
        for note in manifest.notes or (unseen,):
            say(note)
        return
    if not any(folders.has_work(recording, rank) for rank in manifest.ranks):
        say("the program ended before it called an op of torch: there is nothing to report")
        if any(rank.spawned for rank in manifest.ranks):
            how = "start them with torchrun, or put `with kinetoscope.profile():` around what they run"
            say(f"processes that it starts by multiprocessing are not recorded: {how}")
        return
    first = manifest.ranks[0]
    for note in dict.fromkeys(
        (*manifest.notes, *(n for r in manifest.ranks for n in (*r.notes, *r.steps.notes)))
    ):
        say(note)
    say(_steps(first) + (f", on each of {len(manifest.ranks)} ranks" if len(manifest.ranks) > 1 else ""))
    recorded = any(rank.trace for rank in manifest.ranks)
    reported = False
    if report and recorded:
        command = [sys.executable, "-m", "kinetoscope", "report", shown(recording)]
        reported = subprocess.call(command, stdout=sys.stderr) == 0
    say(f"the recording is {shown(recording)}")
    if recorded and not reported:  # a report ends with the next commands itself
        say(f"next: kinetoscope report {shown(recording)} -o report.html")
    if together := folders.of_all_hosts(recording):
        say(f"of all hosts together, once they have ended: kinetoscope report {shown(together)}")
    elif outcome.host:
        say("other hosts record steps of their own: with one --out on a disk that all share they agree")


def _steps(record: RankRecord) -> str:
    steps = record.steps
    if not steps.profiled_s:
        if record.trace is None:
            return "no trace was recorded"
        what = {"whole": "recorded the program whole", "program": "kept what the program recorded itself"}
        return what.get(steps.found_by, "recorded the program's first steps")
    of_loop = ", by its" if steps.found_by.endswith("loop") else ""
    found = f"{steps.found_by}{of_loop} {steps.step_name or ''}".rstrip()
    light = ", and the device alone in a second pass" if record.device_trace else ""
    return f"recorded {numbers.count(len(steps.profiled_s), 'step')} ({found}){light}"
