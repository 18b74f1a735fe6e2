"""Being told when a module has been imported, without importing it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class ImportWatch:
    """A finder that finds nothing itself: it calls back once a watched module has been executed."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[], None]]] = {}

    def when_imported(self, name: str, act: Callable[[], None]) -> None:
        """Call ``act`` after ``name`` was imported: now, if it already is."""
        if name in sys.modules:
            act()
            return
        self.waiting.setdefault(name, []).append(act)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        self.waiting.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        acts = self.waiting.pop(name, None)
        if acts is None:
            return None
        if not self.waiting:
            self.stop()
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            # The loader is left as it was before the module's own code runs: the program never sees this.
            del loader.exec_module
            execute(module)
            for act in acts:
                act()

        loader.exec_module = exec_module
        return spec
