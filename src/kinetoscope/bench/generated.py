"""Modules that Inductor generated, read from a recording: their kernels, and what each kernel is called with.

A generated module is the ground truth of a graph: which kernels run, in which order, on tensors of which shape and
stride. This file reads its text; `follow` finds out what the kernels are called with.
"""

from __future__ import annotations

import ast
import gzip
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from kinetoscope.errors import InputError, KinetoscopeError


class TensorArgument(msgspec.Struct, frozen=True, tag="tensor"):
    """A tensor as a kernel is given it. Arguments with the same ``storage`` number share memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str
    storage: int
    offset: int
    """In elements, from the start of the storage."""

    @property
    def elements(self) -> int:
        """Distinct elements: a dimension of stride 0 counts once."""
        count = 1
        for size, stride in zip(self.shape, self.stride, strict=True):
            count *= 1 if stride == 0 and size else size
        return count

    @property
    def reach(self) -> int:
        """Elements of the storage up to the last one touched."""
        if 0 in self.shape:
            return self.offset
        return self.offset + 1 + sum((s - 1) * t for s, t in zip(self.shape, self.stride, strict=True))


class ScalarArgument(msgspec.Struct, frozen=True, tag="scalar"):
    value: int | float | bool | str | None


Argument = TensorArgument | ScalarArgument


class Kernel(NamedTuple):
    """One kernel of a module: its full name, its source text, and the compiler it is for (``triton``, ``cpp``)."""

    name: str
    source: str
    kind: str
    signature: tuple[str, ...]
    """C types of the parameters (``cpp`` kernels; Triton sources carry their own)."""
    comment: str = ""
    """What Inductor wrote above it: the graph fragment that it computes (PyTorch 2.10 and later, Triton)."""


class KernelCall(NamedTuple):
    """One call of a kernel by the wrapper."""

    kernel: str
    arguments: tuple[Argument, ...]


class Module(NamedTuple):
    """A generated module as text."""

    path: Path
    source: str
    aot_id: str
    kernels: dict[str, Kernel]

    @property
    def hash(self) -> str:
        """The name Inductor gave the file: what ``--graph`` takes (a beginning will do)."""
        return self.path.name.partition(".")[0]


class ReplayError(KinetoscopeError):
    """A generated module cannot be run or followed from the recording alone."""


_COMPILERS = {"triton": "triton", "cpp_pybinding": "cpp"}


def find(path: Path) -> list[Module]:
    """Every generated module of a recording, a folder, or a single ``.py`` (also ``.py.gz``) file.

    Raises:
        InputError: there is none.
    """
    if path.is_file():
        files: Sequence[Path] = [path]
    else:
        root = path / "generated" if (path / "generated").is_dir() else path
        files = sorted(file for pattern in ("*.py", "*.py.gz") for file in root.rglob(pattern))
    modules = [module for file in files if (module := read(file)) is not None]
    if not modules:
        raise InputError(
            "there is no module that Inductor generated here",
            where=str(path),
            mend="record with `kinetoscope run`, or name Inductor's cache folder or one of its modules",
        )
    # The same graph is written again by each rank and for each cache; its file's name is the hash of its text.
    return list({module.hash: module for module in modules}.values())


def read(path: Path) -> Module | None:
    """The module in ``path``; None if the file is something else (a kernel's own file, a user's script)."""
    data = path.read_bytes()
    source = (gzip.decompress(data) if path.suffix == ".gz" else data).decode(errors="replace")
    if "async_compile" not in source or "AsyncCompile()" not in source:
        return None
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    aot = re.search(r"^# AOT ID: \['([^']+)'\]", source, re.MULTILINE)
    kernels = {kernel.name: kernel for kernel in _kernels(tree, source.splitlines())}
    return Module(path, source, aot[1] if aot else "", kernels)


def _kernels(tree: ast.Module, lines: Sequence[str]) -> Iterator[Kernel]:
    for statement in tree.body:
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(
                    func=ast.Attribute(value=ast.Name(id="async_compile"), attr=compiler), args=arguments
                ),
            ) if compiler in _COMPILERS:
                # triton(name, source, …) and cpp_pybinding(types, source, …): the source is the second.
                types: object = ast.literal_eval(arguments[0])
                signature = tuple(map(str, types)) if isinstance(types, list) else ()
                text = str(ast.literal_eval(arguments[1]))
                comment = _comment_above(lines, statement.lineno)
                yield Kernel(name, text, _COMPILERS[compiler], signature, comment)
            case _:
                pass


def _comment_above(lines: Sequence[str], number: int) -> str:
    """The comment lines directly above line ``number`` (counted from 1)."""
    first = number - 1
    while first > 0 and lines[first - 1].startswith("#"):
        first -= 1
    return "\n".join(lines[first : number - 1])
