"""What a generated kernel's source says about it: category, the arguments it updates, bytes, FLOPs."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from kinetoscope.bench.kernels.generated import Argument, Kernel, TensorArgument
from kinetoscope.compilation.generated.module import CATEGORIES, cpp_category


class Facts(NamedTuple):
    """What is known of a kernel without running it."""

    category: str
    parameters: tuple[str, ...]
    mutated: tuple[str, ...]
    inductor_bytes: int | None
    flops: int | None
    index_bound: int | None = None
    """Integers below this are valid indices everywhere in the kernel; null where it checks none."""


def facts(kernel: Kernel) -> Facts:
    """Read a kernel's source: its decorator and metadata (Triton), or its C++ signature."""
    if kernel.kind == "cpp":
        return _cpp_facts(kernel)
    for node in ast.walk(ast.parse(kernel.source)):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="triton_heuristics"), attr=heuristic), keywords=keywords
            ):
                given = {k.arg: k.value for k in keywords}
                meta = _literals(given.get("inductor_meta"))
                signature = _literals(given.get("triton_meta")).get("signature", {})
                gigabytes, flops = meta.get("kernel_num_gb"), meta.get("kernel_flop")
                return Facts(
                    _category(heuristic, kernel.source),
                    tuple(signature),
                    tuple(meta.get("mutated_arg_names", ())),
                    round(gigabytes * 1e9) if gigabytes else None,
                    int(flops) if flops else None,
                    _index_bound(kernel.source),
                )
            case _:
                pass
    return Facts("user Triton", (), (), None, None)


def _category(heuristic: str, source: str) -> str:
    if "triton_helpers.sort_with_index" in source:
        return "sort"
    if "tl.associative_scan" in source:
        return "scan"
    return CATEGORIES.get(heuristic, "other")


def _literals(node: ast.expr | None) -> dict[str, Any]:
    """The entries of a dictionary display whose values are literals; others (calls, names) are left out."""
    found: dict[str, Any] = {}
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            with contextlib.suppress(ValueError):
                if key is not None:
                    found[ast.literal_eval(key)] = ast.literal_eval(value)
    return found


def _cpp_facts(kernel: Kernel) -> Facts:
    match = re.search(r"void\s+kernel\((.*?)\)\s*{", kernel.source, re.DOTALL)
    names = tuple(re.findall(r"(\w+)\s*(?:,|$)", match[1])) if match else ()
    mutated = tuple(name for name in names if name.startswith("in_out"))
    return Facts(cpp_category(kernel.source), names, mutated, None, None, _index_bound(kernel.source))


def _index_bound(source: str) -> int | None:
    """The smallest bound that the kernel's own index checks name."""
    bounds = re.findall(r"index out of bounds: 0 <= \w+ < (\d+)", source)
    return min(map(int, bounds)) if bounds else None


def moved_bytes(parameters: Sequence[str], arguments: Sequence[Argument]) -> int:
    """Bytes that must cross the bus: each distinct element of each argument once, twice if updated in place.

    An upper bound where a kernel reads only part of an argument.
    """
    total = 0
    for name, argument in zip(parameters, arguments, strict=False):
        if isinstance(argument, TensorArgument):
            bits = re.search(r"\d+", argument.dtype)  # in torch's name of the type; bool has none
            item = max(int(bits[0]) // 8, 1) if bits else 1
            total += argument.elements * item * (2 if name.startswith("in_out") else 1)
    return total


def least_bytes(facts: Facts, arguments: Sequence[Argument]) -> int:
    """The tighter of two upper bounds: ours, and Inductor's where the source carries it.

    Inductor counts a concatenation's inputs as if each were as large as the result; we count an argument
    whole of which a slice is read.
    """
    ours = moved_bytes(facts.parameters, arguments)
    return min(ours, facts.inductor_bytes) if facts.inductor_bytes else ours
