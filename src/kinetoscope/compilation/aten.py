"""Meanings of the ops of a graph, in torch's words or in ours (``prims`` are Inductor's decompositions)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib import resources

import msgspec

FUSED = re.compile(r"^(?:triton_[a-z]{3}|cpp)_fused_(?P<ops>.+?)(?:_\d+)?$")


class Words(msgspec.Struct, frozen=True, array_like=True):
    """The meaning of an op: our own few words, and the first sentence of torch's docstring."""

    short: str | None = None
    docs: str | None = None


class _Document(msgspec.Struct, frozen=True):
    """``aten_docs.json``, made by ``scripts/aten_docs.py``."""

    ops: dict[str, Words]


@cache
def glossary() -> dict[str, Words]:
    text = resources.files("kinetoscope.compilation").joinpath("aten_docs.json").read_bytes()
    return msgspec.json.decode(text, type=_Document).ops


def meaning(op: str) -> str | None:
    """The meaning of ``aten.mul``, ``aten.mul.Tensor`` or ``prims.fma``: the first sentence of torch's
    docstring, our own words for what torch does not describe; None for an op that neither knows."""
    words = _words(op)
    return words.docs or words.short


def in_short(op: str) -> str | None:
    """The same in a few words."""
    words = _words(op)
    return words.short or words.docs


def _words(op: str) -> Words:
    name = op.split(".")[:2][-1]
    return glossary().get(name) or glossary().get(name.removesuffix("_"), Words())  # mul_ is mul, in place


def ops_in_name(kernel: str, known: Iterable[str]) -> tuple[str, ...]:
    """The ops that a fused kernel's name lists: ``cpp_fused_add_gelu_view_0`` is add, gelu and view.

    An op may itself hold underscores, so the name is read with the ops that are ``known`` and those of the
    glossary; a name that they do not explain whole gives nothing.
    """
    match = FUSED.match(kernel)
    vocabulary = {op for op, words in glossary().items() if words.short} | {*known}
    # reading[i]: how the name can be read from word i on
    words = match["ops"].split("_") if match else []
    reading: list[tuple[str, ...] | None] = [None for _ in words]
    reading.append(())
    for start in reversed(range(len(words))):
        for end in range(len(words), start, -1):
            op, following = "_".join(words[start:end]), reading[end]
            if op in vocabulary and following is not None:
                reading[start] = (f"aten.{op}", *following)
                break
    return reading[0] or ()
