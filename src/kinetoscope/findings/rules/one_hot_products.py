"""A product with rows of zeros and a one, where a lookup would do.

What it finds
    ``F.one_hot(x, n).float() @ table``, ``nn.Linear`` of such rows, and the same of rows that ``scatter_``
    writes ones into.

Why it is slow
    Each row of the result is a row of the table. Instead of reading that, the device writes n numbers for
    each, changes their type, and multiplies them all; in the backward pass it reads them again.

How it decides
    By the sizes of what ops get, which ``kinetoscope run`` notes in one step: the first op that gets the
    rows, but for views and changes of type, is a product with a matrix of 64 rows or more. What makes the
    rows goes where nothing else gets them, and of the product and of its gradient what is more than a lookup
    and its gradient take, by the bytes that they move. Beyond 3,072 rows a lookup's gradient sorts them by
    some 30 launches, which keep the host as busy as making the rows does: its time stays.

What to do
    Look the rows up: ``nn.Embedding`` (its weight is the transposed one of ``nn.Linear``), or index the
    table.

Source
    PyTorch documentation, ``torch.nn.Embedding``; ``torch.nn.functional.one_hot``.
"""

from kinetoscope.analysis.cost.roofline import device_spec
from kinetoscope.analysis.events.backward import in_backward
from kinetoscope.analysis.origins.one_hot import OneHotProducts, one_hot_products
from kinetoscope.findings.rule import *
from kinetoscope.findings.sized import noted_sizes, work_and_gradients

SIZE = 4  # bytes of a number, at most, of those that are multiplied fast
SORTED = 128  # bytes per row that sorting its number reads and writes: 8 each, and again, in eight passes
# Of an H200 for a lookup's gradient of 4,096 rows, beyond its bytes: sorting, and adding what is there twice.
GRADIENT_NS = 100_000
ONE_KERNEL = 3_072  # rows up to which that gradient is one kernel; beyond it torch sorts them


def find(view: RankView) -> Findings:
    noted = noted_sizes(view)
    if noted is None:
        return
    sized, row = noted
    known = dict[tuple[int, int], list[OneHotProducts]]()
    for one in one_hot_products(sized):
        known.setdefault((one.rows, one.columns), []).append(one)
    host = view.trace.host_events
    for (rows, columns), same in known.items():
        parts, called, names = list[pl.DataFrame](), list[pl.Series](), set[str]()
        learns = False
        for number, name, width in {product for one in same for product in one.products}:
            ops = host.filter(row == number)
            work = work_and_gradients(view, ops)
            learns |= in_backward(view.trace).gather(work["op"]).any()
            parts.append(_beyond_lookup(view, work, rows, columns, width))
            called.append(ops["id"])
            names.add(name)
        made = _inside(view, row, [op for one in same for op in one.made])
        # What is not wholly gone keeps its launch.
        kept_ns = 1.0 if learns and rows > ONE_KERNEL else 0.0
        makers = view.computed.filter(pl.col("op").is_in(made))
        parts.append(makers.select("id", saved_ns=pl.col("duration_ns") - kept_ns))
        gone = pl.concat(parts).group_by("id", maintain_order=True).agg(pl.max("saved_ns"))
        work = view.computed.filter(pl.col("id").is_in(gone["id"].implode()))
        yield Finding(
            subject=f"{rows} × {columns}",
            title=f"{rows:,} rows of zeros and a one are multiplied by a table of {columns:,} rows "
            f"({', '.join(sorted(names))})",
            affected_us=view.us_of(work),
            saving=savings.device(view, gone, "a lookup in their place"),
            evidence=[evidence.of(view, "what makes the rows, the product, and its gradient", work)],
            advice="Look up the rows of the table: a one in a row picks one of them.",
            snippet="x = F.embedding(items, table)  # in place of F.one_hot(items, n).float() @ table",
            source=evidence.source(view, pl.concat(called)),
        )


def _inside(view: RankView, row: pl.Series, noted: list[int]) -> pl.Series:
    """The ops in and below those of these noted rows, of all recorded steps, as one list."""
    host = view.trace.host_events
    ops = host["id"].filter(row.is_in(noted))
    return host["id"].filter(view.inside_of(ops).is_not_null()).implode()


def _beyond_lookup(view: RankView, work: pl.DataFrame, rows: int, columns: int, width: int) -> pl.DataFrame:
    """The products of a layer and of its gradient (``id``), and what a lookup takes less (``saved_ns``)."""
    spec = device_spec(view.trace, view.device.index) if view.device else None
    ns_per_byte = 1e9 / spec.bandwidth if spec else 0.0
    moved = 2 * rows * width * SIZE
    forward = FIXED_NS + moved * ns_per_byte
    backward = GRADIENT_NS + (moved + columns * width * SIZE + rows * SORTED) * ns_per_byte
    products = work.filter(matching(work, "category", "^matmul$"))
    left = pl.when(in_backward(view.trace).gather(products["op"])).then(backward).otherwise(forward)
    return products.select("id", saved_ns=(pl.col("duration_ns") - left).clip(0.0))
