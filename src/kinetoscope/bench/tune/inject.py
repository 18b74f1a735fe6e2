"""Changing what ``torch.compile`` does in a program that is not edited."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from kinetoscope.bench.tune.settings import Setting, written
from kinetoscope.capture.compiler import backends


class Injection:
    """Stands in for ``torch.compile``: the setting's arguments win over the program's own."""

    def __init__(
        self,
        setting: Setting,  # what to compile with; eager hands everything back uncompiled
        # called whenever a function the program compiled is: with its number and name
        called: Callable[[int, str], None],
        # called with what each thing's first call returned, under a name that is the same in every setting
        first_output: Callable[[str, Any], None],
    ) -> None:
        self._setting, self._called, self._first_output = setting, called, first_output
        self.calls = 0
        self.own: dict[Setting, None] = {}
        self.notes: list[str] = []

    def install(self) -> None:
        import torch

        replaced: Any = torch  # to the checker a module's functions are constants
        self._compile: Callable[..., Any] = torch.compile
        replaced.compile = self.compile
        if self._setting.matmul_precision is not None:
            torch.set_float32_matmul_precision(self._setting.matmul_precision)

    def compile(self, model: Any = None, **given: Any) -> Any:
        """``torch.compile`` as the program calls it, also as a decorator with arguments."""
        if model is None:
            return functools.partial(self.compile, **given)
        import torch

        self.calls += 1
        self.own[written(given)] = None
        made = self.made(model, **given)
        if isinstance(made, torch.nn.Module):
            self.watch_output(f"compiled {self.calls}", made)
            return made
        return self._watched(made, self.calls)

    def made(self, model: Any, **given: Any) -> Any:
        if self._setting.is_eager:
            return model
        if self._setting.as_written:
            return self._compile(model, **given)
        wanted = self._setting.arguments()
        if "mode" in wanted and given.pop("options", None):
            self.notes.append("the program's own options= of torch.compile are replaced by the mode")
        if "mode" not in wanted:  # Inductor's modes and options mean nothing to others
            given.pop("mode", None)
            given.pop("options", None)
        backend = backends.known(self._setting.backend or "")
        if backend is not None and backend.imported:
            importlib.import_module(str(backend.module))
        return self._compile(model, **{**given, **wanted})

    def watch_output(self, name: str, module: Any) -> None:
        """Hand over the module's next output under this name."""

        def once(_module: Any, _inputs: Any, output: Any) -> None:
            handle.remove()
            self._first_output(name, output)

        handle = module.register_forward_hook(once)

    def _watched(self, function: Callable[..., Any], number: int) -> Callable[..., Any]:
        seen = False

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            nonlocal seen
            self._called(number, getattr(function, "__name__", "function"))
            output = function(*arguments, **keywords)
            if not seen:
                seen = True
                self._first_output(f"compiled {number}", output)
            return output

        return call


def tensors(value: Any) -> list[Any]:
    """Every tensor in nested lists, tuples, dicts and dataclass-like outputs, in order."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors(v)]
    if isinstance(value, list | tuple):
        return [t for v in value for t in tensors(v)]
    return []


def difference(found: Sequence[Any], expected: Sequence[Any]) -> float | None:
    """The largest relative difference ‖a − b‖ / ‖b‖ over pairs of tensors; None if they do not correspond.

    NaN in one and not in the other counts as infinite.
    """
    if not expected or len(found) != len(expected):
        return None
    worst = 0.0
    for a, b in zip(found, expected, strict=True):
        if a.shape != b.shape:
            return None
        x, y = a.double(), b.double()
        if bool((x.isfinite() != y.isfinite()).any()):
            return float("inf")
        x, y = x.nan_to_num(0, 0, 0), y.nan_to_num(0, 0, 0)
        scale = float(y.norm())
        worst = max(worst, float((x - y).norm()) / scale if scale else float(x.norm()))
    return worst
