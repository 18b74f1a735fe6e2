from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from kinetoscope.capture import cells
from kinetoscope.capture.steps.loops import loops_around

FILE = "/tmp/ipykernel_77/3541332768.py"


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map={FILE: 3}))
    running = SimpleNamespace(initialized=lambda: True, instance=lambda: shell)
    monkeypatch.setitem(sys.modules, cells.SHELL, SimpleNamespace(InteractiveShell=running))


@pytest.mark.usefixtures("notebook")
def test_a_cell_is_named_by_its_number() -> None:
    assert cells.named(FILE) == "In[3]"
    assert cells.named("/home/me/train.py") == "/home/me/train.py"
    code = compile("for batch in range(3):\n    print(batch)", FILE, "exec")
    at = max(offset for offset, _, line in code.co_lines() if line == 2)
    assert [loop.where for loop in loops_around([(code, at)])] == ["In[3]:1"]


def test_without_a_notebook_files_are_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cells.named(FILE) == FILE
    monkeypatch.setitem(sys.modules, cells.SHELL, SimpleNamespace())
    assert cells.named(FILE) == FILE
