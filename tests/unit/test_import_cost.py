"""Importing the command line happens inside profiled programs: it may bring nothing heavy."""

import subprocess
import sys

import pytest

from command import ENVIRONMENT

HEAVY = (
    "polars",
    "rich",
    "jinja2",
    "msgspec",
    "torch",
    "numpy",
    "json",
    "gzip",
    "asyncio",
    "typing_extensions",
)


@pytest.mark.parametrize(
    "module", ["kinetoscope", "kinetoscope.cli", "kinetoscope.cli.report", "kinetoscope.cli.query"]
)
def test_the_command_line_imports_nothing_heavy(module):
    code = (
        f"import sys; before = set(sys.modules); import {module}; print(*sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=True
    ).stdout.split()
    assert module in loaded
    assert not [name for name in loaded if name.split(".")[0] in HEAVY]
