"""One run, read from its files: the traces of its ranks, its compilation, its manifest, its memory."""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec.structs import replace

from kinetoscope import numbers
from kinetoscope.errors import InputError, MissingDependencyError, NotATraceError
from kinetoscope.recording import folder as folders
from kinetoscope.recording import manifest as manifests
from kinetoscope.recording import memory as recorded_memory
from kinetoscope.recording import plain_file, whole_run
from kinetoscope.recording.manifest import UNREADABLE, Manifest, Program, RankRecord
from kinetoscope.snapshot.recognise import is_snapshot, is_timeline
from kinetoscope.sources.numbering import (
    by_stage,
    distinct,
    last_in_time,
    last_written,
    latest_window,
    natural,
    of_other_times,
    rank_in,
)
from kinetoscope.sources.paths import (
    EXPORT_FILE,
    TRACE_FILE,
    captures_next_to,
    find,
    is_remote,
    no_rank,
    recordings_in,
    standard_input,
)
from kinetoscope.trace.container import is_database
from kinetoscope.trace.damage import is_loss
from kinetoscope.trace.model import Damage, Source, Trace

if TYPE_CHECKING:
    from kinetoscope.compilation.model import CompiledProgram
    from kinetoscope.snapshot.model import Snapshot
    from kinetoscope.trace.captures import Capture

Progress = Callable[[Path, int, int], None]
T = TypeVar("T")

MOST_CAPTURES = 256  # recordings of captures that are opened

# Ranks that are read of a folder or recording: each costs the analyses some 0.2 s, however small it is.
MOST_RANKS = 64
MOST_OTHERS = 2048  # files of a folder that are opened and turn out to be no trace: each takes some 3 ms


class MemoryFiles(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A snapshot of a rank's allocator, and its program's own account; read on first use: it may be large."""

    rank: int
    path: Path
    held_path: Path | None = None

    @cached_property
    def snapshot(self) -> Snapshot:
        """Raises InputError where the file cannot be used."""
        from kinetoscope.snapshot.read import read

        return read(self.path)

    @cached_property
    def held(self) -> recorded_memory.Held | None:
        """Raises InputError where the file is damaged."""
        return None if self.held_path is None else recorded_memory.read(self.held_path)


# Identity: analyses remember their result per run.
class LoadedRun(msgspec.Struct, frozen=True, eq=False, dict=True, weakref=True):
    """One run as it was recorded: every rank's trace, and whatever else is known of it.

    ``light`` holds the traces of the light pass, which records the device and little else, of the ranks that
    have one. ``unread`` names the files of a folder that are no trace, with the reason; ``lost`` those of
    them that were traces of this run. ``snapshots`` are those of the allocator, at the end of the recorded
    steps and where an allocation failed; ``timelines`` the memory timelines that the profiler exported.
    ``inputs`` are the paths as they were given. ``watched`` are the samples of whole runs, by rank; ``lines``
    the trace, of each rank that has it, of one step more, with the lines of the program around its ops.
    ``stages`` are the same ranks at other times: a server's prefill, where its engine records it apart from
    decode.
    """

    traces: tuple[Trace, ...]
    manifest: Manifest | None = None
    compilation: CompiledProgram | None = None
    folder: Path | None = None
    unread: tuple[str, ...] = ()
    light: tuple[Trace, ...] = ()
    snapshots: tuple[MemoryFiles, ...] = ()
    timelines: tuple[Path, ...] = ()
    lost: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    lines: Mapping[int, Trace] = msgspec.field(default_factory=dict[int, Trace])
    watched: Mapping[int, whole_run.WholeRun] = msgspec.field(default_factory=dict[int, whole_run.WholeRun])
    stages: tuple[LoadedRun, ...] = ()

    @property
    def records(self) -> tuple[RankRecord, ...]:
        """The accounts that the processes of the recording wrote of themselves; none of a bare trace."""
        return self.manifest.ranks if self.manifest else ()

    @cached_property
    def program(self) -> Mapping[str, str]:
        """The texts of the program's own files, by path, as the recording keeps them."""
        kept = next((rank.program for rank in self.records if rank.program), None)
        if kept is None or self.folder is None:
            return {}
        try:
            return msgspec.json.decode(plain_file.content(self.folder / kept), type=Program).files
        except (OSError, *UNREADABLE):
            return {}

    @property
    def remarks(self) -> list[str]:
        """A sentence on each file that was left out, and each trace that lost something: no figure has it."""
        incomplete = (trace.source for trace in self.traces if not trace.source.complete)
        said = (
            f"{source.path} is incomplete, and all figures are of what is left: "
            + "; ".join(damage.text for damage in source.damages if is_loss(damage.code))
            for source in incomplete
        )
        return list(dict.fromkeys((*self.unread, *said)))  # several traces may be of one file


def load(*inputs: str | Path, progress: Progress | None = None, links: bool = True) -> LoadedRun:
    """Read recordings, traces, compile logs or folders of them; ``-`` is standard input.

    Compile logs are joined to the traces next to them; alone they make a run whose trace is empty.
    Several recordings are taken for one run of several hosts: its ranks are those of all of them, its
    command, environment and measurements those of the first.

    ``progress`` is called now and then with a trace's path, the bytes of it read so far, and its size;
    ``links``: traces keep that by which their events were joined (see ``Trace.unlinked``). Raises InputError
    where an input cannot be used; the message says why.
    """
    for one in map(str, inputs):
        if is_remote(one):
            raise InputError(
                "a bucket is read by `report` and `map` alone",
                where=one,
                hint="copy the traces here, or compare the ranks with kinetoscope report",
            )
    with ExitStack() as spooled:
        given = [spooled.enter_context(standard_input()) if str(one) == "-" else one for one in inputs]
        return replace(_load(given, progress, links), inputs=tuple(map(str, inputs)))


def load_warning(*inputs: str | Path) -> LoadedRun:
    """``load``, with a warning for each sentence of ``LoadedRun.remarks``."""
    run = load(*inputs)
    for sentence in run.remarks:
        warnings.warn(sentence, stacklevel=2)
    return run


def _load(inputs: Sequence[str | Path], progress: Progress | None, links: bool) -> LoadedRun:
    from kinetoscope.compilation.log.recognise import has_compile_log

    def shown(path: Path) -> Callable[[int, int], None] | None:
        return None if progress is None else partial(progress, path)

    def read(path: Path, rank: int | None = None) -> Trace:
        from kinetoscope.trace.read import read

        return read(path, rank=rank, progress=shown(path), links=links)

    def export(path: Path) -> tuple[Trace, ...]:
        try:
            from kinetoscope.trace.nsys import read
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                f"this Python was built without SQLite: {error}",
                where=str(path),
                hint="use one that `python -c 'import sqlite3'` works in",
            ) from error
        return read(path, shown(path), _most())

    def tried(read: Callable[[], T]) -> list[T]:
        found, why = _attempted(read)
        unread.extend(map(_left_out, why))
        return found

    traces, exported, recorded, light = list[Trace](), list[Trace](), list[Trace](), list[Trace]()
    logs, timelines, memory, unread = list[Path](), list[Path](), list[MemoryFiles](), list[str]()
    failures, damaged = list[InputError](), list[InputError]()
    lines: dict[int, Trace] = {}
    numbered: dict[int, list[Capture | None]] = {}
    recordings: dict[Path, Manifest] = {}
    watched: dict[int, whole_run.WholeRun] = {}
    for item in chain.from_iterable(map(recordings_in, map(Path, inputs))):
        if manifests.is_recording(item):
            manifest = recordings[item] = folders.opened(item)
            memory += [one for rank in manifest.ranks for one in _memory_files(item, rank)]
            traced = [rank for rank in manifest.ranks if rank.trace is not None]
            first = next((rank for rank in traced if rank.whole_run), None)
            if first is not None and first.whole_run and not watched:  # one rank stands for all
                seen = tried(partial(whole_run.read, item / first.whole_run))
                watched.update((first.rank, one) for one in seen)
            for rank in spread(traced)[: _most()]:
                found, why = _attempted(partial(read, item / (rank.trace or ""), rank.rank))
                recorded += found
                failures += why
                if found:
                    numbered[rank.rank] = _numbered(item, rank, read)
                if found and rank.device_trace:  # the run is known without its light pass
                    found = tried(partial(read, item / rank.device_trace, rank.rank))
                    light += found
                if found and rank.lines:
                    of_rank = tried(partial(read, item / rank.lines, rank.rank))
                    lines.update((rank.rank, one) for one in of_rank)
            unread += _not_tried(len(traced) - _most())
            logs += [item] if has_compile_log(item) else []
            named = [item / rank.compile_log for rank in manifest.ranks if rank.compile_log]
            unread += [f"{log} was left out: there is no such file" for log in named if not log.is_file()]
        elif item.is_dir():
            logs += [item] if has_compile_log(item) else []
            inside_it = sorted(item.iterdir(), key=_by_name)
            files = [path for path in inside_it if TRACE_FILE.search(path.name)]
            databases = [path for path in inside_it if EXPORT_FILE.search(path.name) and is_database(path)]
            for path in databases:
                exported += chain.from_iterable(tried(partial(export, path)))
            if files:
                last = [Path(path) for path in last_written(list(map(str, files)))]
                unread += of_other_times(len(files) - len(last), str(item))
            else:  # a folder for each host
                found_inside = find([item])
                last = [Path(trace.url) for trace in found_inside.traces]
                unread += found_inside.left_out
            inside, not_tried, others = _those_that_are_traces(
                last or ([] if logs or exported else [item]), read
            )
            traces += inside
            unread += [*not_tried, *map(_left_out, others)]
            damaged += [error for error in others if not isinstance(error, NotATraceError)]
        elif item.is_file() and has_compile_log(item):
            logs.append(item)
        elif is_database(item):
            exported += export(item)
        elif is_snapshot(item):
            memory.append(MemoryFiles(len(memory), item))
        elif is_timeline(item):
            timelines.append(item)
        else:
            traces.append(read(item))
    compilation = _compiled(logs) if logs else None
    if not traces and not recorded:
        traces, exported = exported, []
    if not traces and not recorded:
        if failures and not (compilation or memory or timelines or _was_killed(recordings.values())):
            raise failures[0]
        if memory and not (recordings or timelines or compilation):
            _refuse_unreadable(memory)
        of_memory = [*(one.path for one in memory), *timelines]
        is_lost = bool(failures) or _was_killed(recordings.values())
        recorded.append(_no_events(inputs, compilation, recordings, of_memory, is_lost=is_lost))
    from kinetoscope.trace.captures import replays_graphs, with_captures

    read_from = (Path(trace.source.path) for trace in traces if replays_graphs(trace))
    nearby = dict.fromkeys(folder for path in read_from for folder in captures_next_to(path))
    of_captures = [trace for folder in nearby for trace in _captures_in(folder, read)]
    traces, of_captures = _without_captures(traces, of_captures)
    traces, no_ranks = _of_ranks(traces)
    traces, repeated = _without_copies(traces)
    traces, stages = by_stage(traces)
    is_one_file = len({trace.source.path for trace in traces}) == 1
    traces, earlier = (traces, []) if is_one_file else _latest(traces)
    ranks, apart = _with_exports(distinct([*recorded, *traces], recorded), exported)

    def joined(ranks: Iterable[Trace]) -> tuple[Trace, ...]:
        known = (
            with_captures(trace, _of_rank(of_captures, trace), numbered.get(trace.rank, ()))
            for trace in ranks
        )
        return tuple(sorted(known if links else map(Trace.unlinked, known), key=lambda trace: trace.rank))

    return LoadedRun(
        joined(ranks),
        _of_all_hosts(list(recordings.values())),
        compilation,
        next(iter(recordings), None),
        (*unread, *map(_left_out, failures), *no_ranks, *repeated, *earlier, *apart, *_of_stages(stages)),
        tuple(light),
        tuple(memory),
        tuple(timelines),
        tuple(map(_left_out, (*failures, *damaged))),
        lines=lines,
        watched=watched,
        stages=tuple(LoadedRun(joined(distinct(stage))) for stage in stages),
    )


def _of_stages(stages: Sequence[Sequence[Trace]]) -> Iterator[str]:
    """A sentence on the traces of each stage of a server but the one that is shown."""
    for stage in stages:
        files = " ".join(trace.source.path for trace in stage)
        yield f"of {files} the table of steps is shown, and nothing else: name it alone to see the rest"


def _compiled(logs: list[Path]) -> CompiledProgram:
    from kinetoscope.compilation import sources  # with it comes what reads compile logs

    return sources.load(*logs)


def _with_exports(traces: Sequence[Trace], exports: Sequence[Trace]) -> tuple[list[Trace], list[str]]:
    """The traces, each joined with the process of Nsight Systems that ran the same, the one in its place
    first; and a sentence on each that was not joined."""
    if not exports:
        return list(traces), []
    from kinetoscope.trace.joined import ENOUGH, aligned, with_export

    left, joined, share = list(exports), list[Trace](), dict[int, float]()
    for place, trace in enumerate(traces):
        for export in sorted(left, key=lambda one: exports.index(one) != place):
            found = aligned(trace, export)
            share[id(export)] = max(share.get(id(export), 0.0), found.share)
            if found.compared and found.share >= ENOUGH:
                left.remove(export)
                joined.append(with_export(trace, export, found))
                break
        else:
            joined.append(trace)
    said = [
        f"{export.source.path} was not joined: {share.get(id(export), 0.0):.0%} of its device work is that "
        f"of a trace, in the same order, and {ENOUGH:.0%} have to be"
        for export in left
    ]
    return joined, list(dict.fromkeys(said))


def _captures_in(inside: Path, read: Callable[[Path], Trace]) -> list[Trace]:
    files = sorted((path for path in inside.iterdir() if TRACE_FILE.search(path.name)), key=_by_name)
    found = chain.from_iterable(_attempted(partial(read, path))[0] for path in files[:MOST_CAPTURES])

    from kinetoscope.trace.captures import captures

    return [trace for trace in found if captures(trace)]


def _of_rank(of_captures: Sequence[Trace], trace: Trace) -> list[Trace]:
    """The recordings of a rank's captures, those next to it if there are such. Of one that has none those
    of the first that did: engines capture the same on each."""
    folder = Path(trace.source.path).parent
    near = [one for one in of_captures if Path(one.source.path).parent.parent == folder] or of_captures
    ranks = [one.rank if (named := rank_in(Path(one.source.path).name)) is None else named for one in near]
    own = trace.rank if trace.rank in ranks else min(ranks, default=0)
    return [one for one, of in zip(near, ranks, strict=True) if of == own]


def _numbered(folder: Path, record: RankRecord, read: Callable[[Path], Trace]) -> list[Capture | None]:
    """The captures that a recording's replays name by number; None for one that cannot be read."""
    listed = record.captures[:MOST_CAPTURES]
    found = {path: _attempted(partial(read, folder / path))[0] for path in dict.fromkeys(listed)}

    from kinetoscope.trace.captures import captures

    each = {path: iter(captures(traces[0]) if traces else ()) for path, traces in found.items()}
    return [next(each[path], None) for path in listed]


def _by_name(path: Path) -> list[tuple[int, str]]:
    return natural(path.name)


def _without_captures(traces: list[Trace], known: list[Trace]) -> tuple[list[Trace], list[Trace]]:
    """The traces of a run apart from those of captures; those of captures alone are read as they are."""
    from kinetoscope.trace.captures import is_capture

    of_captures = [trace for trace in traces if is_capture(trace)]
    if len(of_captures) == len(traces):
        return traces, known
    return [trace for trace in traces if trace not in of_captures], [*known, *of_captures]


def _of_ranks(traces: list[Trace]) -> tuple[list[Trace], list[str]]:
    said = {id(trace): why for trace in traces if (why := no_rank(trace.source.path)) is not None}
    if len(said) == len(traces):
        return traces, []
    return [trace for trace in traces if id(trace) not in said], list(said.values())


def _without_copies(traces: list[Trace]) -> tuple[list[Trace], list[str]]:
    """The traces without copies (of one rank, the same events from one moment on), and a sentence on each."""
    first: dict[tuple[object, ...], Trace] = {}
    said: list[str] = []
    for trace in traces:
        starts = trace.device_events["start_ns"]
        numbered = trace.rank if "distributedInfo" in trace.metadata else f"trace {id(trace)}"
        other = first.setdefault((numbered, trace.source.events, starts.min(), starts.max()), trace)
        if other is not trace:
            said.append(f"{trace.source.path} was left out: it is a copy of {other.source.path}")
    return list(first.values()), said


def _latest(traces: list[Trace]) -> tuple[list[Trace], list[str]]:
    """The traces of the last of several windows, and a sentence on the others."""
    windows = [(trace.rank, str(trace.steps["name"][0]) if len(trace.steps) else "") for trace in traces]
    numbered = all("distributedInfo" in trace.metadata for trace in traces)
    from kinetoscope.trace.schema import whole

    starts = [whole(trace.steps["start_ns"].min()) for trace in traces]
    in_time = [window for _, window in sorted(zip(starts, windows, strict=True), key=lambda one: one[0])]
    last = latest_window(in_time) if numbered else None
    if last is None:
        of_one_time = list(last_in_time(traces))
        left_out = len(traces) - len(of_one_time)
        folder = str(Path(of_one_time[0].source.path).parent) if of_one_time else ""
        return of_one_time, of_other_times(left_out, folder)
    kept = [trace for trace, (_, window) in zip(traces, windows, strict=True) if window == last]
    left_out = len(traces) - len(kept)
    return kept, [
        f"{numbers.count(left_out, 'trace')} of other windows left out: what begins with {last} is shown; "
        "name one alone to see it"
    ]


def _memory_files(folder: Path, rank: RankRecord) -> list[MemoryFiles]:
    pairs = ((rank.memory, rank.memory_held), (rank.oom, rank.oom_held))
    return [
        MemoryFiles(rank.rank, folder / path, folder / held if held else None) for path, held in pairs if path
    ]


def _attempted(read: Callable[[], T]) -> tuple[list[T], list[InputError]]:
    try:
        return [read()], []
    except InputError as error:
        return [], [error]


def _left_out(error: InputError) -> str:
    return f"{error.where} was left out: {error.what}"


def _refuse_unreadable(snapshots: Sequence[MemoryFiles]) -> None:
    """Raises InputError where none of them can be read."""
    tries = [_attempted(lambda files=files: files.snapshot) for files in snapshots]
    if not any(found for found, _ in tries):
        raise tries[0][1][0]


def _was_killed(manifests: Iterable[Manifest]) -> bool:
    """Whether a process of these ended so that half a file may be left."""
    ends = {rank.exit for manifest in manifests for rank in (manifest, *manifest.ranks)}
    return any(end == "running" or end.startswith("signal") for end in ends)


def _those_that_are_traces(
    files: Sequence[Path], read: Callable[[Path], Trace]
) -> tuple[list[Trace], list[str], list[InputError]]:
    """The traces among the entries of a folder, a sentence on those that were not tried, and what is wrong
    with each that is none or cannot be read.

    Of very many traces some are read, spread over all of them, and a sentence says so. Raises InputError
    where none is a trace.
    """
    traces: list[Trace] = []
    others: list[InputError] = []
    waiting = deque(spread(files))
    while waiting and len(traces) < _most() and len(others) < MOST_OTHERS:
        found, why = _attempted(partial(read, waiting.popleft()))
        traces += found
        others += why
    if others and not traces:
        raise others[0]
    traces.sort(key=lambda trace: natural(trace.source.path))
    if waiting and len(traces) < _most():
        text = f"{len(waiting):,} more files were not opened: {len(others):,} of this folder are no traces"
        return traces, [text], others
    return traces, _not_tried(len(waiting)), others


def spread(all: Sequence[T]) -> list[T]:
    """As many as may be read, at equal distances, then those between."""
    distance = -(-len(all) // _most()) or 1
    return [*all[::distance], *(one for place, one in enumerate(all) if place % distance)]


def _most() -> int:
    wanted = os.environ.get("KINETOSCOPE_RANKS", "")
    return int(wanted[:6]) if wanted.isdecimal() and int(wanted[:6]) else MOST_RANKS


def _not_tried(count: int) -> list[str]:
    if count <= 0:
        return []
    return [f"{count:,} more were not read: {_most()} are, spread over all; KINETOSCOPE_RANKS=N reads N"]


def _of_all_hosts(recorded: Sequence[Manifest]) -> Manifest | None:
    if not recorded:
        return None
    ranks = tuple(rank for manifest in recorded for rank in manifest.ranks)
    return replace(recorded[0], ranks=ranks)


def _no_events(
    inputs: Sequence[str | Path],
    compilation: CompiledProgram | None,
    recordings: Mapping[Path, Manifest],
    memory: Sequence[Path],
    *,
    is_lost: bool,  # there was a trace, or was to be one
) -> Trace:
    """The empty trace where there are compile logs or snapshots only, or a program that left nothing else.
    Raises InputError where there is nothing at all."""
    from kinetoscope.trace import schema

    if compilation is not None and not is_lost:
        first = compilation.sources[0]
        source = Source(first.path, first.bytes, 0, first.rank)
    elif memory and not recordings:
        source = Source(str(memory[0]), memory[0].stat().st_size, 0, 0)
    elif recordings:
        folder, manifest = next(iter(recordings.items()))
        ended = (
            "it was killed, or still runs" if manifest.exit == "running" else f"it ended with {manifest.exit}"
        )
        lost = Damage("truncated", f"the program left no trace that can be read ({ended})", 1)
        source = Source(str(folder), 0, 0, 0, complete=False, damages=(lost,))
    else:
        raise InputError(
            "there is no trace, recording or compile log in it",
            where=", ".join(map(str, inputs)),
            hint="name a trace, or a folder that holds traces itself",
        )
    tables = {name: schema.empty(columns) for name, columns in schema.HELD.items()}
    return Trace(source, devices=(), metadata={}, **tables)
