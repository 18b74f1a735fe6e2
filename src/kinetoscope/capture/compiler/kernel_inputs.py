"""The arguments of kernels in one step: `kinetoscope run --kernel-inputs`.

Kept are the integer and boolean tensors of kernels that Inductor generated (indices decide the speed of
gathers and scatters), and everything about hand-written Triton kernels that a later launch needs. The first
call of each kernel counts.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import os
import re
import sys
import textwrap
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

import msgspec

from kinetoscope.capture import torch_private
from kinetoscope.capture.compiler.stream import Stream
from kinetoscope.capture.hooks.calls import hook
from kinetoscope.errors import in_one_line
from kinetoscope.recording.inputs import (
    SCHEMA,
    GeneratedKernel,
    Inputs,
    Parameter,
    SavedTensor,
    Scalar,
    UserKernel,
)

# Modules that the source may import: they come with Triton, whatever program it is in.
IMPORTED = ("triton", "math")
# What comes before the first ``def`` at the start of a line.
DECORATORS = re.compile(r"\A.*?^(?=def\s)", re.DOTALL | re.MULTILINE)


class TensorShape(TypedDict):
    """A tensor's sizes, strides (elements), dtype and device."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str


def tensor_shape(value: Any) -> TensorShape:
    return {
        "shape": tuple(map(int, value.shape)),
        "stride": tuple(map(int, value.stride())),
        "dtype": str(value.dtype).removeprefix("torch."),
        "device": value.device.type,
    }


def describe(
    function: Any, arguments: Sequence[Any], named: Mapping[str, Any]
) -> tuple[UserKernel, list[Any]]:
    """One launch of a ``triton.runtime.jit.JITFunction`` as its ``run`` is called; its arguments by position.
    Raises TypeError where an argument is neither tensor nor number, text, dtype or None."""
    names = [str(name) for name in function.arg_names]
    bound = dict(zip(names, arguments, strict=False))
    bound |= {name: value for name, value in named.items() if name in names}
    for parameter in function.params:
        if parameter.name not in bound and parameter.has_default:
            bound[parameter.name] = parameter.default
    grid: Any = named["grid"]
    if callable(grid):
        grid = grid(bound)
    constants = {parameter.name for parameter in function.params if parameter.is_constexpr}
    storages: dict[int, int] = {}
    text, missing = source(function)
    code = function.fn.__code__
    others = {name: value for name, value in named.items() if name not in (*names, "grid", "warmup")}
    kernel = UserKernel(
        kernel=function.__name__,
        launches=1,
        source=text,
        missing=tuple(missing),
        file=code.co_filename,
        line=code.co_firstlineno,
        parameters=tuple(_parameter(name, bound.get(name), name in constants, storages) for name in names),
        grid=tuple(map(int, grid)) if hasattr(grid, "__iter__") else (int(grid),),
        options={name: plain for name, value in others.items() if (plain := _scalar(value)) is not None},
    )
    return kernel, [bound.get(name) for name in names]


def _parameter(name: str, value: Any, constant: bool, storages: dict[int, int]) -> Parameter:
    value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
    if hasattr(value, "untyped_storage"):
        storage = storages.setdefault(value.untyped_storage().data_ptr(), len(storages))
        offset = int(value.storage_offset())
        return Parameter(name=name, constant=constant, storage=storage, offset=offset, **tensor_shape(value))
    if (plain := _scalar(value)) is not None or value is None:
        return Parameter(name=name, constant=constant, value=plain)
    if type(value).__name__ == "dtype" and type(value).__module__.startswith("triton"):
        return Parameter(name=name, constant=constant, triton_dtype=str(value))
    raise TypeError(f"the argument {name} is a {type(value).__name__}")


def _scalar(value: Any) -> Scalar | None:
    """A number, truth value or text as Python's own type (NumPy's are subclasses); None for anything else."""
    return next((plain(value) for plain in (bool, int, float, str) if isinstance(value, plain)), None)


def source(function: Any) -> tuple[str, list[str]]:
    """The kernel and every jitted function, constant and import that it names, as one module's text."""
    lines: dict[str, str] = {}
    missing: list[str] = []
    body = "\n\n".join(_functions(function, lines, missing, set()))
    lines = {"triton": "import triton", "tl": "import triton.language as tl"} | lines
    head = "\n".join(lines.values())
    return f"{head.rstrip()}\n\n\n{body}", list(dict.fromkeys(missing))


def _functions(function: Any, lines: dict[str, str], missing: list[str], seen: set[str]) -> Iterator[str]:
    """The functions in the order in which they must be defined; imports and constants go to ``lines``."""
    plain = function.fn
    text = textwrap.dedent(inspect.getsource(plain))
    text = DECORATORS.sub("", text, count=1)
    tree = ast.parse(text)
    seen.add(plain.__name__)
    local = {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    local |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    used = dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    cells = inspect.getclosurevars(plain).nonlocals
    for name in used:
        known = {**plain.__globals__, **cells}
        if name in local or name in seen or name in lines or name not in known:
            continue
        value = known[name]
        if hasattr(value, "fn") and hasattr(value, "arg_names") and not _of_triton(value.fn):
            yield from _functions(value, lines, missing, seen)
            if value.fn.__name__ != name:
                yield f"{name} = {value.fn.__name__}\n"
        elif (line := _line(name, value)) is not None:
            lines[name] = line
        else:
            missing.append(name)
    yield "@triton.jit\n" + text


def _of_triton(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] in IMPORTED


def _line(name: str, value: Any) -> str | None:
    """The statement that makes a global what it is; None if text cannot say it."""
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}" if value.__name__.partition(".")[0] in IMPORTED else None
    if type(value).__name__ == "constexpr" and isinstance(value.value, (bool, int, float, str)):
        return f"{name} = tl.constexpr({value.value!r})"
    if isinstance(value, (bool, int, float, str)):
        return f"{name} = {value!r}"
    if type(value).__name__ == "dtype" and _of_triton(type(value)):
        return f"{name} = tl.dtype({value.name!r})"
    plain = getattr(value, "fn", value)
    if _of_triton(plain) and str(getattr(plain, "__qualname__", ".")).isidentifier():
        return f"from {plain.__module__} import {plain.__qualname__} as {name}"
    return None


MOST_BYTES = 64 << 20


class KernelInputs:
    """Watches kernel launches between `start` and `stop`; a failure is a note, never the program's."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.home, self.rank, self.pid = folder / "inputs", rank, os.getpid()
        self.lock = threading.Lock()
        self.removers: list[Callable[[], None]] = []
        self.data: Stream | None = None
        self.written = 0
        self.generated: dict[str, list[SavedTensor]] = {}
        self.user: dict[str, UserKernel] = {}
        self.left_out = 0
        self.done = False
        self.notes: list[str] = []

    def start(self) -> None:
        """Watch from here on. Kernels that a CUDA graph replays are not launched by Python, and not seen."""
        with self._harmlessly():
            self.data = Stream(self.home / f"rank{self.rank}.bin")
            self.data.write(b"")
            for module, name, see in (
                (torch_private.TRITON_HEURISTICS, "CachingAutotuner", self._generated),
                (torch_private.TRITON_JIT, "JITFunction", self._user),
            ):
                owner: Any = getattr(sys.modules.get(module), name, None)
                if owner is not None and hasattr(owner, "run"):
                    self.removers.append(hook(owner, "run", before=see))
                    torch_private.hide_from_dynamo(owner.run)

    @property
    def watching(self) -> bool:
        """Between `start` and `stop`."""
        return self.data is not None

    def remove(self) -> None:
        """Take the watch out of the program."""
        for remove in self.removers:
            remove()
        self.removers, self.data = [], None

    def stop(self) -> None:
        """End the watch and write the index."""
        with self._harmlessly(), self.lock:
            if self.data is None:
                return
            self.data.close()
            failure = self.data.failure
            self.remove()
            self.done = True
            if failure is not None:
                self.notes.append(f"kernel inputs were not kept: {failure}")
                return
            found = Inputs(
                schema=SCHEMA,
                generated=tuple(
                    GeneratedKernel(kernel=name, arguments=tuple(saved))
                    for name, saved in self.generated.items()
                    if saved
                ),
                user=tuple(self.user.values()),
            )
            text = msgspec.json.format(msgspec.json.encode(found), indent=1)
            (self.home / f"rank{self.rank}.json").write_bytes(text)
            if self.left_out:
                most = f"{MOST_BYTES >> 20} MiB"
                self.notes.append(
                    f"kernel inputs: {self.left_out} tensors were left out, beyond {most} in all"
                )
            if not self.generated and not self.user:
                self.notes.append(
                    "kernel inputs: "
                    "no Triton kernel was launched by Python in the step after the recorded ones"
                )

    def end(self) -> None:
        """The program ends: keep what was seen, and say what was not."""
        if self.watching:
            self.notes.append("kernel inputs: the program ended during the step that was watched")
            self.stop()
        elif not self.done and not self.notes:
            self.notes.append("kernel inputs were not kept: no step followed the recorded ones")

    @contextlib.contextmanager
    def _harmlessly(self) -> Generator[None, None, None]:
        try:
            yield
        except Exception as error:
            self.notes.append(f"kernel inputs were not kept: {in_one_line(error)}")
            self.remove()

    def _generated(self, autotuner: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
        name = str(autotuner.inductor_meta.get("kernel_name") or autotuner.fn.__name__)
        if name in self.generated or not self._usable():
            return
        with self.lock:
            saved = self.generated.setdefault(name, [])
            saved += self._save(arguments)

    def _user(self, function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
        if named.get("warmup") or os.getpid() != self.pid or self.data is None:
            return
        key = f"{getattr(function, '__module__', '')}.{function.__name__}"
        with self.lock:
            if (known := self.user.get(key)) is not None:
                self.user[key] = msgspec.structs.replace(known, launches=known.launches + 1)
                return
            try:
                kernel, values = describe(function, arguments, named)
                saved = tuple(self._save(values)) if self._usable() else ()
                self.user[key] = msgspec.structs.replace(kernel, arguments=saved)
            except Exception as error:
                why = in_one_line(error)
                self.user[key] = UserKernel(kernel=function.__name__, launches=1, unusable=why)

    def _usable(self) -> bool:
        """Whether tensors may be read now: in this process, and in no CUDA graph that is being captured."""
        torch: Any = sys.modules["torch"]
        capturing = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
        return os.getpid() == self.pid and self.data is not None and not capturing

    def _save(self, arguments: Sequence[Any]) -> Iterator[SavedTensor]:
        """Write the integers and booleans among a kernel's arguments, as far as there is room."""
        torch: Any = sys.modules["torch"]
        for position, value in enumerate(arguments):
            if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.is_floating_point():
                continue
            if value.is_complex() or self.data is None:
                continue
            size = value.numel() * value.element_size()
            if self.written + size > MOST_BYTES:
                self.left_out += 1
                continue
            values = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            self.data.write(bytes(values.untyped_storage())[:size] if size else b"")
            yield SavedTensor(position=position, at=self.written, **tensor_shape(value))
            self.written += size
