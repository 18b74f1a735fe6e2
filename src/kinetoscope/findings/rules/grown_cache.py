"""A cache is copied whole each time that something is added to it.

What it finds
    Concatenations (``torch.cat``) that append to what they made in the step before: keys and values of each
    new token, in each layer; predictions of an evaluation, a queue of features.

Why it is slow
    ``torch.cat`` makes a new tensor: all that was there is read and written for each little that comes to it.
    A cache of keys and values is read once by attention, so that two thirds of the bytes are copies, and more
    as it gets longer.

How it decides
    By shapes where they were recorded: from pass to pass, of three or more, concatenations are as long as
    before with what was added, a quarter of their length at the most. Else by the program's source: what is
    concatenated is kept under its own name (``self.k = torch.cat([self.k, k])``) or as a cache; or by the
    kernels: the two right before attention take ten times as long as any elementwise kernel or norm of their
    layer, and four times as long as its products. The new part's share of the time stays, and at least 3 µs
    of each kernel.

What to do
    Reserve memory for as much as there will be, write each part into it, and read a slice of it:
    ``self.k[:, :, at : at + new] = k``. In transformers: ``cache_implementation="static"``. Of an evaluation
    keep a list, and concatenate it once.

Source
    "Efficient Memory Management for Large Language Model Serving with PagedAttention" (Kwon and others,
    2023), section 3; transformers, "Cache strategies".
"""

import ast
import json
import re
from collections import defaultdict
from itertools import groupby, pairwise

from kinetoscope.analysis.origins.source import Located, last_name
from kinetoscope.findings.program_lines import statement
from kinetoscope.findings.rule import *

CAT = re.compile(r"cat|concat|concatenate")
CACHE = re.compile(r"(?i)cache|(^|[._])kv($|[._])|past_(k|v)|layer_past")
CACHE_OF_CALLER = "caller.cache"
PASSES = 3
TWICE = 2  # keys and values: of features that grow from layer to layer each size is there once
LONGER = 4  # times what is added
NEAR = 5  # kernels, the last of which is attention: heads of keys may be repeated in between
# How many times as long as what a layer computes, by category: a product writes what a concatenation reads
# and writes once more, and an elementwise kernel or a norm moves as much as is new.
TIMES = {"matmul": 4, "elementwise": 10, "normalization": 10}


def find(view: RankView) -> Findings:
    work = view.work.filter(matching(view.work, "op_name", "^aten::cat$"))
    if view.us_of(work) < LOW * view.step_us:
        return
    ops = work["op"].unique().sort()
    if view.trace.argument("input_dims", ops).null_count() < len(ops):
        added = _by_shapes(view, ops)
    else:
        added = _by_kernels(view) | _by_source(view, work)
    share = pl.col("op").replace_strict(added, default=None, return_dtype=pl.Float64)
    work = work.with_columns(added=share).drop_nulls("added").sort("start_ns")
    if work.is_empty():
        return
    left = pl.max_horizontal(pl.col("duration_ns") * pl.col("added"), FIXED_NS)
    work = work.with_columns(saved_ns=(pl.col("duration_ns") - left).clip(0))
    number = view.counted(work["op"].n_unique(), "concatenation")
    yield Finding(
        title=f"{number} per {view.unit} of all that was kept with a little that is new, more each time: "
        f"{numbers.time(view.us_of(work))}",
        affected_us=view.us_of(work),
        saving=savings.device(view, work, "the concatenations, but for writing what is new"),
        evidence=[evidence.of(view, short_name(str(work["name"][0])), work)],
        advice="Reserve memory for as much as there will be, write what is new into it, and read a slice: "
        'of keys and values in transformers by cache_implementation="static".',
        snippet="self.k[:, :, at : at + new] = k\nk = self.k[:, :, : at + new]",
        source=evidence.source(view, work["op"]),
    )


def _by_shapes(view: RankView, ops: pl.Series) -> dict[int, float]:
    """The concatenations that get longer from pass to pass by what each adds, and its share of them."""
    host = view.trace.host_events
    sequences = defaultdict[tuple[int, int, str, int], list[tuple[int, int]]](list)
    for op in map(int, ops):
        dims, options = (view.trace.argument(name, op) for name in ("input_dims", "concrete_inputs"))
        shapes, along = (json.loads(dims)[0] if dims else []), (json.loads(options)[-1] if options else "")
        if len(shapes) != 2 or not 0 < len(shapes[0]) == len(shapes[1]) or not re.fullmatch(r"-?\d+", along):
            continue
        dim = int(along) % len(shapes[0])
        sizes = sorted(shape.pop(dim) for shape in shapes)
        sequences[host["lane"][op], dim, str(shapes), sizes[0]].append((op, sizes[1]))
    found: dict[int, float] = {}
    for (*_, added), sequence in sequences.items():
        passes = [list(one) for _, one in groupby(sequence, lambda pair: pair[1])]
        lengths = [one[0][1] for one in passes]
        longer = [after - before for before, after in pairwise(lengths) if after > before]
        is_grown = len(longer) >= PASSES - 1 and set(longer) == {added} and min(lengths) >= LONGER * added
        if is_grown and len({len(one) for one in passes}) == 1 and len(passes[0]) >= TWICE:
            found |= {op: added / (length + added) for op, length in sequence}
    return found


def _by_source(view: RankView, work: pl.DataFrame) -> dict[int, float]:
    """The concatenations kept under the name of what they append to, and by how much longer they get."""
    if view.lines is None:
        return {}
    work = work.select("op", "step", "duration_ns", line=view.lines.rows["line"].gather(work["op"]))
    found: dict[int, float] = {}
    for _, at in work.drop_nulls("line").group_by("line", maintain_order=True):
        of = statement(view, at["op"][0])
        if of is not None and _is_kept(of):
            found |= _growing(at)
    return found


def _by_kernels(view: RankView) -> dict[int, float]:
    """The two right before attention, in half of all layers or more, that take far longer than what their
    layer computes: most of what they move was there before."""
    work = view.work.filter(view.work["kind"] == "kernel").sort("start_ns")
    attends = matching(work, "category", "^attention$")
    times = pl.col("category").cast(pl.String).replace_strict(TIMES, default=0)
    work = work.with_columns(
        is_cat=matching(work, "op_name", "^aten::cat$"), layer=attends.cum_sum() - attends, times=times
    ).filter(pl.lit(attends).any().over("layer"))
    place = pl.int_range(pl.len(), 0, -1).over("layer")  # the last is attention
    enough = (pl.col("duration_ns") * pl.col("times")).max().over("layer")
    copies = work.filter("is_cat", place <= NEAR, enough > 0, pl.col("duration_ns") >= enough)
    copies = copies.filter(pl.len().over("layer") == TWICE)
    return _growing(copies) if 2 * copies["layer"].n_unique() >= max(1, int(attends.sum())) else {}


def _growing(work: pl.DataFrame) -> dict[int, float]:
    """Concatenations, and by how much longer than in the step before they take."""
    each = work.group_by("step", maintain_order=True).agg(pl.mean("duration_ns"))["duration_ns"]
    longer = (each[-1] / each[0] - 1) / max(1, len(each) - 1) if len(each) else 0.0
    return dict.fromkeys(work["op"], max(0.0, longer))


def _is_kept(of: Located) -> bool:
    """Whether all that a statement concatenates is kept as that to which it appends."""
    if of.source is None or of.statement is None:
        return False
    own = [one for one, within in of.source.function.items() if within is of.function]
    calls = [part for part in of.source.parts[of.statement] if isinstance(part, ast.Call)]
    calls = [call for call in calls if CAT.fullmatch(last_name(call.func))]
    return bool(calls) and all(_appends(call, _kept(call, own)) for call in calls)


def _appends(call: ast.Call, kept: set[str]) -> bool:
    """Whether what is kept is one of the pieces and more: by its name, or as a cache."""
    pieces = call.args[0].elts if call.args and isinstance(call.args[0], ast.List | ast.Tuple) else []
    names = {ast.unparse(piece) for piece in pieces}
    return bool(names & kept) or all(any(map(CACHE.search, found)) for found in (names, kept))


def _kept(result: ast.expr, statements: list[ast.stmt]) -> set[str]:
    """The names under which a result is kept once its function has ended, such as ``self.k``; a cache of the
    caller's is one that is returned with something else."""
    bound = [
        pair
        for one in statements
        if isinstance(one, ast.Assign)
        for pair in _bound(one.targets[0], one.value)
    ]
    names, found = set[str](), {target for target, value in bound if value is result}
    while not found <= names:
        names |= found
        found = {target for target, value in bound if names & _elements(value)}
    for one in statements:
        if isinstance(one, ast.Return) and one.value is not None:
            returned = _elements(one.value)
            names |= {CACHE_OF_CALLER} if returned & names and returned - names else set()
    return {name for name in names if not name.isidentifier()}


def _bound(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr]]:
    """Names and values of an assignment, part by part."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return [pair for two in zip(target.elts, value.elts, strict=False) for pair in _bound(*two)]
    return [(ast.unparse(target), value)]


def _elements(value: ast.expr) -> set[str]:
    """The names that a tuple, or a tuple in it, puts together; of anything else itself."""
    if isinstance(value, ast.Tuple):
        return {name for part in value.elts for name in _elements(part)}
    return {ast.unparse(value)}
