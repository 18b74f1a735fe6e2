"""``kinetoscope view``: the report, with the timeline, in a browser."""

from __future__ import annotations

import argparse
import sys
from functools import cache
from typing import TYPE_CHECKING

from kinetoscope.cli import _options
from kinetoscope.cli.report import report_of

if TYPE_CHECKING:
    from kinetoscope.sources.run import LoadedRun

EPILOG = """\
example:
  kinetoscope view REC

The page is served on 127.0.0.1 until this command is interrupted (Ctrl-C), under an address that cannot be
guessed. On a click it hands the trace to Perfetto, in a window of your own browser, at the range that it
shows; nothing else leaves. `kinetoscope report INPUT -o report.html` writes the same page as a file.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.inputs(parser, "a recording, a trace, a compile log, or a folder of them")
    parser.add_argument(
        "--event", type=int, metavar="N", help="open the timeline at an event that `findings` names"
    )
    parser.add_argument("--port", type=int, default=0, help="of 127.0.0.1; any that is free, if not named")
    _options.flag(parser, "--no-browser", "only print the address")


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.errors import UsageError
    from kinetoscope.export import pftrace, speedscope
    from kinetoscope.progress import load_shown
    from kinetoscope.render.serving import Content, Server
    from kinetoscope.views import page as view

    loaded: list[LoadedRun] = []
    report = report_of(arguments.inputs, page=True, loaded=loaded)
    run = cache(lambda: loaded[0] if loaded else load_shown(arguments.inputs))
    place = "" if arguments.event is None else view.event_place(report, arguments.event)
    if place is None:
        raise UsageError(
            "no finding names such an event, nor does the critical path",
            where=f"--event {arguments.event}",
            hint="`kinetoscope findings` prints the events of its evidence",
        )
    page = view.render(report, arguments.inputs, served=True).encode()
    contents = {
        "": Content("text/html; charset=utf-8", lambda: page),
        "trace.pftrace": Content("application/octet-stream", lambda: pftrace.render(run())),
        "stacks.speedscope.json": Content("application/json", lambda: speedscope.render(run())),
    }
    try:
        server = Server(contents, arguments.port)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"cannot serve there: {error}",
            where=f"--port {arguments.port}",
            hint="leave --port away: a free one is found",
        ) from error
    url = server.url + place
    print(url, flush=True)
    print("serving until interrupted (Ctrl-C)", file=sys.stderr)
    if not arguments.no_browser:
        from kinetoscope import signals
        from kinetoscope.render.serving import opened
        from kinetoscope.trace.cache import user_folder

        with signals.as_exceptions(), opened(url, user_folder()), server:
            server.serve_forever()
        return 0
    with server:
        server.serve_forever()
    return 0
