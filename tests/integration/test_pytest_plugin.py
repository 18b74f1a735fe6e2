"""The plugin run by pytest itself: limits that hold or do not, no cost where unused."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from command import ENVIRONMENT
from programs import QUICK_ENDS

pytest_plugins = ["pytester"]
PATH = os.pathsep.join((ENVIRONMENT["PYTHONPATH"], str(QUICK_ENDS)))

TESTS = """
import pytest, torch

@pytest.mark.kinetoscope(max_ops=5, max_launches=0, no_pageable_copies=True)
def test_few():
    torch.ones(3).sin()

@pytest.mark.kinetoscope(max_ops=0, max_graph_breaks=0)
def test_many():
    torch.ones(3).cos()

def test_fixture(kinetoscope):
    x = torch.ones(3)
    x.tan()
    with kinetoscope(max_ops=1) as profile:
        x.sin()
    assert set(profile.run.ops()["name"]) == {"aten::sin"}
    with kinetoscope(max_ops=1):
        x.sin()
        x.cos()

@pytest.mark.kinetoscope(max_graph_breaks=0, max_syncs=0)
def test_compiler_reset():
    import torch._dynamo
    torch.ones(3).sum().item()
    torch._dynamo.reset()

@pytest.mark.kinetoscope(max_graph_breaks=0)
def test_benchmark():
    import sys
    before = sys.getprofile()
    sys.setprofile(None)  # as pytest-benchmark does around what it times
    sys.setprofile(before)
    torch.ones(3).sin()

@pytest.mark.kinetoscope(max_launhces=0)
def test_misspelt():
    assert False, "it does not run"

@pytest.mark.kinetoscope(max_graph_breaks=0, max_ops=100)
def test_break():
    @torch.compile(backend="eager")
    def f(x):
        print("a break")
        return x + 1
    f(torch.ones(3))

@pytest.mark.kinetoscope(max_graph_breaks=0)
def test_whole_after_a_break():
    torch._dynamo.reset()
    torch.compile(torch.sin, backend="eager")(torch.ones(3))
"""


@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.slow)])
def test_limits_are_held(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: str) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    monkeypatch.setenv("PYTHONPATH", PATH)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    pytester.makepyfile(TESTS)
    # It alone, whether it is installed or stands in the path: others take longer to import than it to test.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    spread = () if workers == "0" else ("-p", "xdist", "-n", workers)
    words = ("-p", "kinetoscope.integrations.pytest_plugin", "--strict-markers", "-W", "error", *spread)
    done = pytester.runpytest_subprocess(*words, timeout=110)
    done.assert_outcomes(passed=4, failed=4)
    done.stdout.fnmatch_lines_random(
        [
            "kinetoscope: max_ops=0: operators called: *",
            "kinetoscope: max_ops=1: operators called: 2",
            "    aten::sin, 1 in all (*test_limits*.py:18)",
            "kinetoscope: there is no limit 'max_launhces'",
            "  hint:  did you mean max_launches*",
            "*kinetoscope: counted, of at most*",
            "*::test_few * ops 4 of 5",
            "*::test_fixture * ops 2 of 1",
            "kinetoscope: not counted, since there is no GPU: max_launches, no_pageable_copies (of 1 test)",
            "kinetoscope: not counted, since there is no GPU: max_syncs (of 1 test)",
            "kinetoscope: max_graph_breaks=0: graph breaks: 1",
        ]
    )
    frames = Path(done.outlines[max(i for i, line in enumerate(done.outlines) if "recording: " in line)][11:])
    assert (frames / "trace" / "rank0.json").stat().st_size < 1_000_000, "no frame of the compiler"
    done.stdout.no_fnmatch_line("*torch.__trace*")  # the compile log is the recording's
    done.stdout.no_fnmatch_line("*Error*")  # no failure is a traceback of the plugin's own


AGAINST = """
import os, pytest, torch

@pytest.mark.kinetoscope(against="perf")
@pytest.mark.parametrize("size", [3, 4])
def test_step(size):
    x = torch.ones(size)
    if os.environ.get("MORE") and size == 4:
        x.cos()
    x.sin()

def test_block(kinetoscope):
    with kinetoscope(against="perf"):
        torch.ones(3)

if os.environ.get("MORE"):
    @pytest.mark.kinetoscope(against="perf")
    def test_new():
        torch.ones(3)
"""


def test_each_test_has_a_baseline_of_its_own(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    monkeypatch.setenv("PYTHONPATH", PATH)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(test_it=AGAINST)
    words = ("-p", "kinetoscope.integrations.pytest_plugin")
    pytester.runpytest_subprocess(*words, "--kinetoscope-update", timeout=110).assert_outcomes(passed=3)
    assert sorted(path.name for path in (pytester.path / "perf").iterdir()) == [
        "test_it.py-test_block-1.json",
        "test_it.py-test_step-3.json",
        "test_it.py-test_step-4.json",
    ]
    monkeypatch.setenv("MORE", "1")
    done = pytester.runpytest_subprocess(*words, "test_it.py", timeout=110)
    done.assert_outcomes(passed=2, failed=2)
    done.stdout.fnmatch_lines(
        [
            "kinetoscope: operators called: 4 → 5",
            "    aten::cos, 0 → 1 in all (test_it.py:8)",
            "if this is meant: pytest --kinetoscope-update 'test_it.py::test_step[[]4[]]'",
            "kinetoscope: perf/test_it.py-test_new.json is no baseline yet; *",
        ]
    )


def test_all_limits_may_be_turned_off(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PATH)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile("""
        import pytest, sys

        @pytest.mark.kinetoscope(max_ops=0)
        def test_it():
            assert "torch" not in sys.modules, "nothing is recorded"
    """)
    words = ("-p", "kinetoscope.integrations.pytest_plugin", "--no-kinetoscope")
    pytester.runpytest_subprocess(*words, timeout=60).assert_outcomes(passed=1)


def test_importing_the_pytest_plugin_loads_nothing_else() -> None:
    code = (
        "import pytest, sys; before = set(sys.modules); import kinetoscope.integrations.pytest_plugin; "
        "print(*sorted(name for name in set(sys.modules) - before if not name.startswith('kinetoscope')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=True
    )
    assert not {"torch", "polars", "msgspec", "rich", "numpy"} & set(done.stdout.split())
