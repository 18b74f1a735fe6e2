"""The values that a kernel should have computed: its graph fragment, run with torch's own operators.

Run twice: as PyTorch would without compiling, every operation rounded to its own type, and with every
floating type replaced by float64. The second is the truth; the first shows how far honest rounding goes.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kinetoscope.bench.reference.fragment import Fragment, FragmentNode, Ref, Torch, Value, Word
from kinetoscope.bench.torch_names import Tensor

# Library calls: a fragment names them where it prepares their inputs; a generated kernel never computes one.
_LIBRARY = re.compile(
    r"convolution|convolution_backward|mm|addmm|bmm|baddbmm|_scaled_dot\w*|_int_mm|_scaled_mm"
)
_RANDOM = re.compile(
    r"rand|bernoulli|dropout|normal_|multinomial|exponential|inductor_seed|inductor_lookup_seed"
)
# Operators whose result is in parts, all of which are unpacked.
_IN_PARTS = ("var_mean.correction", "split.Tensor", "split_with_sizes.default", "unbind.int")
_OPERATORS = {
    "getitem": operator.getitem,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
}
_DEVICE_WORD = re.compile(r"(cpu|cuda|xpu|mps|meta)(:\d+)?")


class UnknownOperationError(ValueError):
    """The reference cannot run an operation of the fragment; the text says which and why."""


def run(
    fragment: Fragment, inputs: Mapping[str, Tensor], device: str, keep: Sequence[str], *, exact: bool
) -> dict[str, Tensor]:
    """The values of a fragment's nodes that ``inputs`` (placeholder → tensor) determine; those that are not
    to be kept are let go after their last use. ``device``: where constants of the graph are made. ``exact``:
    in float64 throughout. Raises UnknownOperationError where an operation is unknown, random, or failed."""
    import torch

    values: dict[str, Tensor] = {
        name: _widen(torch, value) if exact else value for name, value in inputs.items()
    }
    elements = _elements(fragment)
    last = {name: node.name for node in fragment.nodes.values() for name in node.inputs()}
    kept = {*keep, *inputs, *(whole for whole, _ in elements.values())}
    loose = [name for name in inputs if name not in last and name not in fragment.nodes]
    with torch.no_grad():
        for node in fragment.nodes.values():
            if node.name in values:  # read from memory, though the graph says how it is made
                continue
            missing = [name for name in node.inputs() if name not in values]
            for name in list(missing):
                if name in elements and elements[name][0] in values:
                    whole, place = elements[name]
                    values[name] = values[whole][place]
                    missing.remove(name)
                elif (variance := _variance(fragment, name, loose, values)) is not None:
                    values[name] = variance
                    missing.remove(name)
            if missing or _is_library(node):
                partial = _second_half(node, loose, values)
                if partial is None:
                    continue
                values[node.name] = partial
            else:
                values[node.name] = _apply(torch, node, values, device, exact)
            for name in node.inputs():
                if last[name] == node.name and name not in kept:
                    values.pop(name, None)
    for name, (whole, place) in elements.items():
        if whole in values:
            values.setdefault(name, values[whole][place])
    return values


def stand_ins(fragment: Fragment, outside: Sequence[str]) -> dict[str, str]:
    """Names that nodes read and that no placeholder or node stands for → the placeholder that carries them.

    A buffer is called by the last node that made it what it is: the copy that will overwrite it, or a view.
    """
    known = {*fragment.placeholders, *fragment.nodes, *_elements(fragment)}
    named = list(dict.fromkeys(name for node in fragment.nodes.values() for name in node.inputs()))
    carriers: dict[str, str] = {}
    for name in outside:
        node = fragment.nodes.get(name)
        if node is not None and node.target.split(".")[-2].endswith("_") and isinstance(node.args[0], Ref):
            carriers[node.args[0].name] = name
    missing = [name for name in named if name not in known and name not in carriers]
    loose = [
        name for name in outside if name not in named and name not in carriers.values() and name[:3] != "buf"
    ]
    if len(missing) == len(loose):
        return carriers | dict(zip(missing, loose, strict=True))
    # A buffer without a name of its own, as large as what is made of it: one element of each other.
    buffers = [name for name in outside if name not in named and name not in carriers.values()]
    if len(missing) == len(buffers) == 1 and not missing[0].startswith("getitem"):
        kind = fragment.placeholders[buffers[0]]
        users = [node.type for node in fragment.nodes.values() if missing[0] in node.inputs()]
        if kind is not None and all(user is not None and user.shape == kind.shape for user in users):
            carriers[missing[0]] = buffers[0]
    return carriers


def guessed(fragment: Fragment, name: str, inputs: Mapping[str, Tensor]) -> bool:
    """Whether a value rests on names that the fragment lacks: what stands for them is likely, not certain."""
    todo, seen = [name], set[str]()
    while todo:
        name = todo.pop()
        if name in seen or (name in inputs and name in fragment.placeholders):
            continue
        seen.add(name)
        node = fragment.nodes.get(name)
        if node is None or _is_library(node):
            return True
        todo += node.inputs()
    return False


def leaves(fragment: Fragment) -> list[str]:
    """Nodes that only library calls read, or none: a kernel may write them under a name that is not here."""
    used = {name for node in fragment.nodes.values() if not _is_library(node) for name in node.inputs()}
    return [node.name for node in fragment.nodes.values() if node.name not in used and not _is_library(node)]


def _is_library(node: FragmentNode) -> bool:
    return _LIBRARY.fullmatch(node.target.split(".")[-2]) is not None


def _elements(fragment: Fragment) -> dict[str, tuple[str, int]]:
    """``getitem_4`` → (``var_mean_2``, 0) for parts of a result whose getitem nodes the fragment leaves out.

    Parts are numbered one after the other (of var_mean the variance first), in the order of the results. One
    of var_mean's two may stand in the fragment.
    """
    wholes = [n for n in fragment.nodes.values() if n.target.removeprefix("torch.ops.aten.") in _IN_PARTS]
    outside = {name for name in fragment.placeholders if name not in fragment.returns}
    named = {
        *fragment.returns,
        *(name for node in fragment.nodes.values() for name in node.inputs()),
    } - outside
    number = {
        name: int(name.partition("_")[2] or 0) for name in named if re.fullmatch(r"getitem(_\d+)?", name)
    }
    missing = sorted((name for name in number if name not in fragment.nodes), key=number.__getitem__)
    places = [(node.name, place) for node in wholes for place in range(_part_count(fragment, node))]
    if missing and number[missing[-1]] - number[missing[0]] + 1 == len(places):
        # One after the other without a gap: they are the parts of these results, in order.
        every = dict(enumerate(places, number[missing[0]]))
        return {name: every[number[name]] for name in missing}
    if len(wholes) != 1 or "var_mean" not in wholes[0].target:
        return {}
    given = [
        number[node.name] - node.args[1]
        for node in fragment.nodes.values()
        if node.args[:1] == (Ref(wholes[0].name),) and node.name in number and isinstance(node.args[1], int)
    ]
    if not given:
        return {}
    first = given[0]
    return {name: (wholes[0].name, place) for name in missing if (place := number[name] - first) in (0, 1)}


def _part_count(fragment: Fragment, node: FragmentNode) -> int:
    """How many parts a result has; those that are used, where its size is unknown."""
    name, (whole, *rest) = node.target.split(".")[-2], node.args
    if name == "split_with_sizes" and isinstance(rest[0], list):
        return len(rest[0])
    if name == "split" and isinstance(whole, Ref) and isinstance(rest[0], int):
        origin = fragment.nodes.get(whole.name)
        kind = origin.type if origin else fragment.placeholders.get(whole.name)
        dimension = rest[1] if len(rest) > 1 and isinstance(rest[1], int) else 0
        if kind is not None and (size := kind.shape[dimension]) is not None:
            return -(-size // rest[0])
    return node.users


def _second_half(node: FragmentNode, loose: list[str], values: Mapping[str, Tensor]) -> Tensor | None:
    """A value whose own inputs are not here, from a placeholder that no node names.

    The second kernel of a sum in two steps reads partial sums; one behind a convolution adds its bias.
    """
    if node.type is None or None in node.type.shape:
        return None
    shape = [size for size in node.type.shape if size is not None]
    count, name = math.prod(shape), node.target.split(".")[-2]
    for other in list(loose):
        partial = values[other]
        if name == "sum" and partial.dim() > 0 and partial.numel() == count * partial.shape[-1]:
            loose.remove(other)
            return partial.sum(-1).reshape(shape)
        bias = node.args[2] if name == "convolution" else None
        if isinstance(bias, Ref) and bias.name in values and partial.numel() == count:
            loose.remove(other)
            column = values[bias.name].reshape([1, -1] + [1] * (len(shape) - 2))
            return partial.reshape(shape) + column.to(partial.dtype)
    return None


def _variance(fragment: Fragment, name: str, loose: list[str], values: Mapping[str, Tensor]) -> Tensor | None:
    """A variance that is not here, from the sum of squares that is: the buffer numbered next to the mean."""
    match = re.fullmatch(r"getitem(?:_(\d+))?", name)
    mean = values.get(f"getitem_{int(match[1] or 0) + 1}") if match else None
    node = next(
        (n for n in fragment.nodes.values() if n.target == "torch.ops.aten.var_mean.correction"), None
    )
    if mean is None or node is None or not isinstance(node.args[0], Ref):
        return None
    whole = fragment.nodes.get(node.args[0].name)
    kind = whole.type if whole else fragment.placeholders.get(node.args[0].name)
    for other in loose:
        if kind and None not in kind.shape and values[other].numel() == mean.numel():
            loose.remove(other)
            count = math.prod(size for size in kind.shape if size is not None) // mean.numel()
            correction = node.kwargs.get("correction")
            return values[other] / (count - (correction if isinstance(correction, int) else 0))
    return None


def _apply(torch: Any, node: FragmentNode, values: Mapping[str, Tensor], device: str, exact: bool) -> Tensor:
    namespace, _, rest = node.target.removeprefix("torch.ops.").partition(".")
    name = rest.partition(".")[0]

    def plain(value: Value, key: str = "") -> Any:
        if isinstance(value, Ref):
            return values[value.name]
        if isinstance(value, Torch):
            constant = getattr(torch, value.name)
            wide = exact and isinstance(constant, torch.dtype) and constant.is_floating_point
            return torch.float64 if wide else constant
        if isinstance(value, Word):
            return device if _DEVICE_WORD.fullmatch(value.text) and key in ("", "device") else value.text
        if isinstance(value, list):
            return [plain(each) for each in value]
        return tuple(plain(each) for each in value) if isinstance(value, tuple) else value

    if _RANDOM.search(name):
        raise UnknownOperationError(f"{name} draws random numbers")
    args = [plain(value) for value in node.args]
    kwargs = {key: plain(value, key) for key, value in node.kwargs.items()}
    try:
        if namespace == "operator":
            return _OPERATORS[name](*args)
        if name == "copy_":
            return args[1].expand(args[0].shape)
        if namespace not in ("aten", "prims"):
            raise UnknownOperationError(f"{node.target} is no operation of ATen")
        function = torch.ops
        # Generated kernels leave their inputs alone unless they say so: the form that makes a new tensor.
        for part in (namespace, name.removesuffix("_"), node.target.rpartition(".")[2]):
            function = getattr(function, part)
        return function(*args, **kwargs)
    except UnknownOperationError:
        raise
    except Exception as error:  # whatever the operator raises on these inputs
        first = str(error).strip().partition("\n")[0]
        raise UnknownOperationError(f"{name} fails here: {type(error).__name__}: {first}") from error


def _widen(torch: Any, value: Tensor) -> Tensor:
    return value.to(torch.float64) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
