"""Differences or products of all pairs are written out, and summed up.

What it finds
    Distances and similarities of all pairs by broadcasting: ``((x[:, None] - y[None]) ** 2).sum(-1)``, its
    norm, ``(x[:, None] * y[None]).sum(-1)``, ``cosine_similarity(x[:, None], y[None], dim=-1)``.

Why it is slow
    Of n and m vectors of d numbers, n x m x d numbers are written, read, squared, written and read again, and
    as many in the backward pass. A matrix product keeps them on the chip and writes n x m.

How it decides
    By the order of ops in a thread: two ``unsqueeze`` (which indexing with ``None`` calls), a difference and
    its square or norm, or a product, and a sum or mean; or ``cosine_similarity`` or ``pairwise_distance``.
    The kernel has to be the one for operands of different shapes, and each operand needs a new dimension, by
    recorded shapes or the program's source. These ops' kernels and their gradients' go, but for half of the
    first: the product writes one number for each pair. ``unfused-elementwise`` counts the same kernels, and
    advises to compile them.

What to do
    ``torch.cdist(x, y)`` for distances, ``x @ y.T`` for products (of normalized vectors for cosines),
    ``x2[:, None] + y2 - 2 * x @ y.T`` for squares: for small distances between large vectors in float32,
    without TF32. If few of the pairs matter, choose these first.

Source
    PyTorch documentation of ``torch.cdist``, ``compute_mode``; cornellius-gp/gpytorch #706.
"""

import ast
import json
import re
from functools import cache

from kinetoscope.analysis.origins.attribution import attribution, origins
from kinetoscope.findings.rule import *

# The ops of a thread that no other one is around, a letter each.
LETTERS = {
    "u": "unsqueeze",
    "v": "slice|select|view|expand|permute|transpose|t",
    "-": "sub",
    "*": "mul",
    "p": "pow|square",
    "+": "sum|mean",
    "n": "linalg_vector_norm|linalg_norm|norm|frobenius_norm",
    "d": "cosine_similarity|pairwise_distance",
}
LETTER = {f"aten::{op}": letter for letter, ops in LETTERS.items() for op in ops.split("|")}
PAIRS = re.compile(r"u[uv]*u[uv]*(?P<ops>-[p*]\+|-n|\*\+|d)")
BROADCAST = r"(^|[ :])elementwise_kernel<"  # of one shape alone: vectorized_, unrolled_elementwise_kernel
KEPT = 0.5  # of the first kernel's time


def find(view: RankView) -> Findings:
    ops = _pairs(view)
    if ops.is_empty():
        return
    host = view.trace.host_events
    within = view.inside_of(ops["id"])
    work = view.computed
    if view.on_cpu:
        forward, repeats = origins(view.trace, work["launch"])["forward_op"], pl.lit(True)
    else:
        forward = attribution(view.trace)["forward_op"].gather(work["id"])
        repeats = matching(work, "name", BROADCAST)
    work = work.with_columns(
        id_of_op=within.gather(pl.select(pl.coalesce(forward, work["launch"])).to_series()),
        first=forward.is_null() & repeats,
    )
    work = work.join(ops, left_on="id_of_op", right_on="id").sort("start_ns")
    work = work.with_columns(first=pl.col("first") & pl.col("first").cum_sum().over("pair").eq(1))
    work = work.filter(pl.col("first").any().over("pair"))
    if work.is_empty():
        return
    saved = pl.col("duration_ns") * pl.when("first").then(1 - KEPT).otherwise(1.0)
    written = work.filter("first")
    names = host["name"].gather(written["id_of_op"]).cast(pl.String).str.strip_prefix("aten::")
    yield Finding(
        title=f"{view.counted(len(written), 'difference or product')} of all pairs per {view.unit} "
        f"{'is' if len(written) == view.steps else 'are'} written out and summed up: "
        f"{numbers.time(view.us_of(work))} with their gradients",
        affected_us=view.us_of(work),
        saving=savings.device(
            view, work, "their kernels, but for half of the time in which the pairs are written", saved
        ),
        evidence=[evidence.of(view, f"of all pairs: {names.mode()[0]}", written)],
        advice="Use torch.cdist for distances, a matrix product for products and cosines: it keeps what "
        "belongs to a pair on the chip, and writes the sum alone.",
        snippet="distances = torch.cdist(x, y)  # of squares: x2[:, None] + y2 - 2 * x @ y.T",
        source=evidence.source(view, written["op"]),
    )


def _pairs(view: RankView) -> pl.DataFrame:
    """The ops that compute with all pairs, and the number of their ``pair``."""
    letters = view.called["name"].cast(pl.String).replace_strict(LETTER, default=".")
    called = view.called.select("id", "lane", letter=letters)
    found: list[tuple[int, int]] = []
    for (_,), ops in called.group_by("lane", maintain_order=True):
        ids = ops["id"]
        for match in PAIRS.finditer(ops["letter"].str.join("")[0]):
            first = ids[match.start("ops")]
            if _of_both(view, first):
                found += [(ids[row], first) for row in range(*match.span("ops"))]
    return pl.DataFrame(found, {"id": pl.UInt32, "pair": pl.UInt32}, orient="row")


def _of_both(view: RankView, op: int) -> bool:
    """Whether each operand has a new dimension that the other one fills."""
    if dims := view.trace.argument("input_dims", op):
        left, right = json.loads(dims)[:2]
        sizes = list(zip(reversed(left), reversed(right), strict=False))
        return any(a == 1 < b for a, b in sizes) and any(b == 1 < a for a, b in sizes)
    file, _, number = (evidence.source(view, pl.Series([op])) or "").rpartition(":")
    texts = (text for path, text in view.run.program.items() if file and f"/{path}".endswith(f"/{file}"))
    return any(int(number) in _lines(text) for text in texts)


@cache
def _lines(text: str) -> frozenset[int]:
    """The lines of a file that compute with two operands, each indexed with None or unsqueezed."""
    found = set[int]()
    try:
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.BinOp | ast.Call)]
    except SyntaxError:  # a cell with magics
        return frozenset()
    for node in nodes:
        operands = [node.left, node.right] if isinstance(node, ast.BinOp) else node.args[:2]
        if len(operands) == 2 and all(any(map(_widens, ast.walk(operand))) for operand in operands):
            found |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return frozenset(found)


def _widens(node: ast.AST) -> bool:
    if isinstance(node, ast.Subscript):
        return any(isinstance(part, ast.Constant) and part.value is None for part in ast.walk(node.slice))
    return isinstance(node, ast.Attribute) and node.attr == "unsqueeze"
