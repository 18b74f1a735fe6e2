"""`kinetoscope record`: finds the processes of a server that wait, and has those that use a GPU recorded."""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kinetoscope.capture.live import channel
from kinetoscope.capture.live.channel import Greeting, Listening, LiveRequest, Progress
from kinetoscope.capture.options import Options
from kinetoscope.errors import InputError, KinetoscopeError, UsageError
from kinetoscope.recording import folder as folders

HOW = (
    "start the server by `kinetoscope run --on-request -- COMMAND`, or call kinetoscope.listen() at its "
    "start; a process that was started otherwise cannot be recorded from outside"
)
WRITING_S = 120.0  # more than what a request allows, for stopping and writing

Say = Callable[[str], None]


@dataclass
class _Process:
    pid: int
    connection: socket.socket
    steps: bool = False
    recorded: bool = False
    over: str = ""
    kept: bytes = b""

    def read(self) -> Iterator[Progress]:
        try:
            piece = self.connection.recv(1 << 16)
        except OSError:
            piece = b""
        if not piece:
            self.over = self.over or "it ended meanwhile; what it wrote is in the recording"
            return
        *lines, self.kept = (self.kept + piece).split(b"\n")
        for line in lines:
            yield msgspec.json.decode(line, type=Progress)


def record(target: str | None, steps: int, seconds: float, say: Say) -> Path:
    """Have the steps of a server recorded; returns the recording's folder.

    Args:
        target: a process's number, a folder of recordings, or None for the one server that waits.
        say: called with what there is to tell the user meanwhile.

    Raises:
        UsageError: what is requested cannot be.
        InputError: no such process waits.
        KinetoscopeError: nothing was recorded.
    """
    try:
        request = LiveRequest(steps=steps, seconds=seconds).checked()
    except ValueError as error:
        most = f"1 to {channel.MOST_STEPS:,} steps, up to {channel.LONGEST_S:,.0f} seconds"
        raise UsageError(f"{error}: {steps} steps, {seconds:g} seconds", hint=most) from error
    chosen = _chosen(_waiting(target))
    home = Path(os.fsdecode(chosen[0][1].folder))
    number, folder = _made(home)
    folders.begin(folder, chosen[0][1].command, Options(on_request=True, steps=steps))
    processes: list[_Process] = []
    for rank, (place, greeting) in enumerate(chosen):
        if (connection := channel.connected(place)) is not None:
            channel.send(connection, msgspec.structs.replace(request, record=number, rank=rank))
            connection.settimeout(None)
            processes.append(_Process(greeting.pid, connection))
    _follow(processes, seconds + WRITING_S, say)
    folders.finish(folder, exit="ok", status=None, alone=False)
    if not any(process.recorded for process in processes) and not any((folder / "trace").glob("rank*.json")):
        why = next((process.over for process in processes if process.over), "the server ended")
        _remove(folder)
        raise KinetoscopeError(f"nothing was recorded: {why}", where=f"process {chosen[0][1].pid}")
    return folder


def _remove(folder: Path) -> None:
    """Remove a recording's folder if it is empty."""
    with suppress(OSError):
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()


def _waiting(target: str | None) -> list[Listening]:
    """The processes that wait, of those that are meant. Raises InputError where there is none, UsageError
    where it is not clear which are meant."""
    if not Path("/proc/net/unix").exists():
        raise UsageError("this system has no sockets that a server could wait at", hint="use Linux")
    waiting = channel.listening()
    if target is None:
        waiting = [one for one in waiting if _owner(one.pid) == os.getuid()]
        if len({one.mark for one in waiting}) > 1:
            pids = ", ".join(str(one.pid) for one in waiting)
            raise UsageError("several servers wait", where=f"processes {pids}", hint="name one of them")
        where = "this machine"
    elif target.isdecimal():
        pid, where = int(target), f"process {target}"
        owner = _owner(pid)
        if owner is None:
            raise InputError("there is no such process", where=where, hint="`ps` lists those that run")
        if owner != os.getuid():
            raise InputError(
                "it is another user's process", where=where, hint="record it as the user that started it"
            )
        family = {pid, *_descendants(pid)}
        waiting = [one for one in waiting if one.pid in family]
    else:
        folder, where = Path(target).resolve(), target
        if not folder.is_dir():
            raise InputError(
                "there is no such folder", where=where, hint="name a process, or a folder of `run`"
            )
        waiting = [one for one in waiting if one.mark == channel.mark(folder)]
    if not waiting:
        raise InputError("no process there waits to be recorded", where=where, hint=HOW)
    return waiting


def _chosen(waiting: Sequence[Listening]) -> list[tuple[Listening, Greeting]]:
    """The processes to record: those that use a GPU, or all; each after those that it started. Raises
    InputError where none answers, KinetoscopeError where one is being recorded."""
    greeted = [(one, greeting) for one in waiting if (greeting := _greeting(one)) is not None]
    if not greeted:
        pids = ", ".join(str(one.pid) for one in waiting)
        raise InputError(
            "it does not answer", where=f"process {pids}", hint="is it stopped, or another user's?"
        )
    chosen = [pair for pair in greeted if pair[1].device] or greeted
    busy = next((greeting.pid for _, greeting in chosen if greeting.busy), None)
    if busy is not None:
        raise KinetoscopeError(
            "it is being recorded already", where=f"process {busy}", hint="try again when that is over"
        )
    above = {pid: sum(pid in _descendants(other.pid) for other, _ in chosen) for (pid, _, _), _ in chosen}
    return sorted(chosen, key=lambda pair: (-above[pair[0].pid], pair[0].pid))


def _greeting(place: Listening) -> Greeting | None:
    connection = channel.connected(place)
    if connection is None:
        return None
    with connection, suppress(OSError, StopIteration, msgspec.DecodeError):
        channel.send(connection, LiveRequest())
        return msgspec.json.decode(next(channel.lines(connection)), type=Greeting)
    return None


def _made(home: Path) -> tuple[int, Path]:
    """A new folder in ``home``, the next number's."""
    for number in range(1, 1000):
        folder = home / f"{number:03}"
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return number, folder
    raise UsageError("a thousand recordings are there already", where=str(home))


def _follow(processes: Sequence[_Process], seconds: float, say: Say) -> None:
    """Say what the processes say until all of them are done; Ctrl-C ends the recordings, and keeps them."""
    left = selectors.DefaultSelector()
    for process in processes:
        left.register(process.connection, selectors.EVENT_READ, process)
    while left.get_map():
        try:
            _hear(left, seconds, say, several=len(processes) > 1)
            if any(process.recorded for process in processes):  # who has no steps now only starts others
                _withdraw(process for process in processes if not (process.steps or process.over))
        except KeyboardInterrupt:  # noqa: PERF203
            say("ending the recording (Ctrl-C again leaves it to itself)")
            _withdraw(processes)


def _withdraw(processes: Iterable[_Process]) -> None:
    """Have processes end their recording, and keep what there is."""
    for process in processes:
        with suppress(OSError):
            process.connection.shutdown(socket.SHUT_WR)


def _hear(left: selectors.BaseSelector, seconds: float, say: Say, *, several: bool) -> None:
    """Print the processes' next messages; a process that is done is taken off ``left``."""
    ready = left.select(seconds)
    if not ready:
        raise KinetoscopeError("the server does not answer any more", hint="is it stopped?")
    for key, _ in ready:
        process: _Process = key.data
        for progress in process.read():
            say(f"process {process.pid}: {progress.text}" if several else progress.text)
            process.steps = process.steps or progress.steps
            if progress.over:
                process.over, process.recorded = progress.text, progress.recorded
        if process.over:
            left.unregister(process.connection)
            process.connection.close()


def _owner(pid: int) -> int | None:
    """The user of a process; None where there is none."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def _descendants(pid: int) -> Iterator[int]:
    """The processes that a process started, and those that these did."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            parents.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(
                int(path.parent.name)
            )
    left = [pid]
    while left:
        children = parents.get(left.pop(), [])
        yield from children
        left += children
