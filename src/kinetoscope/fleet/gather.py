"""Parts of all ranks of a run, wherever their traces are: mapped, or read again, and numbered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from kinetoscope.analysis.ranks.parts import Part, RankPart, placed, renumbered
from kinetoscope.errors import InputError
from kinetoscope.fleet.engine import Engine
from kinetoscope.fleet.store import PackedPart, Spool, Store, content, encode, packed
from kinetoscope.sources.numbering import latest_window
from kinetoscope.sources.paths import Found, TraceFile

T = TypeVar("T")
Progress = Callable[[int, int], None]
# Recordings of one job begin together, but for the clocks of its hosts; further apart they are of two.
APART_NS = 3600 * 10**9
NAMED = 3  # other jobs


class Mapped(NamedTuple):
    """A trace with its part, or with what is wrong with it; ``was_kept``: it had been mapped before."""

    trace: TraceFile
    part: PackedPart | InputError
    was_kept: bool


def mapped(traces: Sequence[TraceFile], store: Store, engine: Engine, job: str = "") -> Iterator[Mapped]:
    """The traces with their parts, those that were kept first; the others are stored as they come, so that
    interrupted work continues where it stopped."""
    wanted: list[TraceFile] = []
    for trace in traces:
        try:
            kept = store.recall(trace)
            known = None if kept is None else _placed(trace, kept, store, job, was_kept=True)
        except InputError:  # what is there is no part
            known = None
        if known is None:
            wanted.append(trace)
        else:
            yield known
    for trace, answer in engine(wanted) if wanted else ():
        if isinstance(answer, InputError):
            yield Mapped(trace, answer, False)
        else:
            yield _placed(trace, answer, store, job, was_kept=False)


def _placed(trace: TraceFile, data: bytes, store: Store, job: str, *, was_kept: bool) -> Mapped:
    """The part with its host and its job, stored where it was not as it is now."""
    part = packed(data, trace.url)
    if (known := placed(part, trace.host, job)) is not part:
        part = replace(known, packed=encode(known.unpacked()))
    if known is not part or not was_kept:
        store.keep(trace, part.packed)
    return Mapped(trace, part, was_kept)


def gather(
    found: Found, store: Store, engine: Engine, progress: Progress | None = None
) -> tuple[list[PackedPart], list[str]]:
    """One part a rank, and sentences on what is not among them. ``progress``: called with traces done, and
    all of them. Raises InputError where nothing at all can be read, with the reason of the first."""
    spool = Spool()
    parts, failures = readable(lambda url: spool.laid_by(packed(content(url), url)), found.parts)
    for done, one in enumerate(mapped(found.traces, store, engine), 1):
        if isinstance(one.part, InputError):
            failures.append(one.part)
        else:
            parts.append(spool.laid_by(one.part))
        if progress is not None:
            progress(done, len(found.traces))
    if not parts and (failures or not (found.dumps or found.logs)):
        raise (
            failures[0] if failures else InputError("there is no trace in it", hint="name a folder of traces")
        )
    chosen, left_out = one_a_rank(parts)
    return chosen, [
        *found.left_out,
        *left_out,
        *sorted(f"{error.where} was left out: {error.what}" for error in failures),
    ]


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


def one_a_rank(parts: Sequence[Part]) -> tuple[list[Part], list[str]]:
    """One part of each rank: of several jobs and windows the last that most ranks have, of a repeated rank
    the first trace. Parts without a rank take the ranks that the others leave free."""
    parts, remarks = one_job(parts)
    ordered = sorted(_numbered(parts), key=lambda part: (part.facts.start_ns, part.facts.path))
    windows = [(part.facts.rank, window) for part, window in zip(ordered, _windows(ordered), strict=True)]
    latest = latest_window(windows)
    found: dict[int, Part] = {}
    others = sum(window != latest for _, window in windows) if latest is not None else 0
    if others:
        remarks.append(
            f"{others} traces of other windows were left out: the one that begins with {latest} is compared"
        )
    for part, (rank, window) in zip(ordered, windows, strict=True):
        if latest is not None and window != latest:
            continue
        if rank in found:
            remarks.append(f"{part.facts.path} was left out: {found[rank].facts.path} is of rank {rank} too")
        else:
            found[rank] = part
    return [found[rank] for rank in sorted(found)], remarks


def one_job(parts: Sequence[Part]) -> tuple[list[Part], list[str]]:
    """The parts of the job that most ranks are of, the last of such; and a sentence on the others.

    Jobs have different names (``map --job``), numbers of ranks, or begin more than ``APART_NS`` apart.
    """
    worlds: dict[str, set[int]] = {}
    for part in parts:
        worlds.setdefault(part.facts.job, set()).update([part.facts.world] if part.facts.world else [])

    def named(part: Part) -> tuple[str, int]:
        known = worlds[part.facts.job]
        return part.facts.job, part.facts.world or (min(known) if len(known) == 1 else 0)

    def weight(own: Sequence[Part]) -> tuple[int, int]:
        return len({part.facts.rank for part in own}), max(part.facts.began_ns for part in own)

    jobs: list[list[Part]] = []
    ordered = sorted(parts, key=lambda part: (*named(part), part.facts.began_ns, part.facts.path))
    for _, of_name in groupby(ordered, named):
        before = None
        for part in of_name:
            if before is None or (before and part.facts.began_ns - before > APART_NS):
                jobs.append([])
            before = part.facts.began_ns
            jobs[-1].append(part)
    chosen = max(jobs, key=weight, default=[])
    others = len(parts) - len(chosen)
    if not others:
        return chosen, []
    facts = chosen[0].facts
    which = f"{facts.job} ({facts.path})" if facts.job else f"that of {facts.path}"
    names = sorted({part.facts.job for job in jobs if job is not chosen for part in job} - {"", facts.job})
    listed = f" ({', '.join(names[:NAMED])}{', …' if len(names) > NAMED else ''})" if names else ""
    return chosen, [
        f"{others} traces of other jobs{listed} were left out: {which} is compared, of which most ranks are "
        "here; a folder of its own for the parts of each job tells them apart"
    ]


def _windows(ordered: Sequence[RankPart]) -> Iterable[str]:
    """The name of each part's first step; without steps, which of its rank's parts it is."""
    count: Counter[int] = Counter()
    for part in ordered:
        count[part.facts.rank] += 1
        yield str(part.steps["name"][0]) if len(part.steps) else f"window {count[part.facts.rank]}"


def _numbered(parts: Sequence[Part]) -> list[Part]:
    taken = {part.facts.rank for part in parts if part.facts.numbered}
    free = (rank for rank in range(len(parts) + len(taken)) if rank not in taken)
    return [part if part.facts.numbered else renumbered(part, next(free)) for part in parts]
