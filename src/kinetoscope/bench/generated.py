"""Modules that Inductor generated, read from a recording: their kernels, and what each kernel is called with.

A generated module is the ground truth of a graph: which kernels run, in which order, on tensors of which shape and
stride. `calls` runs its wrapper on fake tensors with every kernel replaced by a recorder, so nothing is compiled,
no device is needed, and each kernel's real arguments (sizes, strides, aliases) come out.
"""

from __future__ import annotations

import ast
import contextlib
import gzip
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

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
    kernels = {kernel.name: kernel for kernel in _kernels(tree)}
    return Module(path, source, aot[1] if aot else "", kernels)


def _kernels(tree: ast.Module) -> Iterator[Kernel]:
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
                yield Kernel(name, str(ast.literal_eval(arguments[1])), _COMPILERS[compiler], signature)
            case _:
                pass


def calls(module: Module) -> list[KernelCall]:
    """Every kernel call of one run of the module, in order, with real sizes and strides.

    Raises:
        ReplayError: the wrapper cannot be followed without real data (a size that depends on values).
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    recorded: list[KernelCall] = []

    def recorder(kernel: Kernel) -> object:
        def call(*arguments: Any, **_: Any) -> None:
            recorded.append(KernelCall(kernel.name, tuple(_describe(arguments))))

        # Triton kernels are called as `kernel.run(…)`, C++ kernels as `kernel(…)`.
        call.run = call  # type: ignore[attr-defined]
        return call

    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            scope = _scope(module, recorder)
            run = entry(scope)
            run()
    except InputError:
        raise
    except Exception as error:  # whatever the module's own code raises
        raise ReplayError(
            f"the wrapper of {module.hash} cannot be followed: {type(error).__name__}: {error}",
            where=str(module.path),
            mend="its sizes may depend on values; record kernels with real inputs",
        ) from error
    return recorded


def entry(scope: dict[str, Any]) -> Callable[[], object]:
    """One run of a module on inputs of the recorded sizes, from the module's own benchmark harness."""
    if "get_args" in scope:  # PyTorch 2.10 and later
        arguments = scope["get_args"]()
        return lambda: scope["call"](list(arguments))
    if "benchmark_compiled_module" not in scope:
        raise InputError(
            "the module has no benchmark harness, so its inputs are not known",
            mend="record with TORCHINDUCTOR_BENCHMARK_HARNESS unset or 1 (torch._inductor.config.benchmark_harness)",
        )
    from torch._inductor import utils

    # Up to 2.9 the harness makes its inputs and hands a closure over them to this function.
    caught: list[Callable[[], object]] = []
    original = utils.print_performance
    utils.print_performance = lambda fn, **_: caught.append(fn) or 0.0  # type: ignore[assignment]
    try:
        scope["benchmark_compiled_module"](times=1, repeat=1)
    finally:
        utils.print_performance = original
    return caught[0]


def _describe(arguments: Sequence[Any]) -> Iterator[Argument]:
    import torch

    storages: dict[int, int] = {}
    for value in arguments:
        if isinstance(value, torch.Tensor):
            key = value.untyped_storage()._cdata
            yield TensorArgument(
                tuple(map(int, value.shape)),
                tuple(map(int, value.stride())),
                str(value.dtype).removeprefix("torch."),
                value.device.type,
                storages.setdefault(key, len(storages)),
                int(value.storage_offset()),
            )
        else:
            yield ScalarArgument(value if isinstance(value, int | float | bool | str | None) else str(value))


def _scope(module: Module, stand_in: Callable[[Kernel], object]) -> dict[str, Any]:
    """Run the module's top level with kernels and device calls replaced; what it defines."""
    import torch

    scope: dict[str, Any] = {"__name__": "kinetoscope_generated", "__file__": str(module.path)}
    for statement in ast.parse(module.source).body:
        match statement:
            case ast.Import() | ast.ImportFrom():
                _import(statement, scope)
            case ast.Assign(targets=[ast.Name(id=name)]) if name in module.kernels:
                scope[name] = stand_in(module.kernels[name])
            case ast.Assign(targets=[ast.Name(id="async_compile")]) | ast.Delete() | ast.If():
                pass
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="async_compile")))):
                pass
            case _:
                code = ast.Module([statement], [])
                exec(compile(code, str(module.path), "exec"), scope)
    scope.update({name: value for name, value in _replacements(torch).items() if name in scope})
    if "extern_kernels" in scope:
        scope["extern_kernels"] = _ExternKernels(scope["extern_kernels"])
    return scope


def _import(statement: ast.Import | ast.ImportFrom, scope: dict[str, Any]) -> None:
    """Import what is there; what is not (Triton, a CUDA function on a machine without) becomes a no-op."""
    try:
        exec(compile(ast.Module([statement], []), "<imports>", "exec"), scope)
    except ImportError:
        for alias in statement.names:
            scope[alias.asname or alias.name.partition(".")[0]] = lambda *_: None


class _TorchWithoutDevice:
    """`torch` as a wrapper sees it, whose device guards do nothing: fake tensors need no device."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.cuda = self.xpu = SimpleNamespace(
            _DeviceGuard=lambda _: contextlib.nullcontext(), set_device=lambda _: None
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)


class _ExternKernels:
    """Library calls that fill a given output need not run; the others are followed on fake tensors."""

    def __init__(self, extern_kernels: Any) -> None:
        self._extern_kernels = extern_kernels

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._extern_kernels, name)
        return lambda *a, out=None, **k: out if out is not None else real(*a, **k)


def _replacements(torch: Any) -> dict[str, Any]:
    """What stands in for functions that would bypass fake tensors. Names are those of generated modules."""

    def empty(device: str) -> Callable[..., Any]:
        return lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype, device=device)

    def assert_size_stride(tensor: Any, size: Any, stride: Any, *_: Any) -> None:
        # A fake convolution may choose another layout than the library did; what the module asserts is the truth.
        if tuple(tensor.stride()) != tuple(stride):
            tensor.as_strided_(size, stride)

    def reinterpret(tensor: Any, size: Any, stride: Any, offset: int = 0) -> Any:
        return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)

    return {
        "torch": _TorchWithoutDevice(torch),
        "empty_strided_cuda": empty("cuda:0"),
        "empty_strided_cpu": empty("cpu"),
        "empty_strided_cpu_pinned": empty("cpu"),
        "empty_strided_xpu": empty("xpu"),
        "assert_size_stride": assert_size_stride,
        "assert_alignment": lambda *_: None,
        "reinterpret_tensor": reinterpret,
        "get_raw_stream": lambda *_: 0,
        "run_intermediate_hooks": lambda *_: None,
    }
