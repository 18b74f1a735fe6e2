"""The arguments of each kernel in a generated module, found without compiling or running anything.

The module's wrapper runs on fake tensors, with every kernel replaced by a recorder: no device is needed, and
each kernel's real arguments (sizes, strides, aliases) come out.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

from kinetoscope.bench import torch_names
from kinetoscope.bench.kernels.generated import (
    Argument,
    KernelCall,
    KernelSource,
    ModuleSource,
    ReplayError,
    ScalarArgument,
    TensorArgument,
)
from kinetoscope.bench.torch_names import Tensor
from kinetoscope.capture.compiler.kernel_inputs import tensor_shape
from kinetoscope.errors import InputError

Size: TypeAlias = Sequence[int]
Scope: TypeAlias = dict[str, Any]
"""The names that a module defines at its top level: tensors, functions, whatever its code says."""


def calls(module: ModuleSource) -> list[KernelCall]:
    """Every kernel call of one run of the module, in order, with real sizes and strides. Raises ReplayError
    where the wrapper cannot be followed without real data (a size that depends on values)."""
    recorded: list[KernelCall] = []
    try:
        with torch_names.fake_tensors():
            entry(_scope(module, lambda kernel: _Recorder(kernel, recorded)))()
    except InputError:
        raise
    except Exception as error:  # whatever the module's own code raises
        raise ReplayError(
            f"the wrapper of {module.hash} cannot be followed: {type(error).__name__}: {error}",
            where=str(module.path),
            hint="its sizes may depend on values; record kernels with real inputs",
        ) from error
    return recorded


class _Recorder:
    """Stands in for a kernel: Triton's are called as ``kernel.run(…)``, C++ ones as ``kernel(…)``."""

    def __init__(self, kernel: KernelSource, recorded: list[KernelCall]) -> None:
        self._name, self._recorded = kernel.name, recorded

    def run(self, *arguments: Tensor, **_: object) -> None:
        self._recorded.append(KernelCall(self._name, tuple(_describe(arguments))))

    __call__ = run


def entry(scope: Scope) -> Callable[[], object]:
    """One run of a module on inputs of the recorded sizes, from the module's own benchmark harness."""
    if "get_args" in scope:  # PyTorch 2.10 and later
        arguments = scope["get_args"]()
        return lambda: scope["call"](list(arguments))
    if "benchmark_compiled_module" not in scope:
        raise InputError(
            "the module has no benchmark harness, so its inputs are not known",
            hint="record with TORCHINDUCTOR_BENCHMARK_HARNESS unset or 1 "
            "(torch._inductor.config.benchmark_harness)",
        )
    return torch_names.timed_by_harness(scope["benchmark_compiled_module"])


def _describe(arguments: Sequence[Tensor]) -> Iterator[Argument]:
    import torch

    storages: dict[int, int] = {}
    for value in arguments:
        if isinstance(value, torch.Tensor):
            key = torch_names.storage_identity(value)
            storage, offset = storages.setdefault(key, len(storages)), int(value.storage_offset())
            yield TensorArgument(**tensor_shape(value), storage=storage, offset=offset)
        else:
            yield ScalarArgument(value if isinstance(value, int | float | bool | str | None) else str(value))


def _scope(module: ModuleSource, stand_in: Callable[[KernelSource], object]) -> Scope:
    """Run the module's top level with kernels and device calls replaced; what it defines."""
    import torch

    scope: Scope = {"__name__": "kinetoscope_generated", "__file__": str(module.path)}
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


def _import(statement: ast.Import | ast.ImportFrom, scope: Scope) -> None:
    """Import what is there; what is not (Triton, a CUDA function on a machine without) becomes a no-op."""
    try:
        exec(compile(ast.Module([statement], []), "<imports>", "exec"), scope)
    except ImportError:
        for alias in statement.names:
            scope[alias.asname or alias.name.partition(".")[0]] = contextlib.nullcontext


class _TorchWithoutDevice:
    """`torch` as a wrapper sees it, whose device guards do nothing: fake tensors need no device."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.cuda = self.xpu = SimpleNamespace(
            _DeviceGuard=contextlib.nullcontext, set_device=contextlib.nullcontext
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)


class _ExternKernels:
    """Library calls that fill a given output need not run; the others are followed on fake tensors."""

    def __init__(self, extern_kernels: Any) -> None:
        self._extern_kernels = extern_kernels

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._extern_kernels, name)

        def call(*arguments: Any, out: Any = None, **keywords: Any) -> Any:
            return real(*arguments, **keywords) if out is None else out

        return call


def _replacements(torch: Any) -> Scope:
    """Stand-ins for functions that would bypass fake tensors, by their names in generated modules."""

    def empty_on(device: str) -> Callable[..., Tensor]:
        def empty(size: Size, stride: Size, dtype: object) -> Tensor:
            return torch.empty_strided(size, stride, dtype=dtype, device=device)

        return empty

    def nothing(*_: object) -> int:
        return 0

    def assert_size_stride(tensor: Tensor, size: Size, stride: Size, *_: object) -> None:
        # A fake convolution may choose another layout than the library did: the module asserts the true one.
        if tuple(tensor.stride()) != tuple(stride):
            tensor.as_strided_(size, stride)

    def reinterpret(tensor: Tensor, size: Size, stride: Size, offset: int = 0) -> Tensor:
        return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)

    return {
        "torch": _TorchWithoutDevice(torch),
        "empty_strided_cuda": empty_on("cuda:0"),
        "empty_strided_cpu": empty_on("cpu"),
        "empty_strided_cpu_pinned": empty_on("cpu"),
        "empty_strided_xpu": empty_on("xpu"),
        "assert_size_stride": assert_size_stride,
        "assert_alignment": nothing,
        "reinterpret_tensor": reinterpret,
        "get_raw_stream": nothing,
        "run_intermediate_hooks": nothing,
    }
