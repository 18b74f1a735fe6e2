"""Parts of all ranks of a run, wherever their traces are: mapped, or read again, and numbered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from kinetoscope.analysis.ranks.parts import RankPart, placed, renumbered
from kinetoscope.errors import InputError
from kinetoscope.fleet.engine import Engine
from kinetoscope.fleet.store import LARGEST, Store, decode
from kinetoscope.recording import plain_file
from kinetoscope.sources.numbering import latest_window
from kinetoscope.sources.paths import Found, TraceFile, file_system, is_remote

T = TypeVar("T")
Progress = Callable[[int, int], None]


def gather(
    found: Found, store: Store, engine: Engine, progress: Progress | None = None
) -> tuple[list[RankPart], list[str]]:
    """One part a rank, and sentences on what is not among them.

    Parts are stored as they come, so that interrupted work continues where it stopped.

    Args:
        progress: called with how many traces are done, and how many there are.

    Raises:
        InputError: nothing at all can be read; the message says why of the first.
    """
    parts, failures = readable(lambda url: decode(_bytes(url), url), found.parts)
    wanted: list[TraceFile] = []
    for trace in found.traces:
        kept = store.recall(trace)
        if kept is None:
            wanted.append(trace)
        else:
            parts.append(placed(kept, trace.host))
    done = len(found.traces) - len(wanted)
    for trace, answer in engine(wanted) if wanted else ():
        done += 1
        if isinstance(answer, InputError):
            failures.append(answer)
        else:
            store.keep(trace, answer)
            parts.append(placed(decode(answer, trace.url), trace.host))
        if progress is not None:
            progress(done, len(found.traces))
    if not parts and (failures or not (found.dumps or found.logs)):
        raise (
            failures[0] if failures else InputError("there is no trace in it", hint="name a folder of traces")
        )
    chosen, left_out = one_a_rank(parts)
    return chosen, [*left_out, *sorted(f"{error.where} was left out: {error.what}" for error in failures)]


def readable(read: Callable[[str], T], names: Iterable[str]) -> tuple[list[T], list[InputError]]:
    """The files that can be read, and what is wrong with the rest."""
    answers = [_attempted(read, name) for name in names]
    failures = [answer for answer in answers if isinstance(answer, InputError)]
    return [answer for answer in answers if not isinstance(answer, InputError)], failures


def _attempted(read: Callable[[str], T], name: str) -> T | InputError:
    try:
        return read(name)
    except InputError as error:
        return error


def _bytes(url: str) -> bytes:
    if not is_remote(url):
        try:
            return plain_file.content(Path(url), LARGEST)
        except OSError as error:
            raise InputError(f"it cannot be read: {error.strerror or error}", where=url) from error
    system, path = file_system(url)
    return system.cat_file(path)


def one_a_rank(parts: Sequence[RankPart]) -> tuple[list[RankPart], list[str]]:
    """One part of each rank: of several windows the last that most ranks have, of a repeated rank the first
    trace. Parts without a rank take the ranks that the others leave free.
    """
    ordered = sorted(_numbered(parts), key=lambda part: (part.facts.start_ns, part.facts.path))
    windows = [(part.facts.rank, window) for part, window in zip(ordered, _windows(ordered), strict=True)]
    latest = latest_window(windows)
    found: dict[int, RankPart] = {}
    remarks: list[str] = []
    for part, (rank, window) in zip(ordered, windows, strict=True):
        if latest is not None and window != latest:
            continue
        if rank in found:
            remarks.append(f"{part.facts.path} was left out: {found[rank].facts.path} is of rank {rank} too")
        else:
            found[rank] = part
    others = sum(window != latest for _, window in windows) if latest is not None else 0
    if others:
        remarks.append(
            f"{others} traces of other windows were left out: the one that begins with {latest} is compared"
        )
    return [found[rank] for rank in sorted(found)], remarks


def _windows(ordered: Sequence[RankPart]) -> Iterable[str]:
    """The name of each part's first step; without steps, which of its rank's parts it is."""
    count: Counter[int] = Counter()
    for part in ordered:
        count[part.facts.rank] += 1
        yield str(part.steps["name"][0]) if len(part.steps) else f"window {count[part.facts.rank]}"


def _numbered(parts: Sequence[RankPart]) -> list[RankPart]:
    taken = {part.facts.rank for part in parts if part.facts.numbered}
    free = (rank for rank in range(len(parts) + len(taken)) if rank not in taken)
    return [part if part.facts.numbered else renumbered(part, next(free)) for part in parts]
