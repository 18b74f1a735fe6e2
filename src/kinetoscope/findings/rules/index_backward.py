"""Indexing in a loop makes autograd write whole tensors of zeros, and add them up, or copy whole gradients.

What it finds
    Gradients of ``w[i]``, ``x[a:b]`` and ``x[index]`` in a loop: a loop over the experts of one stacked
    parameter, over time steps, over heads. Gradients of ``out[:, i] = x`` in a loop: a tensor that is filled
    part by part.

Why it is slow
    The gradient of a part is a tensor of the whole's size, zero but for the part; autograd adds one such
    tensor for each part. A loop over n experts writes, reads and adds n times the whole parameter, where one
    write of the parts would do. Of a tensor that is written into n times, autograd copies the whole gradient
    n times, to cut one part out of each copy.

How it decides
    Device work inside the backward of select, slice, as_strided or index, at least four per step: fills and
    memsets, and the additions that autograd makes of the results. Their time counts as saved, on the device
    and, where the host sets the pace, there; the copies of the parts themselves remain. Of writes, the first
    copy in each ``CopySlices``, at least four per step.

What to do
    Take all parts at once (``unbind``, ``split``, ``chunk``): ``for w in weight.unbind(0)`` (its backward is
    one stack), or no loop at all: one batched or grouped product over all experts. Collect the parts in a
    list, and put them together by ``stack`` or ``cat``.

Source
    PyTorch's derivatives.yaml: ``select_backward`` and ``slice_backward`` start from ``zeros``;
    torch/csrc/autograd/functions/tensor.cpp, ``CopySlices::apply``.
"""

from kinetoscope.analysis.events.enclosing import caller
from kinetoscope.analysis.origins.attribution import attribution
from kinetoscope.findings.rule import *

NODES = r"^autograd::engine::evaluate_function: (Select|Slice|AsStrided|Index)Backward\d+$"
COPY = r"^aten::copy_$"
WHOLE = r"^aten::(zeros|zero_|fill_|new_zeros|add|add_)$"
WRITES = r"^torch::autograd::CopySlices$"
APART_NS = 20_000  # of the engine between its nodes
CALLS = 4  # per step: a single selection, such as that of the last token, is no loop


def find(view: RankView) -> Findings:
    yield from _selected(view)
    yield from _written(view)


def _selected(view: RankView) -> Findings:
    wasted = whole_tensors(view)
    nodes = wasted["node"].n_unique()
    if nodes < CALLS * view.steps:
        return
    additions = int(matching(wasted, "op_name", r"^aten::add_?$").sum())
    us = view.us_of(wasted)
    longest = wasted.sort("duration_ns", descending=True)
    basis = "the fills and additions, and the host's time for the nodes but one a tensor"
    calls = view.trace.host_events[wasted["node"].unique().sort()]
    loop = in_a_row(calls, APART_NS)
    share = min(1.0, additions / nodes)  # of n parts of one tensor, n - 1 are added
    forward = attribution(view.trace)["forward_op"][longest["id"]]
    yield Finding(
        title=f"Indexing in a loop ({view.per_step(nodes):,.0f} selections per {view.unit}) makes "
        f"autograd fill and add {view.per_step(len(wasted)):,.0f} full-size tensors "
        f"({view.per_step(additions):,.0f} additions)",
        affected_us=us,
        saving=savings.device(view, wasted, basis, "duration_ns", savings.called(view, loop, share)),
        evidence=[evidence.of(view, "the longest fills and additions", longest)],
        advice="Take all parts at once: unbind, split or chunk the tensor before the loop, or compute them "
        "in one product.",
        snippet="for expert, w in zip(experts, weight.unbind(0)): …  # instead of weight[i]",
        source=evidence.source(view, forward),
    )


def _written(view: RankView) -> Findings:
    host = view.trace.host_events
    above = host["parent"][view.work["op"]]
    copies = view.work.with_columns(node=above).filter(
        matching(host, "name", WRITES)[above].fill_null(False), matching(view.work, "op_name", COPY)
    )
    copies = copies.sort("start_ns").unique("node", keep="first", maintain_order=True)
    if len(copies) < CALLS * view.steps:
        return
    longest = copies.sort("duration_ns", descending=True)
    basis = "the copies of whole gradients, and the host's time for the nodes"
    calls = host[copies["node"].sort()]
    yield Finding(
        subject="writes",
        title=f"Writing into parts of a tensor in a loop ({view.per_step(len(copies)):,.0f} writes per "
        f"{view.unit}) makes autograd copy its whole gradient for each",
        affected_us=view.us_of(copies),
        saving=savings.device(view, copies, basis, "duration_ns", savings.called(view, calls)),
        evidence=[evidence.of(view, "the longest copies", longest)],
        advice="Collect the parts in a list and put them together at once: stack and cat hand each part its "
        "gradient without a copy of the whole.",
        snippet="out = torch.stack(parts, 1)  # instead of out[:, i] = part",
        source=evidence.source(view, attribution(view.trace)["forward_op"].gather(longest["id"])),
    )


def whole_tensors(view: RankView) -> pl.DataFrame:
    """The work that fills and adds tensors of the whole's size, with the autograd ``node`` that it is of."""
    host = view.trace.host_events
    node = view.around(NODES)[caller(view.work)]
    of_nodes = view.work.with_columns(node=node).drop_nulls("node")
    above = host["name"][host["parent"][of_nodes["op"]]].alias("above")
    table = of_nodes.with_columns(above)
    return table.filter(
        matching(table, "op_name", WHOLE) | matching(table, "above", r"^aten::(zeros|new_zeros)$")
    )
