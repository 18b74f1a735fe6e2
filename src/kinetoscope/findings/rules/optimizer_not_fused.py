"""The optimizer updates parameters with many kernels.

What it finds
    ``Optimizer.step`` as a loop over parameters, or with ``foreach``: dozens to thousands of elementwise
    kernels. And parameters each in a group of its own, as where a learning rate is given by name: the
    optimizer then updates them one by one, ``foreach``, fused or not.

Why it is slow
    Each kernel reads and writes optimizer state that the next reads again, and each pays a launch.

How it decides
    At least 30 optimizer kernels per step, none of them a fused optimizer's: 60 % of the device time
    counts as saved, and with it the time that the device idles during ``Optimizer.step``. Groups: in each
    ``Optimizer.step`` the ops on lists are called at least 20 times each, for less than two gradients a
    call. As many groups remain as have options of their own, by the recorder; where it does not say, two,
    those with weight decay and those without, on that condition. All others' host time goes, and that of
    kernels below 5 µs; of longer kernels what they take for not filling the device, as far as its memory
    is fast enough.

What to do
    ``torch.optim.AdamW(…, fused=True)`` (Adam, AdamW, SGD); compile ``optimizer.step`` of any other. Put
    parameters that have the same options into one group.

Source
    PyTorch documentation of torch.optim, "fused"; facebookresearch/detectron2 (``reduce_param_groups``).
"""

from kinetoscope.analysis.cost.roofline import device_spec
from kinetoscope.analysis.events.backward import updates
from kinetoscope.analysis.events.torch_names import GRADIENT
from kinetoscope.analysis.kernels.occupancy import filled
from kinetoscope.findings.rule import *

KERNELS = 30  # a fused optimizer needs a handful
FUSED = r"(?i)Fused(Optimizer|Adam|SGD|Adagrad)|triton_"
GAIN = 0.6
WITH_FUSED = ("Adam", "AdamW", "SGD")  # on a device; Adagrad's fused one is the CPU's
ON_LISTS = r"^aten::_(foreach|fused)_"
GROUPS = 20  # a model whose layers have learning rates of their own has fewer
OF_ONE = 2  # gradients for a group, at which they are of several parameters each
TOGETHER = 2  # groups that remain where their options are not known
TINY_NS = 5_000  # kernels that take as long for one tensor as for many
BLOCK_BYTES = 65_536 * 4 * 2  # a block has so many floats of a list, at least reads and writes them


def find(view: RankView) -> Findings:
    kernels = view.work.filter(
        (pl.col("category").cast(pl.String) == "optimizer") & (pl.col("kind") == "kernel")
    )
    if len(kernels) < GROUPS * view.steps:
        return
    calls = view.inside(updates(view.trace))
    calls = calls.filter(matching(calls, "name", r"^Optimizer\.step#"))
    if groups := _groups(view, calls):
        steps = view.record.steps.updates if view.record else ()
        known = max((step.options for step in steps), default=0)
        if known <= groups / 2:
            yield _in_groups(view, calls, kernels, groups, known)
        return
    if (
        len(kernels) < KERNELS * view.steps
        or kernels["name"].unique().cast(pl.String).str.contains(FUSED).any()
    ):
        return
    name = _name(calls)
    fused = name in WITH_FUSED
    idle = NOTHING if view.cold else without_idle(view.trace, view.idle_during(calls))
    basis = "60 % of the optimizer's device time, and the device's idle time during Optimizer.step"
    yield Finding(
        title=f"The optimizer launches {view.per_step(len(kernels)):,.0f} kernels per {view.unit}: it is not "
        "fused",
        saving=savings.device(view, _gone(kernels), basis, "duration_ns", idle),
        evidence=[evidence.of(view, "Optimizer.step", calls)],
        advice="Use the fused implementation." if fused else f"There is no fused {name}: compile its step.",
        snippet=f"optimizer = torch.optim.{name}(model.parameters(), fused=True)"
        if fused
        else "optimizer.step = torch.compile(optimizer.step)",
        source=evidence.source(view, calls["id"]),
    )


def _groups(view: RankView, calls: pl.DataFrame) -> int:
    """How many groups an optimizer's step has, where most are of one parameter; else 0."""
    host = view.trace.host_events
    lists = host.filter(matching(host, "name", ON_LISTS) & pl.col("parent").is_in(calls["id"].implode()))
    each = lists.group_by("parent", "name").len().group_by("parent").agg(pl.col("len").min())
    gradients = view.inside(host.filter(matching(host, "name", GRADIENT)))
    if each.is_empty() or len(gradients) >= OF_ONE * each["len"].sum():
        return 0
    groups = whole(each["len"].median())
    return groups if groups >= GROUPS else 0


def _in_groups(
    view: RankView, calls: pl.DataFrame, kernels: pl.DataFrame, groups: int, known: int
) -> Finding:
    """``known``: how many groups have options of their own; 0: not known."""
    left = known or TOGETHER
    share = 1 - left / groups
    saving = savings.device(
        view,
        _of_one(view, kernels),
        f"the optimizer's host time, and its kernels' where they do not fill the device, for "
        f"{groups - left} of {groups} groups",
        pl.col("lone_ns") * share,
        savings.called(view, calls, share),
    )
    return Finding(
        subject="groups",
        title=f"The optimizer updates {groups} groups of one parameter each, one after the other",
        saving=saving if known else savings.if_so(saving, f"their options allow {TOGETHER} groups"),
        evidence=[evidence.of(view, "Optimizer.step", calls)],
        advice="Put parameters that have the same options into one group"
        + f", which makes {left} of them" * bool(known)
        + ": foreach and fused updates go group by group.",
        snippet='groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0}]',
        source=evidence.source(view, calls["id"]),
    )


def _of_one(view: RankView, kernels: pl.DataFrame) -> pl.DataFrame:
    """Kernels with ``lone_ns``: what of their time is gone where their tensors are in a list with others."""
    tiny = pl.col("duration_ns") < TINY_NS
    spec = None if kernels.is_empty() else device_spec(view.trace, kernels["device"][0])
    if view.device is None or spec is None:
        return kernels.filter(tiny).with_columns(lone_ns="duration_ns")
    least = pl.col("blocks") * BLOCK_BYTES / spec.bandwidth * 1e9 / pl.col("duration_ns")
    kept = pl.max_horizontal("filled", least).fill_null(1.0).clip(0, 1)
    kept = pl.when(tiny).then(0.0).otherwise(kept)
    return filled(kernels, view.device).with_columns(lone_ns=(1 - kept) * pl.col("duration_ns"))


def _gone(kernels: pl.DataFrame) -> pl.DataFrame:
    """The kernels that a fused optimizer does not launch: all but the longest, which stand for its own."""
    longest = kernels.sort("duration_ns", descending=True)
    kept = longest["duration_ns"].cum_sum() <= (1 - GAIN) * float(longest["duration_ns"].sum())
    return longest.filter(~kept)


def _name(calls: pl.DataFrame) -> str:
    """The class of the optimizer whose steps take longest: of ``Optimizer.step#Shampoo.step``, Shampoo."""
    longest = calls.group_by(pl.col("name").cast(pl.String)).agg(pl.sum("duration_ns"))
    if longest.is_empty():
        return "optimizer of that kind"
    return str(longest.sort("duration_ns", "name")["name"][-1]).partition("#")[2].partition(".")[0]
