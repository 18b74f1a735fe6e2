"""A notebook's cells, run: through IPython's own shell where it is installed, else through one like it."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kinetoscope

ROOT_FIXTURE = Path(__file__).parents[1] / "fixtures" / "h200" / "mm_64_warm_eager.json.gz"


class Outcome:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error

    @property
    def success(self) -> bool:
        return self.error is None

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error


class LikeIPython:
    """Cells, magics and a namespace, as IPython's shell has them."""

    def __init__(self) -> None:
        self.user_ns: dict[str, Any] = {}
        self.magics: dict[tuple[str, str], Callable[..., object]] = {}

    def register_magic_function(self, func: Callable[..., object], magic_kind: str, magic_name: str) -> None:
        self.magics[magic_kind, magic_name] = func

    def run_cell(self, raw_cell: str) -> Outcome:
        try:
            exec(raw_cell, self.user_ns)
        except Exception as error:
            return Outcome(error)
        return Outcome(None)

    def run_line_magic(self, name: str, line: str) -> object:
        if name == "load_ext":
            return kinetoscope.load_ipython_extension(self)
        return self.magics["line", name](line)

    def run_cell_magic(self, name: str, line: str, cell: str) -> object:
        return self.magics["cell", name](line, cell)


@pytest.fixture
def shell() -> Any:
    if importlib.util.find_spec("IPython") is None:
        return LikeIPython()
    from IPython.core.interactiveshell import InteractiveShell

    return InteractiveShell()


def frame(html: str) -> tuple[str, str]:
    """The sandbox of the one frame that is shown, and what is in it."""
    (found,) = re.findall(
        r'^<iframe sandbox="([^"]*)" style="[^"]*" srcdoc="([^"]*)"></iframe>$', html, re.DOTALL
    )
    return found


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_cells_are_recorded_and_compared(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_line_magic("load_ext", "kinetoscope")
    shell.run_cell("import torch; x = torch.ones(64)").raise_error()
    base = shell.run_cell_magic("kinetoscope", "--steps 2", "x.sin()")
    assert len(base.steps()) == 2
    assert shell.user_ns["kinetoscope_run"] is base
    shown = " ".join(capsys.readouterr().out.split())
    assert "No device work was recorded. On the host" in shown  # a terminal shows no page
    shell.user_ns["base"] = base
    shell.run_cell_magic("kinetoscope", "--steps 2", "x.sin().cos()")
    found = shell.run_line_magic("kinetoscope_diff", "base")
    assert "aten::cos" in {change.name for change in found.changes}
    assert len(repr(found)) < 200
    assert "What differs" in capsys.readouterr().out
    assert shell.run_line_magic("kinetoscope_diff", "").changes == found.changes, "the last two"
    capsys.readouterr()
    shell.run_cell_magic("kinetoscope", "", "no_such_name")
    assert "in _run" not in "".join(capsys.readouterr()), "its error is the shell's to show, once"
    shell.kernel = None  # as a notebook's shell has one
    assert shell.run_line_magic("kinetoscope_diff", "base") is not None
    assert capsys.readouterr().out == ""


def test_runs_and_differences_show_their_page_in_a_sandbox(shell: Any) -> None:
    shell.run_line_magic("load_ext", "kinetoscope")
    run = kinetoscope.load(ROOT_FIXTURE)
    sandbox, page = frame(run._repr_html_())
    assert sandbox == "allow-scripts", "neither an origin nor the notebook"
    assert "&lt;!doctype html&gt;" in page.lower()
    shell.user_ns["run"] = run
    sandbox, page = frame(shell.run_line_magic("kinetoscope_diff", f"run {ROOT_FIXTURE}")._repr_html_())
    assert sandbox == "allow-scripts"
    assert "&lt;!doctype html&gt;" in page.lower()


def test_what_is_no_argument_is_said(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_line_magic("load_ext", "kinetoscope")
    for magic in (
        lambda: shell.run_line_magic("kinetoscope_diff", ""),
        lambda: shell.run_cell_magic("kinetoscope", "--stops 3", "1"),
    ):
        assert magic() is None
        said = "".join(capsys.readouterr())
        assert said.startswith("kinetoscope: ")
        assert "Traceback" not in said
