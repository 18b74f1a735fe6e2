"""Graphs as torch prints them: code with the user's line above each group of ops; and how AOTAutograd's
partitioner cut a joint graph into a forward and a backward one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from math import prod

import msgspec

from kinetoscope.compilation.model import (
    CompileRow,
    PartitionerSettings,
    Rematerialised,
    SavedForBackward,
    SourceLine,
)

FILE_COMMENT = re.compile(
    r"\s+# File: (?P<file>.*?):(?P<line>\d+) in (?P<function>[^,]+), code: ?(?P<code>.*)"
)
NODE = re.compile(r'\s+(?P<name>\w+)(?:: "(?P<type>[^"]*)")? = (?P<target>[\w.]+)(?P<arguments>[^;\n]*)')
OP = re.compile(r"= torch\.ops\.((?:\w+)\.(?:\w+))")
ANY_CALL = re.compile(r"^\s+\w+(?:: \"[^\"]*\")? = (?!fx_pytree)(?:[\w.]+\(|.+ [-+*/@%&|<>=]+ )", re.M)
INPUT = re.compile(r'\b(?P<name>\w+): "(?P<type>[^"]*)"')
SAVED = re.compile(r"^\s+(\w+),\s+# SavedForBackwards", re.M)
TENSOR = re.compile(
    r"^(?P<dtype>\w+)\[(?P<shape>[^\]]*)\](?:\[(?P<strides>[^\]]*)\])?(?P<device>\w*(?::\d+)?)"
)
PRODUCT = re.compile(
    r"^\s+(?P<name>\w+)(?:: \"(?P<type>[^\"]*)\")? = "
    r"torch\.ops\.aten\.(?P<op>mm|bmm|addmm|baddbmm)\.default\((?P<arguments>[^)]*)",
    re.M,
)
# calls of fused attention and of its backward pass, by which of their arguments is the mask
MASKED_AT = {
    "torch.ops.aten._scaled_dot_product_cudnn_attention.default": 3,
    "torch.ops.aten._scaled_dot_product_efficient_attention.default": 3,
    "torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default": 8,
    "torch.ops.aten._scaled_dot_product_efficient_attention_backward.default": 4,
}
BITS = re.compile(r"\d+")
ITEM_BYTES = {"b8": 1, "c64": 8, "c128": 16}
DONATED = re.compile(r"\bbw_donated_idxs=\[([\d,\s]*)\]")
# names of nodes among arguments: neither keywords (`dtype = torch.float32`) nor parts of dotted names
OPERAND = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?![\w.(]| = )")
# aten's ops that return their first argument's memory
VIEWS = re.compile(
    r"torch\.ops\.aten\.(?:_unsafe_view|alias|as_strided|detach|diagonal|expand|permute|select|slice|split"
    r"|split_with_sizes|squeeze|t|transpose|unbind|unfold|unsqueeze|view)\.\w+"
)

partitioner_settings = msgspec.json.Decoder(PartitionerSettings)


class GraphNode(CompileRow, frozen=True, kw_only=True):
    """One assignment of a graph: its name, what it calls with which arguments, and the user's line it came
    from. Two graphs' nodes are the same where name, type and target are."""

    name: str
    target: str
    type: str | None
    arguments: str
    source: SourceLine | None

    @property
    def is_view(self) -> bool:
        return VIEWS.fullmatch(self.target) is not None

    @property
    def operands(self) -> tuple[str, ...]:
        """The nodes that it reads; parts of a tuple read ``getitem = var_mean[0]``: the target is a node."""
        called = () if "." in self.target else (self.target,)
        return (*called, *OPERAND.findall(self.arguments))


def nodes(text: str) -> Iterator[GraphNode]:
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
            yield GraphNode(**node.groupdict(), source=source)


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


def masked_pairs(text: str) -> Iterator[tuple[str, int]]:
    """Each call of fused attention in order: its op, and of how many pairs its mask says whether they are let
    through; 0 without a mask, with one of keys alone, and with one for each head, which is a bias."""
    types = _types(text)
    for node in nodes(text):
        if (place := MASKED_AT.get(node.target)) is not None:
            passed = [part.strip(" ()") for part in node.arguments.split(",")]
            yield node.target, _pairs(types.get(passed[place]) if place < len(passed) else None)


def _pairs(type_: str | None) -> int:
    """How many numbers a mask has that differ in query or key; an expanded dimension has a stride of 0."""
    match = TENSOR.match(type_ or "")
    strides = (match["strides"] or "").split(",") if match else []
    extents = [
        1 if stride.strip() == "0" else extent
        for extent, stride in zip(_extents(type_), strides, strict=False)
    ]
    of_heads = len(extents) > 2 and extents[-3] > 1
    return prod(extents) if len(extents) >= 2 and min(extents[-2:]) > 1 and not of_heads else 0


def _extents(type_: str | None) -> tuple[int, ...]:
    """``(4, 256)`` of ``f32[4, 256][256, 1]cuda:0``; nothing where it is not made of numbers."""
    match = TENSOR.match(type_ or "")
    parts = [part.strip() for part in match["shape"].split(",")] if match else []
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


def call_count(text: str) -> int:
    """Number of calls in a Dynamo graph (torch functions, methods and operators)."""
    return len(ANY_CALL.findall(text))


def saved_tensors(forward: str | None, backward: str | None) -> tuple[SavedForBackward, ...]:
    """The tensors that the forward graph saves for the backward one.

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


def _signature(text: str) -> str:
    start = text.find("def forward(")
    end = text.find("):\n", start)
    return text[start:end] if start >= 0 else ""


def _types(text: str) -> dict[str, str]:
    return {m["name"]: m["type"] for m in INPUT.finditer(text)}


def tensor(name: str, type_: str | None) -> SavedForBackward | None:
    """A node by its type, ``f32[4, s0][s0, 1]cuda:0``; None where that is no tensor's."""
    match = TENSOR.match(type_ or "")
    if not match:
        return None
    shape = tuple(s.strip() for s in match["shape"].split(",") if s.strip())
    size = item_bytes(match["dtype"])
    for extent in shape:
        size = size * int(extent) if size is not None and extent.isdecimal() else None
    return SavedForBackward(name=name, dtype=match["dtype"], shape=shape, device=match["device"], bytes=size)


def item_bytes(dtype: str) -> int | None:
    """Bytes of an element of torch's short dtype (``f32``, ``b8``) or of Triton's (``fp32``, ``i1``)."""
    if dtype in ITEM_BYTES:
        return ITEM_BYTES[dtype]
    bits = BITS.search(dtype)
    return max(int(bits[0]) // 8, 1) if bits else None


def with_donated(
    saved: tuple[SavedForBackward, ...], backward: str | None, metadata: str | None
) -> tuple[SavedForBackward, ...]:
    """Mark which may be written over: AOTAutograd's metadata counts them among the backward's inputs."""
    found = DONATED.search(metadata or "")
    if not found or not backward:
        return saved
    indices = {int(index) for index in found[1].replace(",", " ").split()}
    inputs = enumerate(INPUT.finditer(_signature(backward)))
    donated = {match["name"] for index, match in inputs if index in indices}
    return tuple(msgspec.structs.replace(t, donated=t.name in donated) for t in saved)


def rematerialised(forward: str, backward: str) -> tuple[Rematerialised, ...]:
    """The backward's nodes that the forward has too, in the backward's order: names are the joint graph's."""
    before = {(node.name, node.type, node.target) for node in nodes(forward)}
    all_nodes = {node.name: node for node in nodes(backward)}
    again = {name: n for name, n in all_nodes.items() if (n.name, n.type, n.target) in before}
    not_saved = _not_saved(all_nodes, again, backward)
    return tuple(
        Rematerialised(
            name=name,
            op=_op(node, all_nodes),
            dtype=made.dtype,
            shape=made.shape,
            device=made.device,
            bytes=made.bytes,
            spared_bytes=made.bytes if name in not_saved else 0,
        )
        for name, node in again.items()
        if (made := tensor(name, node.type))
    )


def total_bytes(sizes: list[int | None]) -> int | None:
    """The sum; None where one of the sizes is a symbol."""
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _not_saved(nodes: dict[str, GraphNode], again: dict[str, GraphNode], backward: str) -> set[str]:
    """The nodes that would be saved if nothing was computed again: those that the backward's own nodes read,
    or what these are views of."""
    read = {name for node in nodes.values() if node.name not in again for name in node.operands}
    read.update(OPERAND.findall(backward.rpartition("return ")[2]))
    return {base for name in read & again.keys() if (base := _base(name, again)) in again}


def _base(name: str, again: dict[str, GraphNode]) -> str:
    """The node whose memory this one shows; one that is not computed again is saved, or an input."""
    while node := again.get(name):
        tuple_of = again.get(node.target)
        if not (node.is_view or (tuple_of and tuple_of.is_view)) or not node.operands:
            return name
        name = node.operands[0]
    return name


def _op(node: GraphNode, nodes: dict[str, GraphNode]) -> str:
    maker = nodes.get(node.target, node)
    return ".".join(maker.target.removeprefix("torch.ops.").split(".")[:2])
