"""Which argument of a kernel is which placeholder of its graph fragment: what fits, the likeliest first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from kinetoscope.bench.reference import expected
from kinetoscope.bench.reference.fragment import Fragment, Type
from kinetoscope.bench.torch_names import Tensor

# What a fragment's names of types begin with → what torch's do.
_DTYPES = {"f": "float", "bf": "bfloat", "i": "int", "u": "uint", "c": "complex"}


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

    def pairs(names: Sequence[str], tensors: Sequence[Tensor], *, each: str) -> Iterator[dict[str, Tensor]]:
        """Ways to give each name a tensor, or each tensor a name: the first of them what fits it best."""
        if not (names if each == "name" else tensors):
            yield {}
            return
        options = (
            ((0, t) for t in range(len(tensors))) if each == "name" else ((n, 0) for n in range(len(names)))
        )
        fits = [(_misfit(outside[names[n]], tensors[t]), n, t) for n, t in options]
        for _, n, t in sorted(fit for fit in fits if fit[0] < 2):
            others = [*names[:n], *names[n + 1 :]], [*tensors[:t], *tensors[t + 1 :]]
            for rest in pairs(*others, each=each):
                yield {names[n]: _as_placed(outside[names[n]], tensors[t]), **rest}

    def finished(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        for missing, stand_in in stand_ins.items():
            inputs[missing] = inputs[stand_in]
            if stand_in in fragment.nodes:  # updated in place: the name itself is the result
                del inputs[stand_in]
        return inputs

    # Each argument that is only read is one placeholder's: so many of the others are read as well.
    also_read = itertools.combinations(moving, max(0, len(outside) - len(fixed)))
    mixes = itertools.chain.from_iterable(pairs(list(outside), chosen, each="tensor") for chosen in also_read)
    chosen = list(itertools.islice(mixes, most))
    ways = [
        (taken, pairs([name for name in outside if name not in taken], fixed, each="name"))
        for taken in chosen
    ]
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
    begins = kind.dtype.rstrip("0123456789")
    dtype = "bool" if kind.dtype == "b8" else _DTYPES.get(begins, "?") + kind.dtype.removeprefix(begins)
    if dtype != str(tensor.dtype).removeprefix("torch."):
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
