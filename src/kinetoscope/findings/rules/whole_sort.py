"""Everything is sorted, and only the first few are used.

What it finds
    Sorts on the device (``sort``, ``argsort``, ``msort``) of whose order only the first or the last few go
    on: the best hundred of all passages, the best boxes before overlapping ones are dropped.

Why it is slow
    A radix sort writes all numbers and their places (64 bits each) anew for each 8 bits of a number. ``topk``
    only looks for the number at which the first few end: it reads all numbers once for each 8 bits, and once
    more to pick.

How it decides
    By what becomes of the result: where shapes were recorded, slices of a tenth of it at the most, and no
    other op that takes as many places or numbers; else by the program's source, in which the sort, or each
    use of the name that it was given, is cut to ``[..., :k]``, and ``k`` is not computed as a part of
    something. Sampling that sums up sorted chances uses all of them. A sort moves 100 bytes or more of each
    number of 32 bits (counted once, then four times read and written with its place), ``topk`` 20: a fifth
    of the time stays, and at least 3 µs of each of its 20 kernels.

What to do
    ``scores.topk(k)``, with ``largest=False`` for the smallest. Among equal numbers it may choose others.

Source
    PyTorch documentation of ``torch.topk``; "Onesweep: A Faster Least Significant Digit Radix Sort for GPUs"
    (Adinets and Merrill, 2022).
"""

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

from kinetoscope.analysis.origins.source import Function, Located, ProgramFile, last_name, root
from kinetoscope.findings.program_lines import statement
from kinetoscope.findings.rule import *

SORT = re.compile(r"(?:arg|m)?sort")
RADIX = r"(?i)radix_?sort"
KEPT = 1 / 5
KERNELS = 20  # of a ``topk`` of long rows
FOLLOWED = 1000  # ops that may take what a sort gives
FEW = 10  # times fewer than are sorted: these are sorted after all


def find(view: RankView) -> Findings:
    radix = view.kernels(RADIX)
    if radix.is_empty():
        return
    sorts = pl.Series(list(_of_few(view)), dtype=pl.UInt32)
    work = view.work.with_columns(sort=view.inside_of(sorts).gather(view.work["launch"])).drop_nulls("sort")
    work = work.filter(pl.col("id").is_in(radix["id"].implode()).any().over("sort"))
    if work.is_empty():
        return
    whole_ns = pl.col("duration_ns").sum().over("sort")
    left = pl.max_horizontal(KEPT, KERNELS * FIXED_NS / whole_ns)
    work = work.with_columns(saved_ns=(pl.col("duration_ns") * (1 - left)).clip(0))
    work = work.sort("duration_ns", descending=True)
    number = view.counted(work["sort"].n_unique(), "sort")
    yield Finding(
        title=f"{number} of everything per {view.unit}, of which only the first few are used: "
        f"{numbers.time(view.us_of(work))}",
        affected_us=view.us_of(work),
        saving=savings.device(view, work, "a fifth of the sorts' time for finding the first few alone"),
        evidence=[evidence.of(view, short_name(str(work["name"][0])), work)],
        advice="Use topk, which orders no more than is asked for.",
        snippet="values, places = scores.topk(k)  # of the smallest: largest=False",
        source=evidence.source(view, work["sort"]),
    )


def _of_few(view: RankView) -> Iterator[int]:
    """The sorts of whose order only the first or the last few go on."""
    for _, ops in view.called.select("id", "lane", "name").group_by("lane", maintain_order=True):
        ids = list(map(int, ops["id"]))
        names = ops["name"].cast(pl.String).str.strip_prefix("aten::").to_list()
        for place, (row, name) in enumerate(zip(ids, names, strict=True)):
            if not SORT.fullmatch(name):
                continue
            if view.trace.argument("input_dims", row):
                then = slice(place + 1, place + 1 + FOLLOWED)
                following = zip(ids[then], names[then], strict=True)
                few = _few_by_shapes(view, row, name, following)
            else:
                few = _few_by_source(statement(view, row))
            if few:
                yield row


def _few_by_shapes(view: RankView, sort: int, name: str, following: Iterable[tuple[int, str]]) -> bool:
    """Whether ops after a sort take a few of what it gives, and none takes all of it."""
    sizes, types, given = _arguments(view, sort)
    if not sizes or not sizes[0] or not types:
        return False
    size, kind = sizes[0], types[0]
    dim = next((int(one) for one in given if re.fullmatch(r"-?\d+", one)), -1) % max(1, len(size))
    results = {"long int"} if name == "argsort" else {"long int", kind}
    found = False
    for row, op in following:
        shapes, kinds, values = _arguments(view, row)
        if SORT.fullmatch(op) and (shapes[:1], kinds[:1]) == ([size], [kind]):  # of the next step
            break
        if any(shape == size and of in results for shape, of in zip(shapes, kinds, strict=False)):
            if not _is_end(op, values[1:], dim, size[dim]):
                return False
            found = True
    return found


def _arguments(view: RankView, op: int) -> list[list[Any]]:
    """Shapes, types and values of an op's arguments, as they were recorded."""
    texts = (view.trace.argument(name, op) for name in ("input_dims", "input_types", "concrete_inputs"))
    return [json.loads(text) if text else [] for text in texts]


def _is_end(op: str, values: list[str], dim: int, length: int) -> bool:
    """Whether a view keeps a few of the first or the last of so many."""
    number = {"slice": 4, "narrow": 3, "select": 2}.get(op)
    if len(values) != number or not all(re.fullmatch(r"-?\d+", one) for one in values):
        return False
    along, first, *others = map(int, values)
    begin = first + length if first < 0 else first
    end = begin + 1 if op == "select" else begin + others[0] if op == "narrow" else others[0] % (1 << 63)
    end = min(length, end)
    return along == dim and (begin == 0 or end == length) and FEW * (end - begin) <= length


def _few_by_source(of: Located | None) -> bool:
    """Whether all sorts of a statement are cut to their first or last few, wherever their results go."""
    if of is None or of.source is None or of.statement is None:
        return False
    sorts = [part for part in of.source.parts[of.statement] if isinstance(part, ast.Call) and _called(part)]
    uses = _Uses(of.source, of.source.function[of.statement])
    return bool(sorts) and all(
        uses.are_few(sort, _dimension(sort), _called(sort) == "sort") for sort in sorts
    )


class _Uses:
    """The uses of results in a function of the program."""

    def __init__(self, source: ProgramFile, function: Function | None) -> None:
        own = [
            part
            for one, within in source.function.items()
            if within is function
            for part in source.parts[one]
        ]
        self.source = source
        self.around = {child: part for part in own for child in ast.iter_child_nodes(part)}
        self.names = [part for part in own if isinstance(part, ast.Name)]

    def are_few(self, result: ast.expr, dim: int | None, is_pair: bool) -> bool:
        """Whether all uses of a result, which is a pair of numbers and places, take its first or last few."""
        match around := self.around.get(result):
            case ast.Attribute(attr="values" | "indices"):
                return self.are_few(around, dim, False)
            case ast.Subscript(value=value, slice=index) if value is result:
                if not is_pair:
                    return self._is_end(index, dim)
                return isinstance(index, ast.Constant) and self.are_few(around, dim, False)
            case ast.Assign(targets=[ast.Tuple(elts=names)]) if is_pair:
                return self._all_few(names, dim, False)
            case ast.Assign(targets=[name]):
                return self._all_few([name], dim, is_pair)
            case _:
                return False

    def _all_few(self, bound: list[ast.expr], dim: int | None, is_pair: bool) -> bool:
        """The same of all uses of names, until they are bound again."""
        found = False
        for one in bound:
            if not isinstance(one, ast.Name):
                return False
            same = [name for name in self.names if name.id == one.id and name.lineno > one.lineno]
            until = min((name.lineno for name in same if isinstance(name.ctx, ast.Store)), default=None)
            for use in same:
                if isinstance(use.ctx, ast.Load) and (until is None or use.lineno <= until):
                    found = True
                    if not self.are_few(use, dim, is_pair):
                        return False
        return found

    def _is_end(self, index: ast.expr, dim: int | None) -> bool:
        """Whether an index keeps the first or the last few along the sorted dimension."""
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        cut = [part for part in parts if ast.unparse(part) not in (":", "...")]
        if len(cut) != 1 or dim is None or parts.index(cut[0]) != (dim + len(parts) if dim < 0 else dim):
            return False
        match cut[0]:
            case ast.Slice(lower=None, upper=ast.expr() as few, step=None):
                return self._is_few(few)
            case ast.Slice(lower=ast.UnaryOp(op=ast.USub(), operand=few), upper=None, step=None):
                return self._is_few(few)
            case other:
                return ast.unparse(other) in ("0", "-1")

    def _is_few(self, number: ast.expr) -> bool:
        """Whether a number is given: not computed as a part of something, which may be most of it."""
        if isinstance(number, ast.Name):
            return not any(
                isinstance(part, ast.BinOp)
                for one in self.source.function
                if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == number.id
                for part in self.source.parts[one]
            )
        is_least = isinstance(number, ast.Call) and ast.unparse(number.func) == "min"
        return isinstance(number, ast.Constant | ast.Attribute) or is_least


def _called(call: ast.Call) -> str:
    """``argsort`` of a call of that; empty of a call of what is no sort."""
    name = last_name(call.func)
    return name if SORT.fullmatch(name) else ""


def _dimension(call: ast.Call) -> int | None:
    """The dimension that a call sorts along; None where that is computed."""
    given = call.args[1:] if root(call.func) == "torch" else call.args
    named = [one.value for one in call.keywords if one.arg == "dim"]
    dims = [*named, *given[:1]]
    if _called(call) == "msort" or not dims:
        return 0 if _called(call) == "msort" else -1
    try:
        return int(ast.literal_eval(dims[0]))
    except ValueError:
        return None
