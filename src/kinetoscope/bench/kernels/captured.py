"""What `kinetoscope run --kernel-inputs` kept of a run: index values, and hand-written Triton kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from kinetoscope.bench.kernels.generated import (
    Argument,
    KernelSource,
    Launch,
    ModuleSource,
    ScalarArgument,
    TensorArgument,
)
from kinetoscope.bench.torch_names import Tensor
from kinetoscope.errors import InputError
from kinetoscope.recording import plain_file
from kinetoscope.recording.inputs import Inputs, Parameter, SavedTensor, UserKernel


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
            if not fits(saved, target.shape, str(target.dtype).removeprefix("torch.")):
                continue
            flat = torch.frombuffer(data, dtype=target.dtype, count=target.numel(), offset=saved.at)
            target.copy_(flat.reshape(saved.shape))


def fits(saved: SavedTensor, shape: Sequence[int], dtype: str) -> bool:
    """Whether recorded values are those of an argument of this shape and type."""
    return saved.shape == tuple(shape) and saved.dtype == dtype


def read(recording: Path) -> tuple[dict[str, Values], list[UserKernel], Path]:
    """Kernel name → recorded values; the hand-written kernels; the file of values. Empty without any.

    Raises:
        InputError: the index is damaged.
    """
    index, data = recording / "inputs" / "rank0.json", recording / "inputs" / "rank0.bin"
    if not index.is_file() or not data.is_file():
        return {}, [], data
    try:
        found = msgspec.json.decode(plain_file.content(index), type=Inputs)
    except msgspec.MsgspecError as error:
        raise InputError(f"the kernels' inputs are damaged: {error}", where=str(index)) from error
    size = data.stat().st_size
    values = {
        kernel.kernel: Values(data, tuple(saved for saved in kernel.arguments if 0 <= saved.at <= size))
        for kernel in found.generated
    }
    return values, list(found.user), data


def user_kernels(
    recording: Path,
) -> Iterator[tuple[KernelSource, ModuleSource, tuple[Argument, ...], int, Values] | str]:
    """Each hand-written kernel with its arguments, launches and values; or why it cannot be rebuilt."""
    _, kernels, data = read(recording)
    for user in kernels:
        where = f"{user.kernel} ({Path(user.file).name}:{user.line}) cannot be rebuilt"
        if user.unusable is not None:
            yield f"{where}: {user.unusable}"
            continue
        if user.missing:
            yield f"{where} from its source alone: it needs {', '.join(user.missing)} of its module"
            continue
        constants = {
            p.name: p.triton_dtype or p.value for p in user.parameters if p.shape is None and p.constant
        }
        dtypes = frozenset(p.name for p in user.parameters if p.triton_dtype)
        launch = Launch(user.grid, constants, dtypes, user.options)
        passed = [p for p in user.parameters if p.name not in constants]
        position = {p.name: i for i, p in enumerate(passed)}
        kernel = KernelSource(user.kernel, user.source, "user", tuple(position), "", launch)
        arguments = tuple(map(_argument, passed))
        tensors = tuple(
            msgspec.structs.replace(saved, position=position[name])
            for saved in user.arguments
            if (name := user.parameters[saved.position].name) in position
        )
        module = ModuleSource(Path(user.file), user.source, "", {kernel.name: kernel})
        yield kernel, module, arguments, user.launches, Values(data, tensors)


def _argument(parameter: Parameter) -> Argument:
    if parameter.shape is None:
        return ScalarArgument(parameter.value)
    return TensorArgument(
        parameter.shape,
        parameter.stride,
        parameter.dtype,
        parameter.device,
        parameter.storage,
        parameter.offset,
    )
