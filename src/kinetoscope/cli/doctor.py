"""`kinetoscope doctor`: what this machine lets a profiler see."""

from __future__ import annotations

import argparse

from kinetoscope.cli import _options

STYLES = {"ok": "green", "missing": "bold red", "note": "yellow"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.capture.checkup import checkup
    from kinetoscope.render.blocks import Labelled, Text, line

    checks = checkup()
    width = max(len(check.name) for check in checks)
    rows = [
        (
            Text(f"{check.state:<7}  {check.name:<{width}}", STYLES[check.state]),
            (line(check.text), *([line(f"hint: {check.hint}", style="dim")] if check.hint else [])),
        )
        for check in checks
    ]
    _options.answer(arguments, {"checks": checks}, lambda: [Labelled(tuple(rows))], as_page=True)
    return 0
