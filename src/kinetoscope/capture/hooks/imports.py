"""Notice when a module has been imported, without importing it.

The bootstrap reads this file before the program's own modules can be found: it imports nothing that every
interpreter has not imported already.
"""

import _thread
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class ImportWatch:
    """A finder that finds nothing itself: it calls back once a watched module has been executed.

    A library that only asks whether a module is there, as ``importlib.util.find_spec("torch")`` does, looks
    for it and does not import it: it is waited for until it is executed.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[], None]]] = {}
        self.variables: dict[str, dict[str, str]] = {}
        self.looking: set[tuple[str, int]] = set()  # modules that others look for, and in which thread

    def when_imported(self, name: str, act: "Callable[[], None]") -> None:
        """Call ``act`` after ``name`` was imported: now, if it already is."""
        if name in sys.modules:
            act()
            return
        self.waiting.setdefault(name, []).append(act)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def import_under(self, name: str, variables: "dict[str, str]") -> None:
        """Have ``name``, if it is imported, read these of the environment's variables that are not set."""
        self.variables[name] = variables
        self.when_imported(name, lambda: None)

    def stop(self) -> None:
        self.waiting.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        looking = (name, _thread.get_ident())
        if name not in self.waiting or looking in self.looking:
            return None
        self.looking.add(looking)
        try:
            found = (
                finder.find_spec(name, path, target) for finder in list(sys.meta_path) if finder is not self
            )
            spec = next((spec for spec in found if spec is not None), None)
        finally:
            self.looking.discard(looking)
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: "ModuleType") -> None:
            # The loader is left as it was before the module's own code runs: the program never sees this.
            vars(loader).pop("exec_module", None)
            with_variables(self.variables.get(name, {}), lambda: execute(module))
            self.variables.pop(name, None)
            acts = self.waiting.pop(name, [])
            if not self.waiting:
                self.stop()
            for act in acts:
                _harmlessly(act, name)

        loader.exec_module = exec_module
        return spec


def with_variables(variables: "dict[str, str]", act: "Callable[[], None]") -> None:
    """Call ``act`` with these in the environment, where they are not set, and remove them after it."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        act()
    finally:
        for name in added:
            os.environ.pop(name, None)


def _harmlessly(act: "Callable[[], None]", name: str) -> None:
    """Call ``act``; its failure is a message, not a failed import."""
    try:
        act()
    except Exception as error:
        if sys.stderr is not None:
            print(f"kinetoscope: {name} is not recorded: {type(error).__name__}: {error}", file=sys.stderr)
