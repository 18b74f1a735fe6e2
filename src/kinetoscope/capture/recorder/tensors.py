"""The tensors that the program holds on its devices, and as what: asked of the live process.

Modules and optimizers are found among what the garbage collector knows, by their type alone.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from types import FrameType
from typing import Any, cast

from kinetoscope.recording.memory import HeldTensor, Role

MOST = 20_000  # rows; a model of a thousand layers has as many parameters
DEEP = 3  # containers in each other that a variable's tensors are looked for in
# Whose frames are not the program's own: installed libraries', ours, the interpreter's.
FOREIGN = ("site-packages", "dist-packages", "<frozen", os.path.join("kinetoscope", "capture"))

Named = tuple[str, Any]  # a tensor, or what may be one


class HeldByProgram:
    """The modules and optimizers of this process as they are now; kept while steps are recorded."""

    def __init__(self) -> None:
        from torch.nn import Module
        from torch.optim import Optimizer

        found = gc.get_objects()  # hundreds of thousands: looking at their types takes some 50 ms
        self.modules = [one for one in found if issubclass(type(one), Module)]
        self.optimizers = [one for one in found if issubclass(type(one), Optimizer)]
        self.names: dict[int, str] = {}
        self.parameters: list[Named] = []
        for name, parameter in (*self._of_modules("named_parameters"), *self._of_optimizers()):
            if id(parameter) not in self.names:
                self.names[id(parameter)] = name
                self.parameters.append((name, parameter))

    def _of_modules(self, listing: str) -> Iterator[Named]:
        inner = {id(child) for module in self.modules for child in vars(module).get("_modules", {}).values()}
        for root in self.modules:
            if id(root) in inner:
                continue
            owner = type(vars(root).get("_modules", {}).get("_orig_mod", root)).__name__  # what is compiled
            with suppress(Exception):  # the program may have given its module a method of that name
                for name, tensor in getattr(root, listing)():
                    yield f"{owner}.{name.replace('_orig_mod.', '')}", tensor

    def _of_optimizers(self) -> Iterator[Named]:
        for optimizer in self.optimizers:
            with suppress(Exception):
                for at, group in enumerate(optimizer.param_groups):
                    for place, parameter in enumerate(group["params"]):
                        yield f"{type(optimizer).__name__}.param_groups[{at}]['params'][{place}]", parameter

    def _states(self) -> Iterator[Named]:
        for optimizer in self.optimizers:
            with suppress(Exception):
                for parameter, state in optimizer.state.items():
                    whose = self.names.get(id(parameter), type(optimizer).__name__)
                    for name, tensor in _tensors(state, ""):
                        yield f"{name.strip('[]')!s} of {whose}".replace("'", ""), tensor

    def gradients(self, time_ns: int) -> Iterator[HeldTensor]:
        """Where the gradients lie now."""
        named = ((name, parameter.grad) for name, parameter in self.parameters)
        return _rows("gradient", ((name, grad) for name, grad in named if grad is not None), time_ns)

    def tensors(self, frame: FrameType | None) -> tuple[HeldTensor, ...]:
        """All of them; variables of the functions that run, from ``frame`` outwards, and of their modules."""
        found = (
            *_rows("parameter", self.parameters),
            *_rows("buffer", self._of_modules("named_buffers")),
            *self.gradients(0),
            *_rows("optimizer state", self._states()),
            *_rows("variable", _variables(frame)),
        )
        return found[:MOST]


def _rows(role: Role, named: Iterator[Named] | list[Named], time_ns: int = 0) -> Iterator[HeldTensor]:
    for name, tensor in islice(named, MOST):
        with suppress(Exception):  # fake tensors and those of other devices have no storage to point to
            local = getattr(tensor, "_local_tensor", tensor)  # of one that is sharded
            storage = local.untyped_storage()
            if _on_device(local) and storage.nbytes():
                yield HeldTensor(
                    role=role,
                    name=name,
                    device=local.device.index or 0,
                    address=storage.data_ptr(),
                    bytes=storage.nbytes(),
                    shape=tuple(map(int, local.shape)),
                    dtype=str(local.dtype).removeprefix("torch."),
                    time_ns=time_ns,
                )


def _on_device(tensor: Any) -> bool:
    return tensor.is_cuda


def _variables(frame: FrameType | None) -> Iterator[Named]:
    seen: set[int] = set()
    while frame is not None:
        code = frame.f_code
        if not any(part in code.co_filename for part in FOREIGN):
            place = f"{os.path.basename(code.co_filename)}:{frame.f_lineno}"
            for variables, where in ((frame.f_locals, code.co_name), (frame.f_globals, "<module>")):
                if id(variables) not in seen:
                    seen.add(id(variables))
                    for name, value in list(variables.items()):
                        for at, tensor in _tensors(value, name):
                            yield f"{at} ({place}, {where})", tensor
        frame = frame.f_back


def _tensors(value: object, name: str, deep: int = DEEP) -> Iterator[Named]:
    """The tensors of a value, which may be in containers; a thousand of each container."""
    import torch

    if issubclass(type(value), torch.Tensor):
        yield name, value
    elif deep and type(value) in (list, tuple):
        for place, one in enumerate(islice(cast(list[object], value), 1000)):
            yield from _tensors(one, f"{name}[{place}]", deep - 1)
    elif deep and issubclass(type(value), dict):
        for key, one in islice(list(cast(Mapping[object, object], value).items()), 1000):
            if isinstance(key, (str, int)):
                yield from _tensors(one, f"{name}[{key!r}]", deep - 1)
    elif deep and type(value).__name__.endswith("Cache"):  # of keys and values, as transformers has them
        yield from _tensors(getattr(value, "__dict__", {}), name, deep - 1)
