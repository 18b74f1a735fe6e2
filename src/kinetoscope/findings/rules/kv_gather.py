"""Keys and values are copied together before attention reads them.

What it finds
    Gathers and concatenations of the cache of keys and values, in each layer of steps that generate.

Why it is slow
    Attention reads the whole cache once for a token; a copy reads and writes it once more before that, and
    takes longer the longer the answers get. A step that is bound by memory then moves three times the bytes.

How it decides
    Kernels of ``index``, ``index_select``, ``gather``, ``cat`` and of expanded copies, as often in a step as
    it has layers, of which a tensor holds four times the elements of attention's query or more, and which
    attention of the same layer follows. Needs recorded shapes.

What to do
    Let attention read the cache where it lies: kernels for paged caches (FlashInfer, FlashAttention's
    ``block_table``, FlexAttention with a block mask), or slots that are contiguous and sliced, not indexed.
    A cache that grows by ``cat``: allocate it once (transformers: ``cache_implementation="static"``).

Source
    PagedAttention (Kwon and others, 2023); transformers, "Caching".
"""

from math import prod
from typing import Any, cast

import msgspec

from kinetoscope.analysis.cost.formulas import ABSURD
from kinetoscope.analysis.serving.client import GENERATES
from kinetoscope.analysis.serving.parts import parted
from kinetoscope.analysis.serving.steps import LAYERS, marks, steps
from kinetoscope.analysis.serving.worked import on_host
from kinetoscope.findings.rule import *

OPS = "^aten::(index|index_select|gather|cat|copy_|_unsafe_index)$"
LARGER = 4  # times the query: rotary positions concatenate halves of that
NEAR = 12  # kernels between a copy and the attention that reads it


def find(view: RankView) -> Findings:
    if marks(view.trace).table.is_empty():
        return
    kinds = steps(view.trace).filter(pl.col("phase").is_in(GENERATES))["step"]
    if kinds.is_empty() or on_host(view.trace):
        return
    work = parted(view.trace).filter(pl.col("step").is_in(kinds.implode())).sort("start_ns", "id")
    attention = work.filter(pl.col("part") == "attention").drop_nulls("op")
    if attention.is_empty():
        return
    query = _largest(view, attention["op"][0], first=True)
    place = pl.int_range(pl.len())
    following = pl.when(pl.col("part") == "attention").then(place).backward_fill()
    near = (following - place <= NEAR) & (pl.col("part") != "attention")
    copies = work.with_columns(near=near).filter("near", pl.col("op_name").str.contains(OPS))
    elements = {op: _largest(view, op) for op in copies["op"].drop_nulls().unique()}
    sizes = copies["op"].replace_strict(elements, default=0, return_dtype=pl.Int64)
    copies = copies.filter(sizes >= LARGER * max(1, query)) if query else copies.clear()
    copies = copies.filter(pl.len().over("step", "op_name") >= LAYERS)
    if copies.is_empty():
        return
    names = ", ".join(copies["op_name"].unique().sort())
    saving = savings.device(
        view, copies.select("id", saved_ns="duration_ns"), "the step without these copies"
    )
    yield Finding(
        title=f"Keys and values are copied before attention reads them: {names}, "
        f"{len(copies) / max(1, copies['step'].n_unique()):.0f} times in a step that generates",
        affected_us=view.us_of(copies),
        saving=saving,
        evidence=[evidence.of(view, f"{len(copies)} kernels", copies)],
        advice="Let attention read the cache where it lies: a kernel for paged caches, or contiguous slots; "
        "a cache that grows by cat: allocate it once.",
        source=evidence.source(view, copies["op"]),
    )


def _largest(view: RankView, op: int, *, first: bool = False) -> int:
    """Elements of an op's largest tensor (of its first), by its shapes; 0 where they were not recorded."""
    dims = view.trace.argument("input_dims", op)
    shapes = _shapes(msgspec.json.decode(dims)) if dims else []
    return min(ABSURD, max(map(prod, shapes[:1] if first else shapes), default=0))


def _shapes(found: Any) -> list[list[int]]:
    """The shapes in what was recorded of an op's arguments: of tensors, and of lists of them."""
    if not isinstance(found, list) or not found:
        return []
    inside = cast(list[Any], found)
    if all(isinstance(one, int) for one in inside):
        return [cast(list[int], inside)]
    return [shape for one in inside for shape in _shapes(one)]
