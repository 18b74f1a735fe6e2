"""Graphs as torch prints them: code with the user's line above each group of ops."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from math import prod

from kinetoscope.compilation.model import Row, SavedTensor, SourceLine

FILE_COMMENT = re.compile(
    r"\s+# File: (?P<file>.*?):(?P<line>\d+) in (?P<function>[^,]+), code: ?(?P<code>.*)"
)
NODE = re.compile(r'\s+(?P<name>\w+)(?:: "(?P<type>[^"]*)")? = (?P<target>[\w.]+)')
OP = re.compile(r"= torch\.ops\.((?:\w+)\.(?:\w+))")
ANY_CALL = re.compile(r"^\s+\w+(?:: \"[^\"]*\")? = (?!fx_pytree)(?:[\w.]+\(|.+ [-+*/@%&|<>=]+ )", re.M)
INPUT = re.compile(r'\b(?P<name>\w+): "(?P<type>[^"]*)"')
SAVED = re.compile(r"^\s+(\w+),\s+# SavedForBackwards", re.M)
TENSOR = re.compile(r"^(?P<dtype>\w+)\[(?P<shape>[^\]]*)\](?:\[[^\]]*\])?(?P<device>\w*(?::\d+)?)")
PRODUCT = re.compile(
    r"^\s+(?P<name>\w+)(?:: \"(?P<type>[^\"]*)\")? = "
    r"torch\.ops\.aten\.(?P<op>mm|bmm|addmm|baddbmm)\.default\((?P<arguments>[^)]*)",
    re.M,
)
BITS = re.compile(r"\d+")
ITEM_BYTES = {"b8": 1, "c64": 8, "c128": 16}


class Node(Row, frozen=True, kw_only=True):
    """One assignment of a graph: its name, what it calls, and the user's line it came from."""

    name: str
    target: str
    type: str | None
    source: SourceLine | None


def nodes(text: str) -> Iterator[Node]:
    """The graph's assignments in order."""
    source: SourceLine | None = None
    for line in text.split("\n"):
        if "File: " in line and (comment := FILE_COMMENT.match(line)):
            source = SourceLine(
                file=comment["file"],
                line=int(comment["line"]),
                code=comment["code"].strip(),
                function=comment["function"],
            )
        elif "# No stacktrace found" in line:
            source = None
        elif " = " in line and (node := NODE.match(line)):
            yield Node(name=node["name"], target=node["target"], type=node["type"], source=source)


def op_counts(text: str) -> dict[str, int]:
    """How often each op is called, most often first: ``aten.mul``, ``prims.fma``, …"""
    return dict(Counter(OP.findall(text)).most_common())


def matrix_products(text: str) -> dict[str, int | None]:
    """FLOPs (a multiply-add is two) of each matrix product by node; None where a size is a symbol."""
    types, found = _types(text), dict[str, int | None]()
    for match in PRODUCT.finditer(text):
        arguments = [part.strip() for part in match["arguments"].split(",")]
        left = arguments[1 if match["op"].startswith(("add", "badd")) else 0]
        out, inner = _extents(match["type"]), _extents(types.get(left))
        found[match["name"]] = 2 * prod(out) * inner[-1] if out and inner else None
    return found


def _extents(type_: str | None) -> tuple[int, ...]:
    """``(4, 256)`` of ``f32[4, 256][256, 1]cuda:0``; nothing where it is not made of numbers."""
    match = TENSOR.match(type_ or "")
    parts = [part.strip() for part in match["shape"].split(",")] if match else []
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


def call_count(text: str) -> int:
    """Number of calls in a Dynamo graph (torch functions, methods and operators alike)."""
    return len(ANY_CALL.findall(text))


def saved_tensors(forward: str | None, backward: str | None) -> tuple[SavedTensor, ...]:
    """What the forward graph keeps for the backward one.

    Newer versions mark them in the forward graph's return; before, every input of the backward graph that is
    not a tangent was saved.
    """
    backward_inputs = {
        m["name"]: m["type"]
        for m in INPUT.finditer(_signature(backward or ""))
        if "tangents" not in m["name"]
    }
    names = SAVED.findall(forward or "") or list(backward_inputs)
    types = {**_types(forward or ""), **backward_inputs}
    return tuple(saved for name in names if (saved := tensor(name, types.get(name))))


def input_names(text: str) -> list[str]:
    """The graph's inputs in order."""
    return [m["name"] for m in INPUT.finditer(_signature(text))]


def _signature(text: str) -> str:
    start = text.find("def forward(")
    end = text.find("):\n", start)
    return text[start:end] if start >= 0 else ""


def _types(text: str) -> dict[str, str]:
    return {m["name"]: m["type"] for m in INPUT.finditer(text)}


def tensor(name: str, type_: str | None) -> SavedTensor | None:
    """A node by its type, ``f32[4, s0][s0, 1]cuda:0``; None where that is no tensor's."""
    match = TENSOR.match(type_ or "")
    if not match:
        return None
    shape = tuple(s.strip() for s in match["shape"].split(",") if s.strip())
    size = item_bytes(match["dtype"])
    for extent in shape:
        size = size * int(extent) if size is not None and extent.isdecimal() else None
    return SavedTensor(name=name, dtype=match["dtype"], shape=shape, device=match["device"], bytes=size)


def item_bytes(dtype: str) -> int | None:
    """Bytes of an element of torch's short dtype (``f32``, ``b8``) or of Triton's (``fp32``, ``i1``)."""
    if dtype in ITEM_BYTES:
        return ITEM_BYTES[dtype]
    bits = BITS.search(dtype)
    return max(int(bits[0]) // 8, 1) if bits else None
