"""Whether a kernel computes what its graph fragment says, on the very inputs that it is timed on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from kinetoscope.bench import reference
from kinetoscope.bench.fragment import Fragment, FragmentError, Type, parse

# What a type's rounding may do to one element, of the element plus the root mean square of all.
TOLERANCES = {"float64": 1e-7, "float32": 1e-4, "float16": 2e-3, "bfloat16": 1.6e-2}
# A kernel may err this much more than PyTorch's own operators do …
MULTIPLIER = 3.0
# … and this share of its elements may lie beyond the tolerance (a comparison that falls the other way in float64).
BEYOND = 1e-5
# Like inputs whose order the fragment does not tell are tried in so many orders.
MOST_ORDERS = 24


class Agreement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A kernel's outputs against its reference. Errors are relative to an output's root mean square."""

    status: Literal["agrees", "differs", "not checked"]
    text: str
    """For people: how far apart, or why there was no check."""
    outputs: int = 0
    checked: int = 0
    largest_error: float | None = None
    eager_error: float | None = None
    """PyTorch's own operators, without compiling, on the same inputs."""


class Gap(NamedTuple):
    """One output against one candidate."""

    agrees: bool
    largest: float
    eager: float


def not_checked(why: str) -> Agreement:
    return Agreement(status="not checked", text=f"not checked: {why}")


def check(
    comment: str, parameters: Sequence[str], before: Sequence[Any], after: Sequence[Any], device: str
) -> Agreement:
    """Compare what a kernel wrote with its reference.

    Args:
        comment: the comment block above the kernel, with the graph fragment.
        parameters: the kernel's parameter names, in order; ``in_…`` are read, ``out_…`` and ``in_out_…`` written.
        before: its arguments before the launch (copies), same order.
        after: the same after the launch.
    """
    try:
        fragment = parse(comment)
    except FragmentError as error:
        return not_checked(str(error))
    tensors = [
        (name, old, new)
        for name, old, new in zip(parameters, before, after, strict=False)
        if hasattr(old, "untyped_storage")
    ]
    read = [(name, old) for name, old, _ in tensors if not name.startswith("out_ptr")]
    written = [new for name, old, new in tensors if "out_ptr" in name or not _same(old, new)]
    if not written:
        return not_checked("the kernel writes nothing that could be compared")
    orders = list(itertools.islice(_orders(fragment, read), MOST_ORDERS))
    if not orders:
        return not_checked("its arguments do not fit the fragment's placeholders")
    best: Agreement | None = None
    for inputs in orders:
        try:
            found = _compare(fragment, inputs, written, device)
        except reference.UnknownOperationError as error:
            return not_checked(str(error))
        if found.status != "differs":
            return found
        best = best or found
    assert best is not None
    return best


def _same(old: Any, new: Any) -> bool:
    import torch

    return torch.equal(
        old.nan_to_num() if old.is_floating_point() else old,
        new.nan_to_num() if new.is_floating_point() else new,
    )


def _orders(fragment: Fragment, read: Sequence[tuple[str, Any]]) -> Iterator[dict[str, Any]]:
    """Ways to give each placeholder that comes from outside the kernel an argument of its size and type."""
    outside = {name: kind for name, kind in fragment.placeholders.items() if name not in fragment.returns}
    aliases = dict(zip(reference.unresolved(fragment), _loose(fragment, outside), strict=False))

    def place(names: Sequence[str], free: Sequence[tuple[str, Any]]) -> Iterator[dict[str, Any]]:
        if not names:
            yield {}
            return
        name, *others = names
        for at, (_, tensor) in sorted(enumerate(free), key=lambda item: _misfit(outside[name], item[1][1])):
            if _misfit(outside[name], tensor) > 1:
                continue
            for rest in place(others, [*free[:at], *free[at + 1 :]]):
                yield {name: _as_placed(outside[name], tensor), **rest}

    # Updated in place comes first in a signature, wherever it was read first.
    ordered = sorted(read, key=lambda item: item[0].startswith("in_out"))
    for inputs in place(list(outside), ordered):
        for missing, stand_in in aliases.items():
            inputs[missing] = inputs[stand_in]
        yield inputs


def _loose(fragment: Fragment, outside: Mapping[str, Type | None]) -> list[str]:
    """Placeholders from outside that no node names: they carry a view's name where nodes use what it is a view of."""
    named = {name for node in fragment.nodes.values() for name in node.inputs()}
    return [name for name in outside if name not in named and not name.startswith("buf")]


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


def _misfit(kind: Type | None, tensor: Any) -> int:
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


def _as_placed(kind: Type | None, tensor: Any) -> Any:
    """The tensor as the fragment sees it: a kernel goes through memory in the layout of the buffer."""
    if kind is None or kind.shape == tuple(tensor.shape) or None in kind.shape or None in kind.stride:
        return tensor
    shape, stride = (tuple(x for x in sizes if x is not None) for sizes in (kind.shape, kind.stride))
    return tensor.as_strided(shape, stride, tensor.storage_offset())


def _compare(fragment: Fragment, inputs: Mapping[str, Any], written: Sequence[Any], device: str) -> Agreement:
    leaves = reference.leaves(fragment)
    keep = (*fragment.returns, *leaves)
    exact = reference.run(fragment, inputs, device, keep, exact=True)
    eager = reference.run(fragment, inputs, device, keep, exact=False)
    told = [name for name in fragment.returns if name in exact and name not in inputs]
    untold = [name for name in leaves if name in exact and name not in told and name not in inputs]
    open_ends = len(fragment.returns) > len(told)
    gaps: list[Gap] = []
    wrong: list[Gap] = []
    matched: list[str] = []
    for tensor in written:
        best: Gap | None = None
        for name in [*told, *untold, *matched]:
            for mine, honest, true in _forms(tensor, eager[name], exact[name]):
                gap = measure_gap(mine, honest, true)
                if gap.agrees:
                    best = gap
                    if name in told:
                        told.remove(name)
                        matched.append(name)
                    break
                # Only a result that the fragment names can convict: under another name it may be another one.
                if name in told and not open_ends and (best is None or gap.largest < best.largest):
                    best = gap
            if best is not None and best.agrees:
                break
        if best is not None:
            (gaps if best.agrees else wrong).append(best)
    counts = {"outputs": len(written), "checked": len(gaps) + len(wrong)}
    if wrong:
        worst = max(wrong, key=lambda gap: gap.largest)
        return Agreement(
            status="differs",
            text=f"DIFFERS from its graph: largest error {worst.largest:.1e}, eager's {worst.eager:.1e}",
            largest_error=worst.largest,
            eager_error=worst.eager,
            **counts,
        )
    if not gaps:
        return msgspec.structs.replace(
            not_checked("which node of the graph it writes, the fragment does not tell"), outputs=len(written)
        )
    worst = max(gaps, key=lambda gap: gap.largest)
    part = "" if len(gaps) == len(written) else f", {len(gaps)} of {len(written)} outputs"
    return Agreement(
        status="agrees",
        text=f"agrees with its graph (largest error {worst.largest:.1e}, eager's {worst.eager:.1e}{part})",
        largest_error=worst.largest,
        eager_error=worst.eager,
        **counts,
    )


def _forms(tensor: Any, eager: Any, exact: Any) -> Iterator[tuple[Any, Any, Any]]:
    """What of an output can be compared with a value: itself, or its partial results added up.

    The first kernel of a sum in two steps writes partial sums, one more dimension at the end; for a mean they are
    divided by the second.
    """
    if not hasattr(exact, "numel") or exact.numel() == 0:
        return
    if tensor.numel() == exact.numel():
        yield tensor, eager.reshape(tensor.shape), exact.reshape(tensor.shape)
    elif (
        tensor.dim() > 0 and tensor.numel() == exact.numel() * tensor.shape[-1] and tensor.is_floating_point()
    ):
        yield tensor.sum(-1), eager.reshape(tensor.shape[:-1]), exact.reshape(tensor.shape[:-1])


def measure_gap(mine: Any, eager: Any, exact: Any) -> Gap:
    """How far a result and eager's lie from the exact one, and whether the first is excused by the second.

    Floating point: the root mean square of the error may be three times eager's plus a tenth of the tolerance; the
    share of elements beyond the tolerance three times eager's plus 1e-5; and no element may be infinite or NaN where
    the other two are not. Integers and booleans: the share of elements that differ, likewise.
    """
    import torch

    if not mine.is_floating_point() and not mine.is_complex():
        own = float((mine.double() != exact.double()).double().mean())
        other = float((eager.double() != exact.double()).double().mean())
        return Gap(own <= MULTIPLIER * other + BEYOND, own, other)
    tolerance = TOLERANCES.get(str(mine.dtype).removeprefix("torch."), 1e-4)
    mine, eager, exact = (x.double() for x in (mine, eager.to(mine.dtype), exact))
    usable = torch.isfinite(exact) & torch.isfinite(eager)
    if not bool(usable.any()):
        same = bool((torch.isfinite(mine) == torch.isfinite(eager)).all())
        return Gap(same, 0.0 if same else float("inf"), 0.0)
    if bool((usable & ~torch.isfinite(mine)).any()):
        return Gap(False, float("inf"), 0.0)
    zero = torch.zeros((), dtype=torch.float64, device=exact.device)
    exact = torch.where(usable, exact, zero)
    count = usable.sum()
    scale = torch.sqrt((exact * exact).sum() / count).clamp(min=1e-300)
    limit = tolerance * (exact.abs() + scale)

    def errors(values: Any) -> tuple[float, float, float]:
        off = torch.where(usable, values - exact, zero).abs()
        spread = torch.sqrt((off * off).sum() / count) / scale
        return float(spread), float((off > limit).sum() / count), float(off.max() / scale)

    own, honest = errors(mine), errors(eager)
    agrees = own[0] <= MULTIPLIER * honest[0] + tolerance / 10 and own[1] <= MULTIPLIER * honest[1] + BEYOND
    return Gap(agrees, own[2], honest[2])
