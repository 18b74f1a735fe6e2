"""`kinetoscope doctor`: what this machine lets a profiler see."""

from __future__ import annotations

import argparse

from kinetoscope.cli import _options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    import json
    from dataclasses import asdict

    from kinetoscope.capture.checkup import checkup

    findings = checkup()
    if arguments.json:
        print(json.dumps({"checks": [asdict(finding) for finding in findings]}, indent=2))
        return 0
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        print(f"{finding.state:<7}  {finding.name:<{width}}  {finding.text}")
        if finding.hint:
            print(f"{'':<7}  {'':<{width}}  hint: {finding.hint}")
    return 0
