"""Which recording it is, and whether the program is still the one that was recorded."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kinetoscope.recording import plain_file
from kinetoscope.sources.run import LoadedRun

MADE_LATER = "tables"  # of a recording: what a reader writes, which says nothing new
_BLOCK = 1 << 20


def files(run: LoadedRun) -> list[Path]:
    """The files that a run was read from, in a fixed order."""
    traces = (*run.traces, *run.light, *run.lines.values())
    logs = run.compilation.sources if run.compilation else ()
    named = {Path(one.path) for one in (*(trace.source for trace in traces), *logs)}
    named |= {one.path for one in run.snapshots} | set(run.timelines)
    if run.folder is not None:
        recorded = (path.relative_to(run.folder) for path in run.folder.rglob("*"))
        named |= {run.folder / path for path in recorded if MADE_LATER not in path.parts[:2]}
    return sorted(path for path in named if path.is_file())


def fingerprint(run: LoadedRun) -> str:
    """A hash of what is in these files, the same wherever they lie."""
    return combined([_digest(path) for path in files(run)])


def combined(digests: Sequence[str]) -> str:
    """One fingerprint of several, in whatever order."""
    return hashlib.blake2b("".join(sorted(digests)).encode(), digest_size=8).hexdigest()


def stamp(run: LoadedRun) -> tuple[tuple[str, int, int], ...]:
    """Sizes and times of the files: as long as they stay, the content does."""
    facts = ((path, path.stat()) for path in files(run))
    return tuple((str(path), stat.st_size, stat.st_mtime_ns) for path, stat in facts)


def program_now(kept: Mapping[str, str], roots: Sequence[Path]) -> str:
    """Whether the program's files are as they were recorded. ``kept``: the text of each file by its absolute
    path, as the recording has it. ``roots``: folders whose files may be opened: the paths are a recording's,
    so that they may be any."""
    here = {path: text for path, text in kept.items() if inside(p := Path(path), roots) and p.exists()}
    if not here:
        return "not on this machine" if kept else "not kept in the recording"
    changed = [os.path.basename(path) for path, text in here.items() if _text(Path(path)) != text]
    if not changed:
        part = "" if len(here) == len(kept) else f" ({len(here)} of its {len(kept)} files are here)"
        return f"unchanged since it was recorded{part}"
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return f"STALE: changed since it was recorded: {', '.join(changed[:3])}{more}"


def inside(path: Path, roots: Iterable[Path]) -> bool:
    """Whether a path, links followed, is one of these or lies in one."""
    whole = Path(os.path.realpath(path))
    return any(whole.is_relative_to(os.path.realpath(root)) for root in roots)


def _text(path: Path) -> str | None:
    try:
        return plain_file.content(path).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    try:
        with plain_file.opened(path) as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except OSError:
        digest.update(b"unreadable")
    return digest.hexdigest()
