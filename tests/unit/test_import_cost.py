"""Importing the command line happens inside profiled programs: it may bring nothing heavy."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from command import ENVIRONMENT
from kinetoscope.analysis.origins import sums
from kinetoscope.cli import kernels

TRACE = Path(__file__).parents[1] / "fixtures" / "h200_breaks" / "breaks.json.gz"
RECORDING = Path(__file__).parents[1] / "fixtures" / "h200_rare_steps" / "collecting"
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


def loaded(code: str) -> list[str]:
    """The modules that code loads in an interpreter of its own."""
    code = f"import sys; before = set(sys.modules); {code}; print(*sorted(set(sys.modules) - before))"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=True
    )
    return ran.stdout.splitlines()[-1].split()


@pytest.mark.parametrize(
    "module", ["kinetoscope", "kinetoscope.cli", "kinetoscope.cli.report", "kinetoscope.cli.query"]
)
def test_the_command_line_imports_nothing_heavy(module):
    modules = loaded(f"import {module}")
    assert module in modules
    assert not [name for name in modules if name.split(".")[0] in HEAVY]


def test_polars_is_loaded_while_a_trace_is_decoded_and_not_before():
    assert not {"polars", "numpy"} & set(loaded("import kinetoscope.progress, kinetoscope.trace.read"))
    assert "polars" not in loaded("from kinetoscope.cli import parse; parse('kernels', ['trace.json'])")


def test_a_command_can_sum_by_all_that_kernels_are_summed_by():
    assert tuple(sums.BY) == kernels.BY


def test_a_trace_alone_is_read_without_what_reads_compile_logs():
    modules = loaded(f"from kinetoscope.sources.run import load; load({str(TRACE)!r})")
    assert "kinetoscope.trace.read" in modules
    assert "kinetoscope.compilation.build" not in modules
    assert "sqlite3" not in modules  # some Pythons are built without it


ASKED = [["report"], ["report", "--json"], ["report", "-o", "x.html"], ["kernels"], ["findings"], ["steps"]]


def shown(*questions: list[str]) -> str:
    return "from kinetoscope.cli import main; " + "; ".join(
        f"main({[words[0], 'r', *words[1:]]})" for words in questions
    )


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """In a folder with a recording of which all that is asked has been answered before."""
    folder = tmp_path_factory.mktemp("answered")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setitem(ENVIRONMENT, "XDG_CACHE_HOME", str(folder))
        patch.setitem(ENVIRONMENT, "KINETOSCOPE_CACHE", "1")
        shutil.copytree(RECORDING, folder / "r")
        assert "polars" in loaded(shown(*ASKED))
        yield


@pytest.mark.usefixtures("answered")
@pytest.mark.parametrize("words", ASKED)
def test_what_is_known_is_shown_without_the_analyses(words: list[str]):
    """An answer of another command's life: neither Polars nor what reads traces is loaded for it."""
    unneeded = {"polars", "kinetoscope.trace.read", "kinetoscope.findings.registry"}
    assert not unneeded & set(loaded(shown(words)))


@pytest.mark.parametrize("word", [[], ["overhead-bound"], ["aten::mm"]])
def test_the_glossary_is_shown_without_the_analyses(word):
    modules = loaded(f"from kinetoscope.cli import main; main({['explain', *word]})")
    assert "kinetoscope.findings.glossary.explanation" in modules
    assert not [name for name in modules if name.split(".")[0] in ("polars", "pygments")]
