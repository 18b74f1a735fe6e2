"""Noticing that a module was imported, whatever else looks for it before."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from kinetoscope.capture.hooks.imports import ImportWatch


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    name = "a_watched_module"
    (tmp_path / f"{name}.py").write_text("import os\nif os.environ.get('FAILS'): raise ImportError\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_a_library_that_only_asks_whether_a_module_is_there_does_not_end_the_wait(module: str):
    watch, seen = ImportWatch(), list[str]()
    watch.when_imported(module, lambda: seen.append("imported"))
    assert importlib.util.find_spec(module) is not None
    assert importlib.util.find_spec(module) is not None
    assert not seen
    importlib.import_module(module)
    assert seen == ["imported"]
    assert watch not in sys.meta_path
    assert "exec_module" not in vars(sys.modules[module].__spec__.loader)  # pyright: ignore


def test_a_spec_that_was_asked_for_may_be_executed_later(module: str):
    watch, seen = ImportWatch(), list[str]()
    watch.when_imported(module, lambda: seen.append("imported"))
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.loader is not None
    importlib.import_module(module)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert seen == ["imported"]


def test_an_import_that_failed_is_waited_for_again(module: str, monkeypatch: pytest.MonkeyPatch):
    watch, seen = ImportWatch(), list[str]()
    watch.when_imported(module, lambda: seen.append("imported"))
    monkeypatch.setenv("FAILS", "1")
    with pytest.raises(ImportError):
        importlib.import_module(module)
    monkeypatch.delenv("FAILS")
    importlib.import_module(module)
    assert seen == ["imported"]


def test_a_finder_that_asks_for_the_same_module_is_answered(module: str, monkeypatch: pytest.MonkeyPatch):
    class Asks:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == module and not self.__dict__.setdefault("asked", False):
                self.asked = True
                assert importlib.util.find_spec(name) is not None

    watch, seen = ImportWatch(), list[str]()
    monkeypatch.setattr(sys, "meta_path", [Asks(), *sys.meta_path])
    watch.when_imported(module, lambda: seen.append("imported"))
    importlib.import_module(module)
    assert seen == ["imported"]
