"""The piece of a graph that a generated kernel computes, read from the comment that Inductor writes above it.

PyTorch 2.10 and later write it above each Triton kernel, in this form (a node a line, however long):

    # Graph fragment:
    #   %x : Tensor "f32[4, 8][8, 1]cuda:0" = PlaceHolder[target=x]
    #   %exp : Tensor "f32[4, 8][8, 1]cuda:0"[num_users=1] =
    #       call_function[target=torch.ops.aten.exp.default](args = (%x,), kwargs = {})
    #   return %exp

A placeholder is a buffer that the kernel reads, also one that it has written itself. What `return` names are
the buffers that it writes; a buffer without a node of its own is called ``buf7`` or by the name of a node
outside. Nothing of the text is ever evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

HEAD = "Graph fragment:"


class FragmentError(ValueError):
    """The text is not of the form that this module knows."""


class Type(NamedTuple):
    """The type of a tensor; sizes that are not numbers (``s77``) are None."""

    dtype: str  # as Inductor shortens it: ``f32``, ``bf16``, ``i64``, ``b8``
    shape: tuple[int | None, ...]
    stride: tuple[int | None, ...]
    device: str


class Ref(msgspec.Struct, frozen=True):
    name: str


class Torch(msgspec.Struct, frozen=True):
    """A constant of torch: ``float32``, ``contiguous_format``, ``strided``."""

    name: str


class Word(msgspec.Struct, frozen=True):
    """A bare word: a device (``cuda:0``) or a string argument (``tanh``)."""

    text: str


Value = Ref | Torch | Word | int | float | bool | None | list["Value"] | tuple["Value", ...]


class FragmentNode(NamedTuple):
    name: str
    target: str  # ``torch.ops.aten.exp.default``, ``operator.getitem``
    args: tuple[Value, ...]
    kwargs: dict[str, Value]
    type: Type | None
    users: int = 0  # users of its value in the whole graph: of a result in parts, how many parts are used

    def inputs(self) -> Iterator[str]:
        yield from _references(self.args)
        yield from _references(tuple(self.kwargs.values()))


class Fragment(NamedTuple):
    placeholders: dict[str, Type | None]
    nodes: dict[str, FragmentNode]
    returns: tuple[str, ...]


def _references(value: Value) -> Iterator[str]:
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _references(each)


_LINE = re.compile(
    r'%(?P<name>\w+) : (?:Tensor (?:"(?P<type>[^"]*)")? ?)?(?:\[num_users=(?P<users>\d+)\])? ?= '
    r"(?:PlaceHolder\[target=(?P<placeholder>[^\]]*)\]"
    r"|call_function\[target=(?P<target>[\w.]+)\]\(args = (?P<args>.*), kwargs = (?P<kwargs>\{.*\})\))"
)
_TYPE = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[^\]]*)\]\[(?P<stride>[^\]]*)\](?P<device>.*)")


def parse(comment: str) -> Fragment:
    """Read the comment above a kernel. Raises FragmentError where it holds no fragment of this form."""
    _, head, text = comment.partition(HEAD)
    if not head:
        raise FragmentError("the kernel has no graph fragment")
    placeholders: dict[str, Type | None] = {}
    nodes: dict[str, FragmentNode] = {}
    for raw in text.splitlines()[1:]:
        line = raw.strip().removeprefix("#").strip()
        if line.startswith("return "):
            names = (name.strip() for name in line.removeprefix("return ").split(","))
            return Fragment(placeholders, nodes, tuple(name.removeprefix("%") for name in names if name))
        match = _LINE.fullmatch(line)
        if match is None:
            raise FragmentError(f"not a line of a graph fragment: {line[:120]}")
        kind = _type(match["type"]) if match["type"] else None
        if match["target"] is None:
            placeholders.setdefault(match["name"], kind)
            continue
        args, kwargs = _Reader(match["args"]).whole(), _Reader(match["kwargs"]).whole()
        if not isinstance(args, tuple) or not isinstance(kwargs, dict):
            raise FragmentError(f"arguments of another form: {line[:120]}")
        nodes[match["name"]] = FragmentNode(
            match["name"], match["target"], args, kwargs, kind, int(match["users"] or 0)
        )
    raise FragmentError("the graph fragment has no end")


def _type(text: str) -> Type | None:
    match = _TYPE.fullmatch(text)
    if match is None:
        return None
    return Type(match["dtype"], _sizes(match["shape"]), _sizes(match["stride"]), match["device"])


def _sizes(text: str) -> tuple[int | None, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return tuple(int(part) if re.fullmatch(r"-?\d+", part) else None for part in parts)


_TOKEN = re.compile(
    r"\s*(?:(?P<mark>[()\[\]{},:])|%(?P<ref>\w+)|torch\.(?P<torch>\w+)"
    r"|(?P<number>-?(?:\d+\.?\d*(?:e[+-]?\d+)?|inf|nan)\b)|(?P<word>[A-Za-z_]\w*(?::\d+)?))"
)
_CONSTANTS: dict[str, bool | None] = {"True": True, "False": False, "None": None}


class _Reader:
    """A value as ``torch.fx`` prints it: numbers, lists, tuples, dictionaries with bare keys, references."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def whole(self) -> Value | dict[str, Value]:
        value = self._value()
        if self._text[self._at :].strip():
            raise FragmentError(f"more than one value: {self._text[:80]}")
        return value

    def _next(self) -> re.Match[str]:
        token = _TOKEN.match(self._text, self._at)
        if token is None:
            raise FragmentError(f"not a value: {self._text[self._at : self._at + 40]}")
        self._at = token.end()
        return token

    def _peek(self) -> str:
        return self._text[self._at :].lstrip()[:1]

    def _value(self) -> Value | dict[str, Value]:
        token = self._next()
        if token["mark"] in ("(", "["):
            items = [self._plain() for _ in self._places(")" if token["mark"] == "(" else "]")]
            return tuple(items) if token["mark"] == "(" else items
        if token["mark"] == "{":
            return dict(self._pair() for _ in self._places("}"))
        if token["ref"]:
            return Ref(token["ref"])
        if token["torch"]:
            return Torch(token["torch"])
        if token["number"]:
            number = token["number"]
            return int(number) if re.fullmatch(r"-?\d+", number) else float(number)
        if token["word"]:
            return _CONSTANTS[token["word"]] if token["word"] in _CONSTANTS else Word(token["word"])
        raise FragmentError(f"not a value: {self._text[:80]}")

    def _plain(self) -> Value:
        value = self._value()
        if isinstance(value, dict):
            raise FragmentError(f"a dictionary among values: {self._text[:80]}")
        return value

    def _pair(self) -> tuple[str, Value]:
        key = self._next()["word"]
        if key is None or key.count(":") or self._next()["mark"] != ":":
            raise FragmentError(f"not a name and its value: {self._text[:80]}")
        return key, self._plain()

    def _places(self, end: str) -> Iterator[None]:
        """Goes on from item to item until ``end``."""
        while self._peek() != end:
            yield
            if self._peek() == ",":
                self._next()
            elif self._peek() != end:
                raise FragmentError(f"a comma is missing: {self._text[:80]}")
        self._next()
