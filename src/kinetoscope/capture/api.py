"""``kinetoscope.profile``: a recording from Python, of a block, a function or a loop with its own steps."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import ContextDecorator
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import kinetoscope
from kinetoscope.capture import torch_private
from kinetoscope.capture.options import Options, described
from kinetoscope.capture.process.ranks import rank_and_world
from kinetoscope.capture.process.recording import ProcessRecording, active
from kinetoscope.errors import MissingDependencyError, UsageError
from kinetoscope.recording import folder as folders
from kinetoscope.recording.rendezvous import agree_on_folder, await_ranks

# Without those that must be known before torch is imported, or that launchers' ranks are chosen by.
OPTIONS = {
    name: option
    for name, option in described().items()
    if name not in ("provenance", "bench_harness", "ranks", "on_request")
}


def _import_torch() -> None:
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise MissingDependencyError(
            "recording needs PyTorch",
            hint="install torch in this environment, or read a trace with `report`",
        ) from error


class profile(ContextDecorator):
    """Record the block it surrounds, as ``kinetoscope run`` records a program.

    As a context manager::

        with kinetoscope.profile() as p:
            for batch in loader:
                train(batch)
                p.step()            # optional: without it steps are found as `run` finds them
        p.run.kernels()             # what kinetoscope.load(p.recording) gives

    As a decorator it records the first call of the function, and lets later ones run as they are. Inside a
    program that ``kinetoscope run`` records already it records nothing itself; ``step()`` then marks the
    steps of that recording.

    Args:
        out: the recording's folder; None: ``recordings/<name>-<time>``.
        name: what the recording is named after; None: the program.
        options: what to record, and how, as listed below.

    Raises:
        UsageError: ``out`` is not empty, or another recording of this process is running.
        MissingDependencyError: torch is not installed.
    """

    def __init__(
        self,
        *,
        out: str | Path | None = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        if unknown := options.keys() - OPTIONS.keys():
            raise TypeError(f"kinetoscope.profile has no option {min(unknown)!r}")
        self.out = None if out is None else Path(out)
        self.name = name or Path(sys.argv[0] or "python").stem or "python"
        lines: bool = options.pop("lines", not options.get("whole"))
        self.options = Options(lines=lines, **options)
        self.recording: Path | None = None
        self._session: ProcessRecording | None = None
        self._outer: ProcessRecording | None = None
        self._world = 1
        self._ended = False

    @cached_property
    def run(self) -> kinetoscope.Run:
        """The recording, read: ``kinetoscope.load(p.recording)``, kept.

        Raises:
            UsageError: it has not ended; what ``kinetoscope run`` records ends with the program.
            InputError: nothing in it can be read.
        """
        if self.recording is None or not self._ended:
            raise UsageError(
                "the recording has not ended",
                where=None if self.recording is None else str(self.recording),
                hint="read it after the block, on rank 0; what `kinetoscope run` records, after the program",
            )
        return kinetoscope.load(self.recording)

    def __enter__(self) -> profile:
        if self.recording is not None:
            return self
        _import_torch()
        self._outer = active()
        if self._outer is not None:
            self.recording = self._outer.folder
            if self._outer.api:
                raise UsageError("another recording of this process is running", where=str(self.recording))
            return self
        place = rank_and_world(os.environ) or _in_process_group()
        rank, self._world = place or (0, 1)
        folder, first = agree_on_folder(self.name, self.out, rank if place else None)
        if first:
            folders.begin(folder, tuple(sys.argv), self.options)
        folders.claim(folder, rank)
        self._session = ProcessRecording(folder, rank, self._world, self.options, api=True)
        self.recording = folder
        return self

    @property
    def done(self) -> bool:
        """Whether the wanted steps are recorded: a loop that runs for them alone may end."""
        session = self._session or self._outer
        return session is not None and session.recorder.done

    def step(self) -> None:
        """The program's step ends here, and the next begins."""
        session = self._session or self._outer
        if session is not None:
            session.tick("user", 0, "step()")

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session, self._session, self._outer = self._session, None, None
        if session is None:
            return
        exit = "ok" if failure is None else f"exception: {type(failure).__name__}"
        session.end(exit, failure)
        if session.rank == 0:
            if self._world > 1:
                await_ranks(self.name, self.out, session.folder, self._world)
            folders.finish(session.folder, exit=exit, status=None, alone=False)
            self._ended = True


def _in_process_group() -> tuple[int, int] | None:
    """(rank, number of ranks) of a process that the program itself started (``torch.multiprocessing``)."""
    if not torch_private.process_group_exists():
        return None
    group = sys.modules["torch.distributed"]
    return group.get_rank(), group.get_world_size()


def listen(out: str | Path | None = None, *, shapes: bool = False, flops: bool = False) -> Path:
    """Wait, in a thread that sleeps, for `kinetoscope record` to request recordings of this process.

    For the start of a server that ``kinetoscope run --on-request`` does not start. Linux alone.

    Args:
        out: the folder of its recordings; None: ``recordings/<program>-<time>``.
        shapes, flops: as for :class:`profile`.

    Returns:
        The folder.

    Raises:
        UsageError: ``out`` is not empty, or the system has no sockets to wait at.
        MissingDependencyError: torch is not installed.
    """
    from kinetoscope.capture.process import child

    _import_torch()
    folder = folders.create(Path(sys.argv[0] or "python").stem, None if out is None else Path(out))
    try:
        child.listen(folder, Options(on_request=True, shapes=shapes, flops=flops))
    except (OSError, AttributeError) as error:
        raise UsageError(f"this system has no sockets to wait at: {error}", hint="use Linux") from error
    return folder


_LISTED = (f"        {name} ({default!r}): {text}." for name, (default, text) in OPTIONS.items())
profile.__doc__ = "\n".join([profile.__doc__ or "", "    Options, with their defaults:", *_LISTED])
