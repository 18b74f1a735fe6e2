"""`kinetoscope record`: some steps of a server, recorded while it serves."""

from __future__ import annotations

import argparse

from kinetoscope.cli import _options

EPILOG = """\
example, in one terminal and then, while requests come, in another:
  kinetoscope run --on-request server.py
  kinetoscope record --steps 50
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "target",
        nargs="?",
        metavar="PID|DIR",
        help="the server's process or one that started it, or the folder that `run --on-request` named "
        "(default: the one server that waits)",
    )
    add("--steps", type=_options.at_least(1), default=200, metavar="N", help="steps to record (default 200)")
    seconds = "end after this many seconds at the latest, even if no request comes (default 60)"
    add("--seconds", type=_options.at_least(0, float), default=60.0, metavar="S", help=seconds)


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.capture.live.requester import record
    from kinetoscope.capture.process.launch import shown

    folder = record(arguments.target, arguments.steps, arguments.seconds, _options.progress)
    _options.progress(f"next: kinetoscope report {shown(folder)} -o report.html")
    print(shown(folder))
    return 0
