"""Tensors are cast from one type to another again and again.

What it finds
    Casts on the device (``aten::_to_copy`` between float types): weights kept in float32 and cast at each
    use, activations that go to float32 and back.

Why it is slow
    A cast reads one tensor and writes another; a weight cast at each use costs more traffic than the use
    itself.

How it decides
    Kernels that copy into another float type, outside of optimizers, by name or launched below
    ``aten::_to_copy``. Half of their time counts as saved under autocast in training, which needs its casts
    of master weights once per step; all of it elsewhere. With it goes the same share of the host's time in
    the casts.

What to do
    Keep weights in the type that they are used in, cast once outside of the loop; in autocast regions leave
    its weight cache on; feed ops that upcast (softmax, losses) what they need instead of casting around them.

Source
    PyTorch AMP documentation: autocast's weight cache.
"""

from kinetoscope.analysis.events.torch_names import AUTOGRAD_NODE
from kinetoscope.findings.rule import *

CASTS = r"(bfloat16|float16|half|float8\w*)_copy_kernel"
CAST = r"^aten::(to|_to_copy)$"
CAST_BACKWARD = rf"{AUTOGRAD_NODE}: ToCopyBackward"
COPIES = r"direct_copy_kernel_cuda|" + CASTS


def find(view: RankView) -> Findings:
    copies = view.kernels(COPIES)
    if copies.is_empty():
        return
    host = view.trace.host_events
    parents = host.select("name")[host["parent"][copies["op"]]]
    casts = copies.filter(
        (matching(parents, "name", "^aten::(_to_copy|to)$") | matching(copies, "name", CASTS))
        & ~matching(copies, "category", "^optimizer$")
    )
    calls = _calls(view)[casts["op"]].drop_nulls().unique().sort()
    # The program itself does not request the casts that are made inside the ops that need them.
    callers = host.select("name")[host["parent"][calls].drop_nulls()]
    autocast = matching(callers, "name", "^aten::").any()
    half = autocast and matching(view.work, "category", "^optimizer$").any()
    share, basis = (0.5, "half of the casts' time") if half else (1.0, "the casts' time")
    if share * view.us_of(casts) < LOW * view.step_us:
        return
    saved, called = share * pl.col("duration_ns"), savings.called(view, host[calls], share)
    saving = savings.device(view, casts, f"{basis}, and of their calls", saved, called)
    if saving.share < MEDIUM:
        return
    longest = casts.sort("duration_ns", descending=True)
    yield Finding(
        title=f"{view.counted(len(casts), 'cast')} per {view.unit} between float types",
        affected_us=view.us_of(casts),
        saving=saving,
        evidence=[evidence.of(view, "the longest casts", longest.head(8))],
        advice="Keep tensors in the type that they are used in."
        + (
            "" if autocast else " What has to be in float32, such as a norm, casts for nothing once compiled."
        ),
        snippet="model = model.to(torch.bfloat16)" if autocast else None,
        source=evidence.source(view, longest["op"]),
    )


def _calls(view: RankView) -> pl.Series:
    """For each host event the whole call of the cast around it: in a backward autograd's node."""
    outer = view.around("^aten::to$").fill_null(view.around(CAST))
    return view.around(CAST_BACKWARD).fill_null(outer)
