"""The request to the process that measures, and its result; both travel as JSON files."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import msgspec

import kinetoscope
from kinetoscope import signals
from kinetoscope.bench.autotune.configurations import Tuned
from kinetoscope.bench.autotune.winners import Applied, Promise
from kinetoscope.bench.autotune.worth import Copy, Worth
from kinetoscope.bench.kernels.ncu import NcuRow
from kinetoscope.bench.kernels.replay import ModuleResult
from kinetoscope.bench.kernels.timing import KernelResult
from kinetoscope.errors import KinetoscopeError, ProgramError

Task = Literal["kernels", "autotune", "module", "launch", "replay"]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    task: Task
    input: str
    pattern: str = "*"
    graph: str = ""
    order: tuple[str, ...] = ()
    """Kernels in the order of their importance; unnamed ones follow, most bytes first."""
    limit: int = 0
    seconds: float = 1.0
    timer: str | None = None
    configurations: tuple[dict[str, int], ...] = ()
    apply_in: str | None = None  # the folder to write the winners into
    with_ncu: bool = False


class BenchResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    device: str
    torch: str
    triton: str | None = None
    kernels: tuple[KernelResult, ...] = ()
    tuned: tuple[Tuned, ...] = ()
    modules: tuple[ModuleResult, ...] = ()
    worth: tuple[Worth, ...] = ()
    """Every kernel's time and its least, those that could win most first where they were ranked."""
    copies: tuple[Copy, ...] = ()  # the copies that the least times are taken from
    applied: Applied | None = None
    promises: tuple[Promise, ...] = ()
    ncu: tuple[NcuRow, ...] = ()
    problems: tuple[str, ...] = ()
    error: tuple[str, str | None, str | None] | None = None
    """The error, its place and a hint, where the whole request failed."""
    notes: tuple[str, ...] = ()


def ask(request: Request) -> BenchResult:
    """Run a request in a process of its own, with this interpreter. Raises KinetoscopeError where the worker
    raised it, ProgramError where the worker died."""
    notes = busy_machine()
    with tempfile.TemporaryDirectory(prefix="kinetoscope-") as folder:
        question, answer = Path(folder, "request.json"), Path(folder, "result.json")
        question.write_bytes(msgspec.json.encode(request))
        with signals.as_exceptions():
            status = subprocess.call(command(question, answer), env=environment())
        if not answer.exists():
            raise ProgramError(
                f"the measuring process ended with status {status} and left no result",
                hint="its last words are above",
            )
        result = msgspec.json.decode(answer.read_bytes(), type=BenchResult)
    if result.error is not None:
        what, where, hint = result.error
        raise KinetoscopeError(what, where=where, hint=hint)
    return msgspec.structs.replace(result, notes=(*notes, *result.notes))


def busy_machine() -> tuple[str, ...]:
    """A note where more wants to run than there are cores; none where the load is not known."""
    try:
        load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    except (OSError, AttributeError):
        return ()
    if load <= cores:
        return ()
    text = f"the machine was busy, a load of {load:.1f} on {cores} cores, when measuring began"
    return (f"{text}: times on the host are longer and spread more than on a quiet one",)


def command(request: Path, result: Path) -> list[str]:
    """The measuring process. Unlike with ``-m``, the contents of the working folder, which may be another
    user's recording, are not imported in place of torch or the standard library."""
    program = "import sys; sys.path[:] = filter(None, sys.path); from kinetoscope.bench.worker import main; "
    return [sys.executable, "-c", f"{program}sys.exit(main(*sys.argv[1:]))", str(request), str(result)]


def environment(extra: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """The user's environment with what is added to it, in which this very kinetoscope is found."""
    source = str(Path(kinetoscope.__file__).resolve().parent.parent)
    variables = {**os.environ, **extra}
    inherited = variables.get("PYTHONPATH")
    return {**variables, "PYTHONPATH": os.pathsep.join([source, *([inherited] if inherited else [])])}
