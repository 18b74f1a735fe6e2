"""A kernel rebuilt from its source text, with arguments of the recorded sizes, strides and aliases."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kinetoscope.bench import torch_names
from kinetoscope.bench.kernels.generated import (
    Argument,
    Configuration,
    KernelSource,
    Launch,
    ReplayError,
    ScalarArgument,
    TensorArgument,
)
from kinetoscope.bench.measure.timers import Call
from kinetoscope.bench.torch_names import Tensor
from kinetoscope.recording.inputs import SavedTensor
from kinetoscope.recording.manifest import write_whole

# Buffers are rotated as long as all sets together stay below this. Where a set lies moves some kernels by
# 2 %: a kernel's time is that of many sets.
ROTATION_BYTES = {"cuda": 8 << 30, "cpu": 2 << 30}
MOST_SETS = 16


def cache_folder() -> Path:
    """Where rebuilt kernels and their binaries are kept between runs; never the user's Inductor cache."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "kinetoscope" / "bench"


def use_own_cache() -> None:
    """Point Inductor and Triton at `cache_folder`; before torch is imported."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_folder() / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(cache_folder() / "triton")


class Values(NamedTuple):
    """Recorded values of one kernel's arguments, by position, and the file that holds them."""

    file: Path
    tensors: tuple[SavedTensor, ...]

    def fill(self, made: Sequence[Tensor]) -> None:
        """Copy the values into arguments of the same shape and type."""
        import torch

        data = bytearray(self.file.read_bytes())
        for saved in self.tensors:
            target = made[saved.position] if 0 <= saved.position < len(made) else None
            if not isinstance(target, torch.Tensor) or not target.numel():
                continue
            if not _fits(saved, target.shape, str(target.dtype).removeprefix("torch.")):
                continue
            flat = torch.frombuffer(data, dtype=target.dtype, count=target.numel(), offset=saved.at)
            target.copy_(flat.reshape(saved.shape))

    def has(self, position: int, argument: TensorArgument) -> bool:
        """Whether there are values of an argument of this shape and type."""
        at_position = (saved for saved in self.tensors if saved.position == position)
        return any(_fits(saved, argument.shape, argument.dtype) for saved in at_position)


def _fits(saved: SavedTensor, shape: Sequence[int], dtype: str) -> bool:
    return saved.shape == tuple(shape) and saved.dtype == dtype


class Replica:
    """A kernel that can be launched. ``configuration``: blocks, warps and stages to use; None lets Inductor
    choose as it does in the model. Raises ReplayError where its source does not load here."""

    def __init__(self, kernel: KernelSource, configuration: Configuration | None = None) -> None:
        self.kernel = kernel
        try:
            self._compiled: Any = None
            if kernel.kind == "cpp":
                self._function: Any = torch_names.load_cpp(kernel.signature, kernel.source)
                return
            self._function = getattr(load_source(kernel.source), kernel.name)
            if configuration is not None and kernel.launch is None:
                torch_names.only_configuration(self._function, configuration)
        except Exception as error:
            raise ReplayError(f"{kernel.name} does not load here: {type(error).__name__}: {error}") from error

    def bind(self, arguments: Sequence[Tensor]) -> Call:
        """The launch of this kernel on these arguments, to be called without any."""
        function = self._function
        if self.kernel.kind == "cpp":
            return lambda: function(*arguments)
        if self.kernel.launch is not None:
            return self._bind_user(self.kernel.launch, arguments)
        device = next(a.device.index for a in arguments if hasattr(a, "device"))
        return lambda: function.run(*arguments, stream=torch_names.raw_stream()(device))

    def _bind_user(self, launch: Launch, arguments: Sequence[Tensor]) -> Call:
        named = dict(zip(self.kernel.signature, arguments, strict=True)) | launch.constants | launch.options
        for name in launch.dtypes:
            named[name] = torch_names.triton_dtype(str(launch.constants[name]))
        start = self._function[launch.grid]

        def call() -> None:
            self._compiled = start(**named)

        return call

    def run(self, *arguments: Tensor, stream: int) -> None:
        """Launch as generated code does, so that a replica can take a kernel's place in its module."""
        self._function.run(*arguments, stream=stream)

    def launcher(self) -> torch_names.CompiledConfiguration | None:
        """Configuration and resources, once it has run; None for C++ kernels."""
        if self.kernel.launch is not None:
            return torch_names.user_launcher(self._compiled, self.kernel.launch.constants)
        return None if self.kernel.kind == "cpp" else torch_names.launcher(self._function)


def load_source(source: str) -> Any:
    """The module of a kernel's source text. Triton wants a file: one is kept under the hash of the text.

    Each call makes a new module, so two configurations of one kernel do not share an autotuner.
    """
    path = cache_folder() / "kernels" / f"{hashlib.sha256(source.encode()).hexdigest()[:32]}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_whole(path, source.encode())
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arguments(
    recorded: Sequence[Argument],
    device: str,
    seed: int = 0,
    index_bound: int | None = None,
    values: Values | None = None,
) -> list[Tensor]:
    """Tensors like the recorded ones: same sizes, strides, offsets and aliases, on ``device``.

    Floating point is filled from a normal distribution, booleans at random, integers at random below
    ``index_bound`` or with zeros where there is none (valid indices, but not the program's own: `notes` says
    so), unless the program's own are among ``values``.
    """
    import torch

    random = torch.Generator(device).manual_seed(seed)
    storages: dict[int, Tensor] = {}
    reach: dict[int, int] = {}
    for argument in recorded:
        if isinstance(argument, TensorArgument):
            reach[argument.storage] = max(reach.get(argument.storage, 1), argument.reach)
    made: list[Tensor] = []
    for argument in recorded:
        if isinstance(argument, ScalarArgument):
            made.append(argument.value)
            continue
        flat = storages.get(argument.storage)
        if flat is None or flat.dtype != getattr(torch, argument.dtype):
            flat = _fill(torch, reach[argument.storage], argument.dtype, random, index_bound or 1)
            storages.setdefault(argument.storage, flat)
        made.append(torch.as_strided(flat, argument.shape, argument.stride, argument.offset))
    if values is not None:
        values.fill(made)
    return made


def _fill(torch: Any, elements: int, dtype: str, random: Any, index_bound: int) -> Tensor:
    kind, device = getattr(torch, dtype), random.device
    if kind.is_floating_point or kind.is_complex:
        wide = torch.complex64 if kind.is_complex else torch.float32
        return torch.randn(elements, device=device, dtype=wide, generator=random).to(kind)
    if kind == torch.bool:
        return torch.rand(elements, device=device, generator=random) < 0.5
    highest = min(index_bound, torch.iinfo(kind).max)
    return torch.randint(0, highest, (elements,), device=device, dtype=kind, generator=random)


def notes(
    recorded: Sequence[Argument], index_bound: int | None, values: Values | None = None
) -> tuple[str, ...]:
    """Remarks on the inputs that a reader must know."""
    whole = [
        (place, argument)
        for place, argument in enumerate(recorded)
        if isinstance(argument, TensorArgument) and argument.dtype.startswith(("int", "uint"))
    ]
    if not whole:
        return ()
    if values is not None and all(values.has(*argument) for argument in whole):
        return ("index values: recorded",)
    if index_bound is None:
        return ("integer arguments are zeros: gathers and scatters hit one place",)
    return (f"integer arguments are random below {index_bound}, not the program's own indices",)


def sets(bytes_each: int, device: str, most: int = MOST_SETS) -> int:
    room = ROTATION_BYTES["cpu" if device == "cpu" else "cuda"]
    return max(1, min(most, room // max(1, bytes_each)))


def agree(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether two lists of arguments hold the same values, within their types' tolerance (NaN equals NaN)."""
    import torch

    loose = {torch.bfloat16: 2e-2, torch.float16: 4e-3}
    for a, b in zip(found, expected, strict=True):
        if isinstance(a, torch.Tensor) and a.is_floating_point():
            rtol = loose.get(a.dtype, 1e-4)
            scale = float(b.float().abs().nan_to_num(0, 0, 0).mean()) if b.numel() else 0.0
            if not torch.allclose(
                a.float(), b.float(), rtol=rtol, atol=rtol * max(scale, 1e-6), equal_nan=True
            ):
                return False
        elif isinstance(a, torch.Tensor) and not torch.equal(a, b):
            return False
    return True


def fresh(make: Callable[[], list[Tensor]], replica: Replica) -> list[Tensor]:
    """The arguments after one launch on a new set."""
    made = make()
    replica.bind(made)()
    return made
