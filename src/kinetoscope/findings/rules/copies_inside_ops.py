"""An op copies, casts or transforms its tensors before it computes.

What it finds
    Copies, layout changes and casts that are not in the program's code, inside another op:
    ``convolution_backward``,
    ``scaled_dot_product_attention``, ``einsum``, ``linear``.

Why it is slow
    The op's kernel takes only one layout, alignment or type: what comes otherwise is written once more, at
    full memory traffic, at each call.

How it decides
    Kernels that only move, cast or transform bytes, whose op is, or is inside of, one that computes. Layout
    changes of ordinary convolutions are ``layout-conversion``'s, the driver's copies before a product
    ``hidden-device-copy``'s. Four fifths of their time count as saved, since one copy for all uses remains;
    half of a convolution's, since without some of those a slower kernel is chosen.

What to do
    Pass the op contiguous operands of one type, with sizes that are multiples of 8.
    For grouped convolutions, measure both layouts and ``torch.backends.cudnn.benchmark``.

Source
    NVIDIA Deep Learning Performance Guide, "Tensor Layouts"; PyTorch's Convolution.cpp and Blas.cpp.
"""

from kinetoscope.analysis.events.enclosing import nearest
from kinetoscope.analysis.origins.attribution import attribution
from kinetoscope.findings.rule import *
from kinetoscope.findings.rules.layout_conversion import CONVERTS, conversions

# Ops that do nothing but make or move a tensor: what they do inside of another is that one's doing.
MOVING = (
    r"^aten::(copy_|clone|contiguous|to|_to_copy|empty\w*|resize_|reshape|_reshape_copy|transpose|permute|expand"
    r"|view|_unsafe_view|pad|constant_pad_nd|fill_|zero_|zeros\w*|new_\w+|cat|_foreach_copy_|detach|narrow"
    r"|slice|select|as_strided|t|squeeze|unsqueeze|stack|split\w*|chunk|index\w*|flatten|unflatten|pin_memory)$"
)
MOVES = rf"{CONVERTS}|tensorTransform|SubTensorOp\w*CastTensor|copy_kernel|transpose"
# Of the copies' time: one for all uses remains; without some of a convolution's, a slower kernel is chosen.
GAIN, GAIN_OF_CONVOLUTIONS = 0.8, 0.5


def find(view: RankView) -> Findings:
    copies = inside_ops(view)
    gain = pl.when(pl.col("maker").str.contains("conv")).then(GAIN_OF_CONVOLUTIONS).otherwise(GAIN)
    copies = copies.with_columns(saved_ns=pl.col("duration_ns") * gain)
    basis = "most of the copies' time (half of a convolution's), an estimate"
    for group, saving in savings.heaviest(view, copies, "maker", basis=basis):
        maker = str(group["maker"][0])
        us = view.us_of(group)
        longest = group.sort("duration_ns", descending=True)
        forward = attribution(view.trace)["forward_op"][longest["id"]]
        yield Finding(
            subject=maker,
            title=f"{view.per_step(len(group)):,.0f} copies, casts and layout changes per {view.unit} inside "
            f"{maker}",
            affected_us=us,
            saving=saving,
            at_most="medium",
            evidence=[evidence.of(view, "the longest of them", longest)],
            advice=f"{maker} copies its tensors before it computes. Pass contiguous operands of one type, "
            "with sizes divisible by 8"
            + ("; for convolutions, try channels_last." if "conv" in maker else "."),
            source=evidence.source(view, longest["op"]) or evidence.source(view, forward),
        )


def inside_ops(view: RankView) -> pl.DataFrame:
    """The work that only moves bytes inside of an op that computes, with that op's name (``maker``)."""
    host = view.trace.host_events
    makes = nearest(host, matching(host, "name", "^aten::") & ~matching(host, "name", MOVING))
    seeds = view.kernels("^Memcpy DtoD")  # copies of the driver, of a product's output
    of_others = [conversions(view)["id"], seeds["id"]]
    moved = view.work.filter(
        matching(view.work, "name", MOVES)
        & ~matching(view.work, "category", "^(optimizer|communication)$")
        & ~pl.col("id").is_in(pl.concat(of_others).implode())
    )
    names = host["name"][makes[moved["op"]]]
    return moved.with_columns(maker=names.cast(pl.String)).drop_nulls("maker")
