"""Importing the command line happens inside profiled programs: it may bring nothing heavy."""

import subprocess
import sys
import time

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


def test_importing_the_command_line_takes_less_than_60_ms():
    # The fastest of several starts: whatever disturbs one makes it slower, never faster.
    def start(code):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=True)
        return time.perf_counter() - began

    pairs = [(start("pass"), start("import kinetoscope.cli")) for _ in range(7)]
    assert min(ours for _, ours in pairs) - min(bare for bare, _ in pairs) < 0.060
