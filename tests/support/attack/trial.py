"""One try: a command in a process of its own, under limits, and what is wrong with how it ended."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

SRC = Path(__file__).parents[3] / "src"
CPU_S, WALL_S = 30, 240  # a machine that is shared may take its time; the processor's is the command's own
BASE, TIMES = 1 << 30, 10  # bytes of memory: so many, and so many times the input's
FAULTS = ("fault of kinetoscope", "Traceback (most recent call last)", "panicked at")


@dataclass
class Trial:
    """A command and what it may do.

    ``{IN}`` stands in ``words`` for the input's path, ``{OUT}`` for a folder that is there and empty.
    ``statuses`` are the exit statuses that are right; ``look`` says what is wrong with what it left, given
    that folder and what was said.
    """

    words: list[str | bytes]
    inputs: Path
    statuses: tuple[int, ...] = (0, 2, 3)
    environment: dict[str, str] = field(default_factory=dict[str, str])
    prepare: Callable[[], object] = lambda: None  # in the new process, before the command
    signals: tuple[tuple[float, int], ...] = ()  # (seconds after the start, number)
    fresh: bool = False  # in an interpreter that is started anew; else one that has imported what it needs
    look: Callable[[Path, str], str] = lambda folder, said: ""


@dataclass(frozen=True)
class Outcome:
    """``wrong`` is empty if it held, and begins with the kind of failure."""

    wrong: str
    cpu_s: float
    peak_bytes: int


def attempted(trial: Trial) -> Outcome:
    """Run it."""
    before, size = _state(trial.inputs), _size(trial.inputs)
    with tempfile.TemporaryDirectory(prefix="attack-") as home:
        out = Path(home) / "out"
        out.mkdir()
        places = {"{IN}": os.fsencode(trial.inputs), "{OUT}": os.fsencode(out)}
        words = [_placed(word, places) for word in trial.words]
        status, said, used = _run(trial, words, Path(home))
        wrong = _judged(trial, status, said, used, size)
        if not wrong and _state(trial.inputs) != before:
            wrong = "input changed"
        return Outcome(wrong or trial.look(out, said), used.ru_utime + used.ru_stime, _peak(used))


def _run(trial: Trial, words: list[bytes], home: Path) -> tuple[int, str, resource.struct_rusage]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(SRC),
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "KINETOSCOPE_CACHE": "0",
        "POLARS_MAX_THREADS": "2",
        **trial.environment,
    }
    with (home / "said").open("w+b") as said:

        def begin() -> None:
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_S + 1, CPU_S + 5))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            trial.prepare()

        pid = (
            _started(words, environment, said.fileno(), begin)
            if trial.fresh
            else _forked(words, environment, said.fileno(), begin)
        )
        status, used = _waited(pid, trial.signals)
        said.seek(0)
        return status, said.read(1 << 20).decode(errors="replace"), used


def _started(words: list[bytes], environment: dict[str, str], said: int, begin: Callable[[], None]) -> int:
    command = [sys.executable, "-m", "kinetoscope", *words]
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=said,
        preexec_fn=begin,
        start_new_session=True,
    ).pid


def _forked(words: list[bytes], environment: dict[str, str], said: int, begin: Callable[[], None]) -> int:
    """Most of a short command is its imports; the tables' engine starts its threads in the child alone."""
    from kinetoscope import cli

    _imported()
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["kinetoscope", *map(os.fsdecode, words)]
    try:
        begin()
        status = cli.main()
        sys.stdout.flush()
        os._exit(status)
    except SystemExit as error:
        sys.stderr.flush()
        os._exit(error.code if isinstance(error.code, int) else 1)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(70)


@cache
def _imported() -> None:
    from kinetoscope.cli import VERBS
    from kinetoscope.findings import registry

    registry.rules()
    for verb in VERBS:
        import_module(f"kinetoscope.cli.{verb}")
    for room in ("analysis", "document", "export", "fleet", "render", "views"):
        for module in walk_packages(import_module(f"kinetoscope.{room}").__path__, f"kinetoscope.{room}."):
            import_module(module.name)


def _waited(number: int, signals: tuple[tuple[float, int], ...]) -> tuple[int, resource.struct_rusage]:
    began, left = time.monotonic(), list(signals)
    while True:
        pid, status, used = os.wait4(number, os.WNOHANG)
        if pid:
            with suppress(OSError):
                os.killpg(number, signal.SIGKILL)
            return os.waitstatus_to_exitcode(status), used
        since = time.monotonic() - began
        if left and since >= left[0][0]:
            with suppress(OSError):
                os.killpg(number, left.pop(0)[1])
        if since > WALL_S:
            os.killpg(number, signal.SIGKILL)
        time.sleep(0.01)


def _judged(trial: Trial, status: int, said: str, used: resource.struct_rusage, size: int) -> str:
    ended_by = {-number for _, number in trial.signals} | ({130, 143, 129} if trial.signals else set[int]())
    if used.ru_utime + used.ru_stime > CPU_S or status == -signal.SIGKILL:
        return "hang"
    for fault in FAULTS:
        # An interrupt while Python itself still starts is Python's own to say.
        if fault in said and not (trial.signals and said.rstrip().endswith("KeyboardInterrupt")):
            return f"fault: {said[said.index(fault) :][:300]!r}"
    if status not in trial.statuses and status not in ended_by:
        return f"status {status}: {said[-300:]!r}"
    if _peak(used) > BASE + TIMES * size:
        return f"memory: {_peak(used) >> 20} MiB of an input of {size >> 10} KiB"
    return ""


def _peak(used: resource.struct_rusage) -> int:
    return used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _placed(word: str | bytes, places: dict[str, bytes]) -> bytes:
    whole = os.fsencode(word)
    for name, path in places.items():
        whole = whole.replace(name.encode(), path)
    return whole


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        for inside in sorted(path.iterdir()):
            if inside.name != "tables":  # parsed tables may be kept and thrown away
                yield from _files(inside)


def _state(path: Path) -> dict[Path, bytes]:
    return {file: hashlib.sha256(file.read_bytes()).digest() for file in _files(path)}


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in _files(path))
