"""A hand-written Triton kernel as text and numbers: its source, with all it names, and one launch of it."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, TypedDict

from kinetoscope.recording.inputs import Parameter, Scalar, UserKernel

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

    Raises:
        TypeError: an argument is neither tensor nor number, text, dtype or None.
    """
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
