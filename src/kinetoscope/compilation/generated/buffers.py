"""The tensors of a generated module, followed through the lines of its ``call``: shapes, and bytes moved."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod

from kinetoscope.compilation.fx import item_bytes
from kinetoscope.compilation.model import CallCost

EMPTY = re.compile(r"^\s+(\w+) = empty_strided_\w+\(\((.*?)\), \(.*?\), torch\.(\w+)")
ASSERTED = re.compile(r"^\s+assert_size_stride\((\w+), \((.*?)\), ")
REUSED = re.compile(r"^\s+(\w+) = (\w+); del ")
RESHAPED = re.compile(r"^\s+(\w+) = reinterpret_tensor\((\w+), \((.*?)\), ")
VIEW = re.compile(r"reinterpret_tensor\(\w+, \((.*?)\), ")
# Torch's dtypes, by the unit of a device that multiplies them.
PEAKS = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
# Calls that multiply matrices, and where the two stand among their arguments.
PRODUCTS = {
    "extern_kernels.mm": 0,
    "extern_kernels.bmm": 0,
    "extern_kernels.addmm": 1,
    "extern_kernels.baddbmm": 1,
    "extern_kernels.bias_addmm": 1,
}

Shape = tuple[int, ...]


class Buffers:
    """What is known of each name so far; a shape with a symbol in it is not known."""

    def __init__(self) -> None:
        self.shapes: dict[str, Shape | None] = {}
        self.dtypes: dict[str, str] = {}

    def take(self, line: str) -> None:
        if "empty_strided" in line and (m := EMPTY.match(line)):
            self.shapes[m[1]], self.dtypes[m[1]] = _shape(m[2]), m[3]
        elif "assert_size_stride" in line and (m := ASSERTED.match(line)):
            self.shapes[m[1]] = _shape(m[2])
        elif "; del " in line and (m := REUSED.match(line)):
            self.shapes[m[1]] = self.shapes.get(m[2])
            self.dtypes[m[1]] = self.dtypes.get(m[2], "")
        elif "reinterpret_tensor" in line and (m := RESHAPED.match(line)):
            self.shapes[m[1]] = _shape(m[3])
            self.dtypes[m[1]] = self.dtypes.get(m[2], "")

    def bytes(self, pointers: Iterable[tuple[str, str]], arguments: str) -> int | None:
        """Bytes one call reads and writes if it touches every buffer whole, once (in-place ones twice).

        ``pointers``: the kernel's tensor parameters and their dtypes, in the order of the arguments.
        """
        total = 0
        pointers, given = tuple(pointers), _split(arguments)
        if not pointers or len(given) < len(pointers):
            return None
        for (name, dtype), argument in zip(pointers, given, strict=False):
            shape, item = self._of(argument), item_bytes(dtype)
            if shape is None or item is None:
                return None
            total += prod(shape) * item * (2 if name.startswith("in_out") else 1)
        return total

    def matrix_product(self, callee: str, arguments: str) -> CallCost | None:
        """FLOPs (a multiply-add is two) and bytes of a library's matrix product, everything touched once."""
        if callee not in PRODUCTS:
            return None
        at = PRODUCTS[callee]
        given = _split(arguments)
        out = next((a.removeprefix("out=") for a in given if a.startswith("out=")), "")
        dtype = self.dtypes.get(out, "")
        item = item_bytes(dtype)
        shapes = [self._of(argument) for argument in (*given[: at + 2], out)]
        if dtype not in PEAKS or item is None or len(shapes) < at + 3:
            return None
        known = [shape for shape in shapes if shape is not None]
        if len(known) < len(shapes) or len(known[at]) < 2:
            return None
        flops = 2 * prod(known[-1]) * known[at][-1]
        return CallCost(flops=flops, bytes=sum(map(prod, known)) * item, dtype=PEAKS[dtype])

    def _of(self, argument: str) -> Shape | None:
        view = VIEW.match(argument)
        return _shape(view[1]) if view else self.shapes.get(argument)


def _shape(listed: str) -> Shape | None:
    extents = [part.strip() for part in listed.split(",") if part.strip()]
    return tuple(map(int, extents)) if all(e.isdecimal() for e in extents) else None


def _split(arguments: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for i, character in enumerate(arguments):
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append(arguments[start:i].strip())
            start = i + 1
    return [*parts, arguments[start:].strip()]
