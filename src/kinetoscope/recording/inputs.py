"""``inputs/rank0.json`` of a recording: what kernels were called with in one step (`run --kernel-inputs`).

The values of tensors lie one after the other in ``inputs/rank0.bin``.
"""

from __future__ import annotations

import msgspec

SCHEMA = "kinetoscope.inputs/1"
Scalar = int | float | bool | str


class SavedTensor(msgspec.Struct, frozen=True, kw_only=True):
    """An integer or boolean argument: its values lie in the ``.bin`` file, from byte ``at``, contiguous."""

    position: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str
    at: int


class Parameter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One parameter of a hand-written kernel: a tensor (with a shape), or a value."""

    name: str
    constant: bool = False
    value: Scalar | None = None
    triton_dtype: str | None = None
    shape: tuple[int, ...] | None = None
    stride: tuple[int, ...] = ()
    dtype: str = ""
    device: str = ""
    storage: int = 0
    offset: int = 0


class UserKernel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A hand-written kernel as it was launched."""

    kernel: str
    launches: int
    arguments: tuple[SavedTensor, ...] = ()  # what is saved of its tensors
    source: str = ""  # self-contained, but for the names in ``missing``
    missing: tuple[str, ...] = ()
    file: str = ""
    line: int = 0
    parameters: tuple[Parameter, ...] = ()
    grid: tuple[int, ...] = ()
    options: dict[str, Scalar] = {}  # warps, stages, …
    unusable: str | None = None  # why it cannot be described


class GeneratedKernel(msgspec.Struct, frozen=True, kw_only=True):
    kernel: str
    arguments: tuple[SavedTensor, ...]


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    schema: str
    generated: tuple[GeneratedKernel, ...] = ()
    user: tuple[UserKernel, ...] = ()
