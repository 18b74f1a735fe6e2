"""Many ranks: each trace read by a worker, their parts compared, the comparison printed or written."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polars import LazyFrame

    from kinetoscope.document import RanksListing


# Tables of a thousand ranks come and go by the column: threads share what is free, and it is kept less long.
OF_MANY = {"_RJEM_MALLOC_CONF": "dirty_decay_ms:50,muzzy_decay_ms:0,narenas:1"}
# Of short tables a second thread costs more than it does: a tenth of the report of eight small ranks. Of
# kept tables, of traces of so many bytes of JSON, it costs a twentieth: analyses alone are left to do.
ONE_THREAD = ("POLARS_MAX_THREADS", "1")
KEPT = 512 << 20
# glibc's allocator, which has Python's large objects, keeps them likewise: where traces are large, those of
# so many bytes are mapped one by one.
LARGE = 16 << 20
M_MMAP_THRESHOLD, MAPPED = -3, 1 << 16


def settle(inputs: Sequence[str]) -> None:
    """Have memory that is freed go back to the system, and set what Polars reads when it is loaded, where the
    user has not. No verb that reads inputs starts a process that loads Polars but for workers, which have
    settings of their own."""
    from kinetoscope.errors import InputError
    from kinetoscope.fleet.worker import allocator
    from kinetoscope.sources.paths import FEW, Found, are_small, find, is_remote
    from kinetoscope.trace.cache import is_kept

    size, found = 0, Found()
    with suppress(OSError, InputError):  # who reads it says what is wrong
        found = found if any(map(is_remote, inputs)) else find(inputs)
        size = sum(os.path.getsize(trace.url) for trace in found.traces)
    is_many = found.are_many or len(found.parts) > FEW
    settings = OF_MANY if is_many else allocator(max(1, (os.cpu_count() or 1) // 2))
    os.environ.update({name: value for name, value in settings.items() if name not in os.environ})
    if are_small(found.traces) or (
        are_small(found.traces, KEPT) and all(is_kept(Path(one.url)) for one in found.traces)
    ):
        os.environ.setdefault(*ONE_THREAD)
    if size > LARGE:
        with suppress(ImportError, AttributeError, OSError, TypeError):  # another C library
            import ctypes

            ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MAPPED)


def are_many(inputs: Sequence[str]) -> bool:
    """Whether these are ranks of which the comparison is made, and not everything of each: more than
    ``paths.FEW``, or those of a bucket, parts, dumps or logs."""
    from kinetoscope.sources.paths import find, is_remote, may_be_many

    if not any(map(may_be_many, inputs)):
        return False
    found = find(inputs)
    remote = any(map(is_remote, inputs))
    return bool(remote or found.parts or found.dumps or found.logs or found.are_many)


def compared(
    inputs: Sequence[str], engine: str = "auto", parts: str | None = None, *, every: bool = False
) -> RanksListing:
    """The ranks in ``inputs`` compared by an ``engine`` (auto, local or ray). ``parts``: where to keep parts;
    None: in the user's cache. ``every``: with a row for every rank. Raises InputError where nothing of it can
    be read."""
    from kinetoscope.analysis.collectives.logs import hangs
    from kinetoscope.analysis.ranks.comparison import compare
    from kinetoscope.document.collect.ranks import listing
    from kinetoscope.fleet import engine as engines
    from kinetoscope.fleet import inspector
    from kinetoscope.fleet.dumps import read
    from kinetoscope.fleet.gather import gather, readable
    from kinetoscope.fleet.store import Store
    from kinetoscope.sources.paths import find

    with ExitStack() as stack:
        folder = parts or _kept(stack)
        store = Store(folder)
        found = find(inputs)
        chosen, unread = gather(found, store, engines.ENGINES["ray" if engine == "ray" else "local"], _shown)
        if parts is None:
            store.forget_unused()
    dumps, of_dumps = readable(lambda dump: read(Path(dump)), found.dumps)
    logs, of_logs = readable(lambda log: inspector.read(Path(log)), found.logs)
    if failures := [*of_dumps, *of_logs]:
        if not (chosen or dumps or logs):
            raise failures[0]
        unread = [*unread, *(f"{error.where} was left out: {error.what}" for error in failures)]
    chosen.reverse()
    return listing(  # which alone holds the comparison, as who joins parts holds them alone
        compare(chosen.pop().unpacked() for _ in range(len(chosen))),
        every=every,
        hangs=hangs(dict(dumps)),
        unread=unread,
        logs=logs,
    )


def collectives(inputs: Sequence[str]) -> dict[str, LazyFrame] | None:
    """Every collective of the ranks whose parts are in ``inputs``; None where no parts are. Raises InputError
    where none of the parts can be read."""
    from kinetoscope.sources.paths import Found, find, may_be_many

    found = find(inputs) if any(map(may_be_many, inputs)) else Found()
    if not found.parts:
        return None
    from kinetoscope.analysis.collectives.instances import by_rank
    from kinetoscope.analysis.ranks.comparison import compare
    from kinetoscope.fleet.engine import local
    from kinetoscope.fleet.gather import gather
    from kinetoscope.fleet.store import Store

    with ExitStack() as stack:
        chosen, _ = gather(found, Store(_kept(stack)), local, _shown)
    facts = [part.facts for part in chosen]
    hosts, devices = {one.rank: one.host for one in facts}, {one.rank: one.device for one in facts}
    return {"collectives": by_rank(compare(one.unpacked() for one in chosen).table, hosts, devices).lazy()}


def _kept(stack: ExitStack) -> Path:
    """The user's cache, or a folder that goes at once where nothing is to be kept."""
    from kinetoscope.trace.cache import user_folder

    if os.environ.get("KINETOSCOPE_CACHE") == "0":
        return Path(stack.enter_context(tempfile.TemporaryDirectory()))
    return user_folder() / "parts"


def _shown(done: int, count: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == count else ""
        sys.stderr.write(f"\r{done:,} of {count:,} traces{end}")
        sys.stderr.flush()
