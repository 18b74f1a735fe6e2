"""How AOTAutograd's partitioner cut a joint graph: what the backward computes again, and may write over."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from kinetoscope.compilation import fx
from kinetoscope.compilation.model import PartitionerSettings, Rematerialised, SavedTensor

DONATED = re.compile(r"\bbw_donated_idxs=\[([\d,\s]*)\]")
ASSIGNMENT = re.compile(
    r'^\s+(?P<name>\w+)(?:: "(?P<type>[^"]*)")? = (?P<target>[\w.]+)(?P<arguments>[^;\n]*)', re.M
)
# names of nodes among arguments: neither keywords (`dtype = torch.float32`) nor parts of dotted names
OPERAND = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?![\w.(]| = )")
# aten's ops that return their first argument's memory
VIEWS = re.compile(
    r"torch\.ops\.aten\.(?:_unsafe_view|alias|as_strided|detach|diagonal|expand|permute|select|slice|split"
    r"|split_with_sizes|squeeze|t|transpose|unbind|unfold|unsqueeze|view)\.\w+"
)

settings = msgspec.json.Decoder(PartitionerSettings)


class _Node(msgspec.Struct, frozen=True):
    """An assignment; two graphs' are the same node where its name, type and target are."""

    name: str
    type: str | None
    target: str
    operands: tuple[str, ...]

    @property
    def is_view(self) -> bool:
        return VIEWS.fullmatch(self.target) is not None


def with_donated(
    saved: tuple[SavedTensor, ...], backward: str | None, metadata: str | None
) -> tuple[SavedTensor, ...]:
    """Mark which may be written over: AOTAutograd's metadata counts them among the backward's inputs."""
    found = DONATED.search(metadata or "")
    if not found or not backward:
        return saved
    names = fx.input_names(backward)
    indices = {int(index) for index in found[1].replace(",", " ").split()}
    donated = {name for index, name in enumerate(names) if index in indices}
    return tuple(msgspec.structs.replace(t, donated=t.name in donated) for t in saved)


def rematerialised(forward: str, backward: str) -> tuple[Rematerialised, ...]:
    """The backward's nodes that the forward has too, in the backward's order: names are the joint graph's."""
    before = {(node.name, node.type, node.target) for node in _nodes(forward)}
    nodes = {node.name: node for node in _nodes(backward)}
    again = {name: n for name, n in nodes.items() if (n.name, n.type, n.target) in before}
    spared = _spared(nodes, again, backward)
    return tuple(
        Rematerialised(
            name=name,
            op=_op(node, nodes),
            dtype=tensor.dtype,
            shape=tensor.shape,
            device=tensor.device,
            bytes=tensor.bytes,
            spared_bytes=tensor.bytes if name in spared else 0,
        )
        for name, node in again.items()
        if (tensor := fx.tensor(name, node.type))
    )


def total(sizes: list[int | None]) -> int | None:
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _nodes(text: str) -> Iterator[_Node]:
    for found in ASSIGNMENT.finditer(text):
        operands = tuple(OPERAND.findall(found["arguments"]))
        # Parts of a tuple read `getitem = var_mean[0]`: what is called is a node.
        own = () if "." in found["target"] else (found["target"],)
        yield _Node(found["name"], found["type"], found["target"], own + operands)


def _spared(nodes: dict[str, _Node], again: dict[str, _Node], backward: str) -> set[str]:
    """What would be saved were nothing computed again: what the backward's own nodes read, or its base."""
    read = {name for node in nodes.values() if node.name not in again for name in node.operands}
    read.update(OPERAND.findall(backward.rpartition("return ")[2]))
    return {base for name in read & again.keys() if (base := _base(name, again)) in again}


def _base(name: str, again: dict[str, _Node]) -> str:
    """The node whose memory this one shows; one that is not computed again is saved, or an input."""
    while node := again.get(name):
        tuple_of = again.get(node.target)
        if not (node.is_view or (tuple_of and tuple_of.is_view)) or not node.operands:
            return name
        name = node.operands[0]
    return name


def _op(node: _Node, nodes: dict[str, _Node]) -> str:
    maker = nodes.get(node.target, node)
    return ".".join(maker.target.removeprefix("torch.ops.").split(".")[:2])
