"""A sparse matrix is transposed anew in each backward pass.

What it finds
    Backward passes of products with sparse matrices that sort the matrix (``coalesce``) or convert it to
    another form (``to_sparse_csr``, cuSPARSE's ``csr2csc``).

Why it is slow
    The gradient of ``torch.sparse.mm(matrix, x)`` is a product with the transpose. A transposed matrix in COO
    form is not sorted, so that all its entries are sorted and added up before the product, for which the host
    waits, and again for the next product with the same matrix.

How it decides
    Ops that sort or convert a sparse matrix inside of a node of autograd, with the work they launch, their
    time on the host and their waits, and the conversion of COO to CSR before each product. All of it goes;
    where the forward pass sorts as well, so that the matrix is a new one in each step, one of a step stays.
    How much faster the products are in CSR form is not known; at most all of their time.

What to do
    Make the transpose once, before the loop, both in CSR form, and multiply by it in the backward pass of an
    autograd function. A symmetric matrix (a normalised adjacency) is its own transpose.

Source
    PyTorch, torch.sparse, "Sparse COO tensors": uncoalesced tensors; pytorch/pytorch issue 141844.
"""

from kinetoscope.analysis.events.backward import in_backward
from kinetoscope.analysis.events.enclosing import nearest
from kinetoscope.analysis.events.rows import END
from kinetoscope.analysis.events.torch_names import SYNCHRONIZATION
from kinetoscope.analysis.origins.attribution import attribution
from kinetoscope.findings.rule import *

CONVERTS = r"^aten::(_coalesce|_?to_sparse_cs[rc])$"
TRANSPOSES = r"(?i)csr2csc|CooToCsr|CsrToCsc"
PRODUCTS = r"(?i)csrmm|spmm"
SNIPPET = """class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, matrix, transposed, x):
        ctx.transposed = transposed
        return matrix @ x
    @staticmethod
    def backward(ctx, gradient):
        return None, None, ctx.transposed @ gradient"""


def find(view: RankView) -> Findings:
    host = view.trace.host_events
    converts, transposes = matching(host, "name", CONVERTS), view.kernels(TRANSPOSES)
    if not converts.any() and transposes.is_empty():
        return
    calls = intervals.outermost(view.inside(host.filter(converts)).with_columns(END), ["lane"])
    backward = in_backward(view.trace)
    sorts = calls.filter(backward.gather(calls["id"]))
    gone = pl.concat([view.launched_during(sorts)["id"], transposes["id"]]).unique()
    work = view.work.filter(view.work["id"].is_in(gone.implode()))
    back = work.filter(backward.gather(work["launch"]).fill_null(False))
    if back.is_empty():
        return
    ops = transposes.filter(transposes["id"].is_in(back["id"].implode()))["op"]
    times = max(len(sorts), ops.n_unique())
    is_new = len(sorts) < len(calls)  # the forward pass makes a matrix as well
    share = 1 - view.steps / max(times, view.steps) if is_new else 1.0
    waits = nearest(host, matching(host, "name", SYNCHRONIZATION) & nearest(host, converts).is_not_null())
    change = without_host(sorts, share) | no_wait(waits.drop_nulls() if share == 1 else waits.clear())
    basis = "the sorting and conversion, with its calls and waits"
    saving = savings.device(view, work, basis, pl.col("duration_ns") * share, change)
    yield Finding(
        title=f"The backward pass transposes sparse matrices {view.counted(times, 'time')} per {view.unit}",
        affected_us=view.us_of(back),
        saving=replace(saving, most_us=saving.most_us + view.us_of(view.kernels(PRODUCTS))),
        evidence=[evidence.of(view, "the longest of this work", back.sort("duration_ns", descending=True))],
        advice="Make the transpose of a matrix that does not change once, before the loop, keep both in CSR "
        "form, and multiply by it in the backward pass of an autograd function; a symmetric matrix is its "
        "own transpose.",
        snippet=SNIPPET,
        source=evidence.source(view, attribution(view.trace)["forward_op"].gather(back["id"])),
    )
