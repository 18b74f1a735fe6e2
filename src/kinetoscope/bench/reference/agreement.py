"""Whether a kernel computes what its graph fragment says, on the very inputs that it is timed on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from kinetoscope.bench.reference import expected
from kinetoscope.bench.reference.fragment import Fragment, FragmentError, Type, parse
from kinetoscope.bench.torch_names import Tensor

# What a fragment's names of types begin with → what torch's do.
_DTYPES = {"f": "float", "bf": "bfloat", "i": "int", "u": "uint", "c": "complex"}


def orders(
    fragment: Fragment, fixed: Sequence[Tensor], moving: Sequence[Tensor], most: int
) -> Iterator[dict[str, Tensor]]:
    """Assignments of arguments to the placeholders that come from outside the kernel, by size and type.
    ``fixed`` ones are only read: almost always in the placeholders' order. ``moving`` ones are written, some
    of them read first: their place in that order is unknown, and ``most`` choices of them are tried."""
    outside = {name: kind for name, kind in fragment.placeholders.items() if name not in fragment.returns}
    stand_ins = expected.stand_ins(fragment, list(outside))

    def pairs(names: Sequence[str], tensors: Sequence[Tensor], *, each: str) -> Iterator[dict[str, Tensor]]:
        """Assignments of a tensor to each name, or a name to each tensor, those that fit best first."""
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


# What a type's rounding may do to one element, of the element plus the root mean square of all.
TOLERANCES = {"float64": 1e-7, "float32": 1e-4, "float16": 2e-3, "bfloat16": 1.6e-2}
MULTIPLIER = 3.0  # a kernel may err this much more than PyTorch's own operators do …
# … and this share of its elements may lie beyond the tolerance (comparisons can differ in float64).
BEYOND = 1e-5
MOST_ORDERS = 24  # like inputs whose order the fragment does not tell are tried in so many orders


class Agreement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A kernel's outputs against its reference. Errors are relative to an output's root mean square."""

    status: Literal["agrees", "differs", "not checked"]
    text: str  # for people: how far apart, or why there was no check
    outputs: int = 0
    checked: int = 0
    largest_error: float | None = None
    eager_error: float | None = None  # PyTorch's own operators, without compiling, on the same inputs


class OutputError(NamedTuple):
    agrees: bool
    largest: float
    eager: float


def not_checked(why: str) -> Agreement:
    return Agreement(status="not checked", text=f"not checked: {why}")


def check(
    comment: str,  # the comment block above the kernel, with the graph fragment
    # the kernel's parameter names, in order: ``in_ptr0``, ``in_out_ptr0``, ``out_ptr0``, …
    parameters: Sequence[str],
    written: Sequence[str],  # those of them that it writes
    before: Sequence[Tensor],  # its arguments before the launch (copies), same order
    after: Sequence[Tensor],  # the same after the launch
    device: str,
) -> Agreement:
    """Compare what a kernel wrote with its reference."""
    try:
        fragment = parse(comment)
    except FragmentError as error:
        return not_checked(str(error))
    tensors = [
        (name, old, new)
        for name, old, new in zip(parameters, before, after, strict=False)
        if hasattr(old, "untyped_storage")
    ]
    outputs = [new for name, _, new in tensors if name in written]
    if not outputs:
        return not_checked("the kernel writes nothing that could be compared")
    fixed = [old for name, old, _ in tensors if name.startswith("in_ptr")]
    # The earlier value of an output may count as well (a scatter adds to it), but rarely does.
    moving = [old for name, old, _ in tensors if name.startswith("in_out")]
    moving += [old for name, old, _ in tensors if name.startswith("out_ptr")]
    ways = list(itertools.islice(orders(fragment, fixed, moving, MOST_ORDERS), MOST_ORDERS + 1))
    if not ways:
        return not_checked("its arguments do not fit the fragment's placeholders")
    tried: list[Agreement] = []
    for inputs in ways[:MOST_ORDERS]:
        try:
            agreement = _compare(fragment, inputs, outputs, device)
        except expected.UnknownOperationError as error:
            return not_checked(str(error))
        if agreement.status == "agrees" and agreement.checked == agreement.outputs:
            return agreement
        tried.append(agreement)
    best = max(tried, key=lambda agreement: (agreement.status == "agrees", agreement.checked))
    if best.status == "differs" and len(ways) > MOST_ORDERS:
        return not_checked(
            f"the order of its like arguments is unknown, and none of {MOST_ORDERS} tried agrees"
        )
    return best


def _compare(
    fragment: Fragment, inputs: Mapping[str, Tensor], written: Sequence[Tensor], device: str
) -> Agreement:
    leaves = expected.leaves(fragment)
    keep = (*fragment.returns, *leaves)
    exact = _parts(expected.run(fragment, inputs, device, keep, exact=True))
    eager = _parts(expected.run(fragment, inputs, device, keep, exact=False))
    named = [name for name in fragment.returns if name in exact and name not in inputs]
    open_ends = len(fragment.returns) > len(named)
    unnamed = [
        name
        for name in exact
        if name.partition("[")[0] in leaves and name not in named and name not in inputs
    ]
    good, bad = _partial_variance(fragment, written, eager, exact), list[OutputError]()
    for tensor in written if not good else ():
        best: tuple[str, OutputError] | None = None
        for name in [*named, *unnamed, *fragment.returns]:
            if name not in exact or name in inputs:
                continue
            gap = _gap(tensor, eager[name], exact[name])
            if gap is None:
                continue
            if gap.agrees:
                best = name, gap
                break
            # Only a result that the fragment names, made of what it names, can convict.
            certain = name in named and not open_ends and not expected.guessed(fragment, name, inputs)
            if certain and (best is None or gap.largest < best[1].largest):
                best = name, gap
        if best is not None:
            named = [name for name in named if name != best[0] or not best[1].agrees]
            (good if best[1].agrees else bad).append(best[1])
    return _judgement(good, bad, len(written))


def _judgement(good: Sequence[OutputError], bad: Sequence[OutputError], outputs: int) -> Agreement:
    checked = len(good) + len(bad)
    if not checked:
        why = "which node of the graph it writes, the fragment does not tell"
        return msgspec.structs.replace(not_checked(why), outputs=outputs)
    worst = max(bad or good, key=lambda gap: gap.largest)
    errors = f"largest error {worst.largest:.1e}, eager's {worst.eager:.1e}"
    part = "" if checked == outputs else f", {checked} of {outputs} outputs"
    return Agreement(
        status="differs" if bad else "agrees",
        text=f"DIFFERS from its graph ({errors}{part})" if bad else f"agrees with its graph ({errors}{part})",
        outputs=outputs,
        checked=checked,
        largest_error=worst.largest,
        eager_error=worst.eager,
    )


def _parts(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by name; the parts of a split are called ``split[0]``, ``split[1]``, …"""
    parts: dict[str, Tensor] = {}
    for name, value in values.items():
        if hasattr(value, "numel"):
            parts[name] = value
        elif isinstance(value, list | tuple):
            parts |= {f"{name}[{place}]": part for place, part in enumerate(value) if hasattr(part, "numel")}
    return parts


def _gap(tensor: Tensor, eager: Tensor, exact: Tensor) -> OutputError | None:
    """An output against a value: itself, or its partial results added up; None if their sizes do not fit.

    The first kernel of a sum in two steps writes partial sums, one more dimension at the end.
    """
    if exact.numel() == 0 or tensor.dim() == 0 or tensor.numel() == exact.numel():
        if tensor.numel() != exact.numel():
            return None
        return output_error(tensor, eager.reshape(tensor.shape), exact.reshape(tensor.shape))
    if tensor.numel() != exact.numel() * tensor.shape[-1] or not tensor.is_floating_point():
        return None
    shape = tensor.shape[:-1]
    return output_error(tensor.sum(-1), eager.reshape(shape), exact.reshape(shape))


def _partial_variance(
    fragment: Fragment, written: Sequence[Tensor], eager: Mapping[str, Tensor], exact: Mapping[str, Tensor]
) -> list[OutputError]:
    """The gaps of mean and variance where the outputs are partial ones: means, sums of squares, counts.

    Put together as Chan, Golub and LeVeque do it. Empty if the outputs are something else, or do not agree.
    """
    node = next((n for n in fragment.nodes.values() if n.target.startswith("torch.ops.aten.var_mean.")), None)
    if node is None or f"{node.name}[1]" not in exact or len(written) != 3:
        return []
    means, squares, counts = (tensor.double() for tensor in written)
    correction = node.kwargs.get("correction")
    if (
        means.dim() == 0
        or not means.shape == squares.shape == counts.shape
        or not isinstance(correction, int)
    ):
        return []
    total = counts.sum(-1, keepdim=True)
    mean = (means * counts).sum(-1, keepdim=True) / total
    variance = (squares + counts * (means - mean) ** 2).sum(-1) / (total[..., 0] - correction)
    gaps: list[OutputError] = []
    for place, value in ((0, variance), (1, mean[..., 0])):
        true, honest = exact[f"{node.name}[{place}]"], eager[f"{node.name}[{place}]"]
        if true.numel() != value.numel():
            return []
        result = value.to(written[0].dtype)
        gaps.append(output_error(result, honest.reshape(result.shape), true.reshape(result.shape)))
    return [*gaps, gaps[0]] if all(gap.agrees for gap in gaps) else []


def output_error(result: Tensor, eager: Tensor, exact: Tensor) -> OutputError:
    """How far a result and eager's lie from the exact one, and whether the first is excused by the second.

    Floating point: the root mean square of the error may be three times eager's plus a tenth of the
    tolerance; the share of elements beyond the tolerance three times eager's plus 1e-5; and no element may be
    infinite or NaN where the other two are not. Integers, booleans: the share that differs, so limited.
    """
    import torch

    if not result.is_floating_point() and not result.is_complex():
        compiled = float((result.double() != exact.double()).double().mean())
        other = float((eager.double() != exact.double()).double().mean())
        return OutputError(compiled <= MULTIPLIER * other + BEYOND, compiled, other)
    tolerance = TOLERANCES.get(str(result.dtype).removeprefix("torch."), 1e-4)
    result, eager, exact = (x.double() for x in (result, eager.to(result.dtype), exact))
    usable = torch.isfinite(exact) & torch.isfinite(eager)
    if not bool(usable.any()):
        same = bool((torch.isfinite(result) == torch.isfinite(eager)).all())
        return OutputError(same, 0.0 if same else float("inf"), 0.0)
    if bool((usable & ~torch.isfinite(result)).any()):
        return OutputError(False, float("inf"), 0.0)
    zero = torch.zeros((), dtype=torch.float64, device=exact.device)
    exact = torch.where(usable, exact, zero)
    count = usable.sum()
    scale = torch.sqrt((exact * exact).sum() / count).clamp(min=1e-300)
    limit = tolerance * (exact.abs() + scale)

    def errors(values: Tensor) -> tuple[float, float, float]:
        off = torch.where(usable, values - exact, zero).abs()
        spread = torch.sqrt((off * off).sum() / count) / scale
        return float(spread), float((off > limit).sum() / count), float(off.max() / scale)

    compiled, uncompiled = errors(result), errors(eager)
    close = compiled[0] <= MULTIPLIER * uncompiled[0] + tolerance / 10
    few = compiled[1] <= MULTIPLIER * uncompiled[1] + BEYOND
    return OutputError(close and few, compiled[2], uncompiled[2])
