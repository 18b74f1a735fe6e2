"""What analyses and rules are given: the traces of one run, its compilation, its manifest, its devices."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kinetoscope.analysis.ranks import distinct
from kinetoscope.errors import InputError, NotATraceError
from kinetoscope.recording import manifest as manifests
from kinetoscope.recording.manifest import Manifest
from kinetoscope.trace.model import Damage, Source, Trace

if TYPE_CHECKING:
    from kinetoscope.compilation.model import Compilation

Progress = Callable[[Path, int, int], None]

TRACE_FILE = re.compile(r"\.json(?:\.gz|\.zst)?$")


@dataclass(frozen=True, eq=False)  # identity: analyses remember their result per run
class Run:
    """One run as it was recorded: every rank's trace, and whatever else is known of it.

    ``light`` holds the traces of the light pass, which records the device and little else, of the ranks that
    have one. ``unread`` names what stands in a folder of traces and is none, with the reason.
    """

    traces: tuple[Trace, ...]
    manifest: Manifest | None = None
    compilation: Compilation | None = None
    folder: Path | None = None
    unread: tuple[str, ...] = ()
    light: tuple[Trace, ...] = ()


def load(*inputs: str | Path, progress: Progress | None = None) -> Run:
    """Read recordings, traces, compile logs or folders of them.

    Compile logs are joined to whatever traces stand beside them; alone they make a run whose trace is empty.
    Several recordings are taken for one run of several hosts: its ranks are those of all of them, its
    command, environment and measurements those of the first.

    Args:
        progress: called now and then with a trace's path, the bytes of it read so far, and its size.

    Raises:
        InputError: an input cannot be used; the message says why.
    """
    from kinetoscope.compilation import sources

    def read(path: Path, rank: int | None = None) -> Trace:
        from kinetoscope.trace.read import read

        return read(path, rank=rank, progress=None if progress is None else partial(progress, path))

    traces: list[Trace] = []
    recorded: list[Trace] = []
    logs: list[Path] = []
    light: list[Trace] = []
    unread: list[str] = []
    recordings: dict[Path, Manifest] = {}
    for item in chain.from_iterable(map(_recordings_in, map(Path, inputs))):
        if manifests.is_recording(item):
            manifest = recordings[item] = manifests.read(item)
            recorded += [read(path, rank=rank) for rank, path in _listed(item, manifest)]
            for rank in manifest.ranks:
                if rank.trace and rank.device_trace:
                    found, why = _light(partial(read, item / rank.device_trace, rank.rank))
                    light += found
                    unread += why
            logs += [item] if sources.has_compile_log(item) else []
        elif item.is_dir():
            logs += [item] if sources.has_compile_log(item) else []
            files = [path for path in sorted(item.iterdir()) if TRACE_FILE.search(path.name)]
            inside, others = _those_that_are_traces(files or ([] if logs else [item]), read)
            traces += inside
            unread += others
        elif item.is_file() and sources.has_compile_log(item):
            logs.append(item)
        else:
            traces.append(read(item))
    compilation = sources.load(*logs) if logs else None
    if not traces and not recorded:
        recorded.append(_no_events(inputs, compilation, recordings))
    return Run(
        distinct([*recorded, *traces], recorded),
        _of_all_hosts(list(recordings.values())),
        compilation,
        next(iter(recordings), None),
        tuple(unread),
        tuple(light),
    )


def _light(read: Callable[[], Trace]) -> tuple[list[Trace], list[str]]:
    """A light pass' trace; what is wrong with it if it cannot be read: the run is known without it."""
    try:
        return [read()], []
    except InputError as error:
        return [], [f"{error.where} was left out: {error.what}"]


def _those_that_are_traces(
    files: Sequence[Path], read: Callable[[Path], Trace]
) -> tuple[list[Trace], list[str]]:
    """The traces among the files of a folder, and a sentence on each that is none.

    Raises:
        InputError: none is a trace, or one cannot be read at all.
    """

    def attempt(file: Path) -> Trace | NotATraceError:
        try:
            return read(file)
        except NotATraceError as error:
            return error

    found = [attempt(file) for file in files]
    traces = [one for one in found if isinstance(one, Trace)]
    others = [one for one in found if isinstance(one, NotATraceError)]
    if others and not traces:
        raise others[0]
    return traces, [f"{error.where} was left out: {error.what}" for error in others]


def _of_all_hosts(recorded: Sequence[Manifest]) -> Manifest | None:
    if not recorded:
        return None
    ranks = tuple(rank for manifest in recorded for rank in manifest.ranks)
    return msgspec.structs.replace(recorded[0], ranks=ranks)


def _recordings_in(item: Path) -> list[Path]:
    """The recordings that stand in a folder; else the item itself."""
    if not item.is_dir() or manifests.is_recording(item):
        return [item]
    return [inside for inside in sorted(item.iterdir()) if manifests.is_recording(inside)] or [item]


def _listed(folder: Path, manifest: Manifest) -> list[tuple[int, Path]]:
    """A recording's traces by rank: those of its manifest; of a run that was killed, those that lie there."""
    listed = [(rank.rank, folder / rank.trace) for rank in manifest.ranks if rank.trace]
    if listed:
        return listed
    left = {rank: folder / "trace" / f"rank{rank}.json" for rank in range(len(manifest.ranks) or 1)}
    return [(rank, path) for rank, path in left.items() if path.is_file()]


def _no_events(
    inputs: Sequence[str | Path], compilation: Compilation | None, recordings: Mapping[Path, Manifest]
) -> Trace:
    """What stands for the trace where there are compile logs only, or a program that left nothing else.

    Raises:
        InputError: there is nothing at all.
    """
    from kinetoscope.trace import schema

    if compilation is not None:
        first = compilation.sources[0]
        source = Source(first.path, first.bytes, 0, first.rank)
    elif recordings:
        folder, manifest = next(iter(recordings.items()))
        ended = f" (it ended with {manifest.exit})" if manifest.exit else ""
        lost = Damage("truncated", f"the program left no trace{ended}", 1)
        source = Source(str(folder), 0, 0, 0, complete=False, damages=(lost,))
    else:
        raise InputError(
            "there is no trace, recording or compile log in it",
            where=", ".join(map(str, inputs)),
            mend="name a trace, or a folder that holds traces itself",
        )
    tables = {name: schema.empty(columns) for name, columns in schema.TABLES.items()}
    return Trace(source, devices=(), metadata={}, **tables)
