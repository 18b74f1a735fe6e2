"""Every private PyTorch name that bench depends on; checked on PyTorch 2.9.1, 2.11.0 and 2.13.0.

Attributes with an underscore are read with ``getattr``: strict pyright refuses to see them.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeAlias

Tensor: TypeAlias = Any  # A tensor of the user's torch, which is imported where it is used


def device_activity(profiler: Any) -> Iterator[tuple[str, int, int]]:
    """``(name, start_ns, end_ns)`` of each kernel, copy and memset that a finished ``profile`` saw."""
    from torch._C._autograd import DeviceType

    for event in profiler.profiler.kineto_results.events():
        # Ranges that the user marked appear on the device's lanes too, but are not work.
        if event.device_type() == DeviceType.CUDA and not event.is_user_annotation():
            yield event.name(), event.start_ns(), event.end_ns()


def storage_identity(tensor: Tensor) -> int:
    """Number a tensor's storage: tensors that share memory, fake ones too, have one number."""
    return int(getattr(tensor.untyped_storage(), "_cdata"))  # noqa: B009


@functools.cache
def raw_stream() -> Callable[[int], int]:
    """Gives the raw handle of the stream in use on a device, as generated code passes it to a kernel."""
    import torch

    return getattr(getattr(torch, "_C"), "_cuda_getCurrentRawStream")  # noqa: B009


def fake_tensors() -> AbstractContextManager[object]:
    """While inside, tensors have sizes and strides, and no values."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def timed_by_harness(harness: Callable[..., object]) -> Callable[[], object]:
    """The call that ``benchmark_compiled_module`` times; up to PyTorch 2.9 its inputs are in a closure."""
    utils: Any = importlib.import_module("torch._inductor.utils")
    timed: list[Callable[[], object]] = []

    def print_performance(function: Callable[[], object], **_: object) -> float:
        timed.append(function)
        return 0.0

    original, utils.print_performance = utils.print_performance, print_performance
    try:
        harness(times=1, repeat=1)
    finally:
        utils.print_performance = original
    return timed[0]


def empty_kernel() -> Callable[[], object]:
    """Launches a kernel that does nothing (its name is ``spin_kernel``)."""
    import torch

    return lambda: getattr(torch.cuda, "_sleep")(0)  # noqa: B009


def load_cpp(types: Sequence[str], source: str) -> Callable[..., object]:
    """Compile a C++ kernel with its Python binding."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    return CppPythonBindingsCodeCache.load_pybinding(list(types), source)


class CompiledConfiguration(NamedTuple):
    """One configuration of a Triton kernel, with the resources that it takes once compiled."""

    configuration: dict[str, int]
    registers: int | None
    spills: int | None
    shared_memory_bytes: int | None


def configuration(config: Any) -> dict[str, int]:
    """A ``triton.Config`` as plain numbers: its blocks, ``num_warps``, ``num_stages``."""
    return {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}


def launcher(autotuner: Any) -> CompiledConfiguration:
    """The configuration that a ``CachingAutotuner`` settled on, after its first run."""
    chosen = autotuner.launchers[0]
    return CompiledConfiguration(configuration(chosen.config), chosen.n_regs, chosen.n_spills, chosen.shared)


def user_launcher(compiled: Any, constants: Mapping[str, object]) -> CompiledConfiguration:
    """The configuration of a hand-written kernel, from the object that its launch returned."""
    metadata = getattr(compiled, "metadata", None)
    numbers = {name: value for name, value in constants.items() if type(value) is int}
    numbers |= {
        name: getattr(metadata, name) for name in ("num_warps", "num_stages") if hasattr(metadata, name)
    }
    return CompiledConfiguration(
        numbers,
        getattr(compiled, "n_regs", None),
        getattr(compiled, "n_spills", None),
        getattr(metadata, "shared", None),
    )


def triton_dtype(name: str) -> Any:
    """A type of Triton's by its name (``fp16``)."""
    import triton.language as tl

    return tl.dtype(name)


def only_configuration(autotuner: Any, wanted: Mapping[str, int]) -> None:
    """Leave a ``CachingAutotuner`` that has not run yet one configuration, and nothing to tune."""
    from triton import Config

    blocks = {k: v for k, v in wanted.items() if k not in ("num_warps", "num_stages")}
    autotuner.configs = [Config(blocks, num_warps=wanted["num_warps"], num_stages=wanted["num_stages"])]
    autotuner.inductor_meta.update(dynamic_scale_rblock=False, coordinate_descent_tuning=False)


def lookup_key(autotuner: Any) -> str | None:
    """A kernel's key in ``torch._inductor.config.autotune_lookup_table``; None if Inductor would not look.

    Source: ``lookup_autotune_config`` of torch/_inductor/runtime/triton_heuristics.py.
    """
    from torch._inductor.runtime.triton_heuristics import generate_lookup_hash_from_source_code

    source = autotuner.fn.src
    if "_fused_" not in source:
        return None
    return str(generate_lookup_hash_from_source_code(str(autotuner.size_hints), source))


def lookup_table(table: Mapping[str, Mapping[str, int]]) -> AbstractContextManager[object]:
    """While inside, Inductor looks configurations up in this table."""
    from torch._inductor import config

    return config.patch(autotune_lookup_table=dict(table))


def dynamo_counts() -> tuple[int, int]:
    """Graph breaks and graphs of this process so far.

    Dynamo, whose import takes a second or more, is not imported by a process that compiled nothing.
    """
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return 0, 0
    counters = utils.counters
    return sum(counters["graph_break"].values()), int(counters["stats"]["unique_graphs"])
