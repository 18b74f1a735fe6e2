"""Which argument of a kernel is which placeholder of its graph fragment: what fits, the likeliest first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from kinetoscope.bench.reference import expected
from kinetoscope.bench.reference.fragment import Fragment, Type
from kinetoscope.bench.torch_names import Tensor

# A fragment's names of types → torch's.
_DTYPES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
    "b8": "bool",
    "c64": "complex64",
    "c128": "complex128",
}


def orders(
    fragment: Fragment, fixed: Sequence[Tensor], moving: Sequence[Tensor], most: int
) -> Iterator[dict[str, Tensor]]:
    """Ways to give each placeholder that comes from outside the kernel an argument of its size and type.

    Args:
        fixed: arguments that are only read: almost always in the placeholders' order.
        moving: arguments that are written, some of them read first: their place in that order is unknown.
        most: choices of the moving ones that are tried.
    """
    outside = {name: kind for name, kind in fragment.placeholders.items() if name not in fragment.returns}
    stand_ins = expected.stand_ins(fragment, list(outside))

    def place(names: Sequence[str], free: Sequence[Tensor]) -> Iterator[dict[str, Tensor]]:
        if not names:
            yield {}
            return
        name, *others = names
        fits = sorted((misfit, at) for at, x in enumerate(free) if (misfit := _misfit(outside[name], x)) < 2)
        for _, at in fits:
            for rest in place(others, [*free[:at], *free[at + 1 :]]):
                yield {name: _as_placed(outside[name], free[at]), **rest}

    def mix(names: Sequence[str], chosen: Sequence[Tensor]) -> Iterator[dict[str, Tensor]]:
        if not chosen:
            yield {}
            return
        tensor, *others = chosen
        fits = sorted(
            (misfit, at) for at, n in enumerate(names) if (misfit := _misfit(outside[n], tensor)) < 2
        )
        for _, at in fits:
            for rest in mix([*names[:at], *names[at + 1 :]], others):
                yield {names[at]: _as_placed(outside[names[at]], tensor), **rest}

    def finished(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        for missing, stand_in in stand_ins.items():
            inputs[missing] = inputs[stand_in]
            if stand_in in fragment.nodes:  # updated in place: the name itself is the result
                del inputs[stand_in]
        return inputs

    # Each argument that is only read is one placeholder's: so many of the others are read as well.
    also_read = itertools.combinations(moving, max(0, len(outside) - len(fixed)))
    mixes = itertools.chain.from_iterable(mix(list(outside), chosen) for chosen in also_read)
    chosen = list(itertools.islice(mixes, most))
    ways = [(taken, place([name for name in outside if name not in taken], fixed)) for taken in chosen]
    # First every choice with the others in order, then the others in other orders.
    while ways:
        for way in list(ways):
            rest = next(way[1], None)
            if rest is None:
                ways.remove(way)
            else:
                yield finished({**way[0], **rest})


def _misfit(kind: Type | None, tensor: Tensor) -> int:
    """0: the same shape; 1: as many elements of the same type; 2: something else."""
    if kind is None:
        return 1
    if _DTYPES.get(kind.dtype) != str(tensor.dtype).removeprefix("torch."):
        return 2
    if kind.shape == tuple(tensor.shape):
        return 0
    count = 1
    for size in kind.shape:
        if size is None:
            return 1 if len(kind.shape) == tensor.dim() else 2
        count *= size
    return 1 if count == tensor.numel() else 2


def _as_placed(kind: Type | None, tensor: Tensor) -> Tensor:
    """The tensor as the fragment sees it: a kernel goes through memory in the layout of the buffer."""
    if kind is None or kind.shape == tuple(tensor.shape) or None in kind.shape or None in kind.stride:
        return tensor
    shape, stride = (tuple(x for x in sizes if x is not None) for sizes in (kind.shape, kind.stride))
    return tensor.as_strided(shape, stride, tensor.storage_offset())
