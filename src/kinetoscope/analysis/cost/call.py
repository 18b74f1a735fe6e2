"""One op call as it was recorded, and what it costs at least: the terms that cost formulas are written in."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from msgspec import Struct

# What torch records as an input's type, and its name and size in bytes.
DTYPES = {
    "double": ("fp64", 8),
    "float": ("fp32", 4),
    "c10::Half": ("fp16", 2),
    "c10::BFloat16": ("bf16", 2),
    "c10::Float8_e4m3fn": ("fp8", 1),
    "c10::Float8_e5m2": ("fp8", 1),
    "c10::Float8_e4m3fnuz": ("fp8", 1),
    "c10::Float8_e5m2fnuz": ("fp8", 1),
    "c10::Float4_e2m1fn_x2": ("fp4", 1),
    "long int": ("int64", 8),
    "long": ("int64", 8),
    "int": ("int32", 4),
    "short int": ("int16", 2),
    "signed char": ("int8", 1),
    "unsigned char": ("int8", 1),
    "bool": ("int8", 1),
    "c10::complex<float>": ("fp32", 8),
    "c10::complex<double>": ("fp64", 16),
}

Shape = Sequence[int]


class Cost(NamedTuple):
    """The least an op call can take."""

    flops: int  # floating-point operations, a multiply-add counting two
    bytes: int  # memory traffic if every input is read once and every output written once
    dtype: str  # what it computes in; with ``matrix``, which peak of the device bounds it
    # the matrix units can do it; otherwise the vector units' fp32 (or fp64) rate bounds it
    matrix: bool = False


class OpCall(Struct, frozen=True):
    """``shapes``, ``types``, ``strides`` and ``values`` (scalars and lists as text) by position of the
    argument. An argument that is no tensor has an empty shape; a list of tensors has a list of shapes and no
    type of its own. ``kernel`` is the name of the longest kernel that the call launched, ``listed`` the
    elements of each list of tensors whose shapes were not recorded, where they are known from elsewhere."""

    name: str
    shapes: list[Any]  # JSON of a file: a formula that it is not made for raises, and the cost is unknown
    types: list[str]
    strides: list[Any]
    values: list[str]
    kernel: str = ""
    listed: int | None = None

    def is_tensor(self, at: int) -> bool:
        return (
            at < len(self.types)
            and self.types[at] in DTYPES
            and bool(self.shapes[at] or self.values_at(at) == "")
        )

    def shape(self, at: int) -> list[int]:
        return self.shapes[at]

    def size(self, at: int) -> int:
        """Bytes of one element."""
        return DTYPES[self.types[at]][1]

    def dtype(self, at: int) -> str:
        return DTYPES[self.types[at]][0]

    def footprint(self, at: int) -> int:
        """Bytes of memory behind a tensor: what is expanded (stride 0) is there once."""
        shape = self.shapes[at]
        strides = self.strides[at] if at < len(self.strides) and self.strides[at] else [1] * len(shape)
        return prod(n for n, stride in zip(shape, strides, strict=False) if stride != 0) * self.size(at)

    def values_at(self, at: int) -> str:
        return self.values[at] if at < len(self.values) else ""

    def integers(self, at: int) -> list[int] | None:
        """A recorded list of integers (``"[1, 1]"``), or null where it was not recorded."""
        text = self.values_at(at)
        if not text.startswith("["):
            return None
        return [int(item) for item in text[1:-1].split(",") if item.strip()]

    def flags(self, at: int) -> list[bool] | None:
        text = self.values_at(at)
        return [item.strip() == "True" for item in text[1:-1].split(",")] if text.startswith("[") else None

    def is_true(self, at: int) -> bool | None:
        """A recorded boolean, or null where it was not recorded."""
        return {"True": True, "False": False}.get(self.values_at(at))


def numel(shape: Shape) -> int:
    return prod(shape)


def broadcast(shapes: Sequence[Shape]) -> list[int]:
    rank = max(len(shape) for shape in shapes)
    padded = [[1] * (rank - len(shape)) + list(shape) for shape in shapes]
    return [max(sizes) if min(sizes) else 0 for sizes in zip(*padded, strict=True)]
