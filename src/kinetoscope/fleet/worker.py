"""A worker, in a process of its own or on another machine: it maps one trace to the bytes of its part."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import msgspec

from kinetoscope.errors import InputError
from kinetoscope.sources.paths import file_system, is_remote

# A worker is one of many: one thread for tables, none for decoding, and memory goes back when it is free. A
# trace's part is kept, its tables are neither kept nor looked for.
SETTINGS = {
    "POLARS_MAX_THREADS": "1",
    "KINETOSCOPE_WORKERS": "1",
    "KINETOSCOPE_CACHE": "0",
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:300,muzzy_decay_ms:0",
}


def mapped(url: str, rank: int | None) -> bytes:
    """The part of a trace; ``rank`` is from the recording, for a trace that does not have it.

    Raises:
        InputError: it is no trace, or cannot be read.
    """
    if not is_remote(url):
        return _mapped(url, url, rank)
    with tempfile.TemporaryDirectory() as folder:
        with file_system(url) as (system, path):
            local = str(Path(folder) / path.rpartition("/")[2])
            system.get_file(path, local)
        return _mapped(local, url, rank)


def _mapped(path: str, url: str, rank: int | None) -> bytes:
    from kinetoscope.analysis.ranks.parts import part, renumbered
    from kinetoscope.fleet.store import encode
    from kinetoscope.trace.read import read

    found = part(read(path, kept=False))
    if rank is not None and not found.facts.numbered:
        found = renumbered(found, rank)
    return encode(replace(found, facts=msgspec.structs.replace(found.facts, path=shown(url))))


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
    """The environment of a worker."""
    return {**os.environ, **SETTINGS}
