"""A worker, in a process of its own or on another machine: it maps one trace to the bytes of its part."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from msgspec.structs import replace

from kinetoscope.errors import InputError
from kinetoscope.sources.paths import file_system, is_remote


def allocator(arenas: int) -> dict[str, str]:
    """Settings of Polars' allocator (jemalloc) for so many threads that make tables.

    It keeps what is freed, so that it counts as ours for good. A report makes and drops large tables all the
    time: columns go back to the system at once, the rest once it has lain idle for 0.3 s. Only an arena that
    is still used notices that: so there are few, and threads keep little for themselves.
    """
    settings = (
        f"dirty_decay_ms:300,muzzy_decay_ms:0,narenas:{arenas},oversize_threshold:131072,lg_tcache_max:13"
    )
    return {"_RJEM_MALLOC_CONF": settings}


# A worker is one of many: one thread for tables, none for decoding, and memory goes back when it is free. A
# trace's part is kept, its tables are neither kept nor looked for.
SETTINGS = {
    "POLARS_MAX_THREADS": "1",
    "KINETOSCOPE_WORKERS": "1",
    "KINETOSCOPE_CACHE": "0",
    **allocator(1),
}


def mapped(url: str, rank: int | None) -> bytes:
    """The part of a trace; ``rank`` is from the recording, for a trace that does not have it. Raises
    InputError where it is no trace, or cannot be read."""
    if not is_remote(url):
        return _mapped(url, url, rank)
    with tempfile.TemporaryDirectory() as folder:
        with file_system(url) as (system, path):
            local = str(Path(folder) / path.rpartition("/")[2])
            system.get_file(path, local)
        try:
            return _mapped(local, url, rank)
        except InputError as error:  # the user knows the bucket, and not this folder
            raise InputError(error.what, where=url, hint=error.hint) from error


def _mapped(path: str, url: str, rank: int | None) -> bytes:
    from kinetoscope.analysis.ranks.parts import part, renumbered
    from kinetoscope.fleet.store import encode
    from kinetoscope.trace.read import read

    found = part(read(path, kept=False))
    if rank is not None and not found.facts.numbered:
        found = renumbered(found, rank)
    return encode(replace(found, facts=replace(found.facts, path=shown(url))))


def shown(url: str) -> str:
    """A name as text: one that is not UTF-8 can be written nowhere as it is."""
    return os.fsencode(url).decode("utf-8", "replace")


def serve() -> None:
    """Answer (url, rank) with the part's bytes, or with what is wrong, until the input ends."""
    from kinetoscope.trace.decoding.spans import receive, send

    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            url, rank = receive(questions)
        except EOFError:
            return
        try:
            send(answers, mapped(url, rank))
        except InputError as error:
            send(answers, error)


def settled() -> dict[str, str]:
    return {**os.environ, **SETTINGS}
