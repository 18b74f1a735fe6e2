"""Many ranks: each trace read by a worker, their parts compared, the comparison printed or written."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path


def report_many(
    inputs: Sequence[str],
    output: Path | None,
    engine: str,
    parts: Path | None,
    *,
    every: bool,
    as_json: bool = False,
) -> None:
    """Compare the ranks in ``inputs``.

    Args:
        engine: auto, local or ray.
        parts: where to keep parts; None: in the user's cache.
        every: with a row for every rank.
        as_json: print the document, where no file is named.

    Raises:
        InputError: nothing of it can be read.
        UsageError: the output cannot be written.
    """
    from kinetoscope.analysis.compared.comparison import compare
    from kinetoscope.analysis.ranks.hangs import hangs
    from kinetoscope.fleet import engine as engines
    from kinetoscope.fleet import inspector
    from kinetoscope.fleet.dumps import read
    from kinetoscope.fleet.gather import gather
    from kinetoscope.fleet.store import Store
    from kinetoscope.report import destination
    from kinetoscope.report.collect.ranks import listing
    from kinetoscope.report.verbs.ranks import print_ranks, rendered
    from kinetoscope.sources.paths import find

    if output is not None:
        destination.check(output, inputs)
    with ExitStack() as stack:
        folder = parts or _kept(stack)
        store = Store(folder)
        found = find(inputs)
        chosen, unread = gather(found, store, engines.ENGINES["ray" if engine == "ray" else "local"], _shown)
        if parts is None:
            store.forget_unused()
    dumps = dict(map(read, map(Path, found.dumps)))
    logs = [inspector.read(Path(log)) for log in found.logs]
    document = listing(compare(chosen), every=every, hangs=hangs(dumps), unread=unread, logs=logs)
    if output is None and as_json:
        print(rendered(document, Path("ranks.json")), end="")
        return
    if output is None:
        from kinetoscope.report.pages.console import WIDEST, standard_output

        print_ranks(document, standard_output(widest=WIDEST))
        return
    page = rendered(document, output).encode()
    destination.write(output, page)
    print(f"wrote {output} ({len(page):,} bytes)", file=sys.stderr)


def _kept(stack: ExitStack) -> Path:
    """The user's cache, or a folder that goes at once where nothing is to be kept."""
    from kinetoscope.trace.cache import user_folder

    if os.environ.get("KINETOSCOPE_CACHE") == "0":
        return Path(stack.enter_context(tempfile.TemporaryDirectory()))
    return user_folder() / "parts"


def _shown(done: int, count: int) -> None:
    """How far it is, on a terminal."""
    if sys.stderr.isatty():
        end = "\n" if done == count else ""
        sys.stderr.write(f"\r{done:,} of {count:,} traces{end}")
        sys.stderr.flush()
