"""The optimizer updates parameters with many kernels.

What it finds
    ``Optimizer.step`` as a loop over parameters, or with ``foreach``: dozens to thousands of elementwise
    kernels. And parameters each in a group of its own, as where a learning rate is given by name: the
    optimizer then updates them one by one, ``foreach``, fused or not.

Why it is slow
    Each kernel reads and writes optimizer state that the next reads again, and each pays a launch.

How it decides
    At least 30 optimizer kernels per step, none of them a fused optimizer's: 60 % of the device time counts
    as saved, and with it the time that the device idles during ``Optimizer.step``. Groups: in each
    ``Optimizer.step`` the ops on lists are called at least 20 times each, for less than two gradients a call.
    That two groups are enough, those with weight decay and those without, is the condition: the host's time
    for all others, and that of kernels below 5 µs.

What to do
    ``torch.optim.AdamW(…, fused=True)`` (Adam, AdamW, SGD); compile ``optimizer.step`` of any other. Put
    parameters that have the same options into one group.

Source
    PyTorch documentation of torch.optim, "fused"; facebookresearch/detectron2 (``reduce_param_groups``).
"""

from kinetoscope.analysis.events.backward import updates
from kinetoscope.analysis.events.torch_names import GRADIENT
from kinetoscope.findings.rule import *

KERNELS = 30  # a fused optimizer needs a handful
FUSED = r"(?i)Fused(Optimizer|Adam|SGD|Adagrad)|triton_"
GAIN = 0.6
WITH_FUSED = ("Adam", "AdamW", "SGD")  # on a device; Adagrad's fused one is the CPU's
ON_LISTS = r"^aten::_(foreach|fused)_"
GROUPS = 20  # a model whose layers have learning rates of their own has fewer
OF_ONE = 2  # gradients for a group, at which they are of several parameters each
TOGETHER = 2  # groups that remain: those with weight decay and those without
TINY_NS = 5_000  # kernels that take as long for one tensor as for many


def find(view: RankView) -> Findings:
    kernels = view.work.filter(
        (pl.col("category").cast(pl.String) == "optimizer") & (pl.col("kind") == "kernel")
    )
    if len(kernels) < GROUPS * view.steps:
        return
    calls = view.inside(updates(view.trace))
    calls = calls.filter(matching(calls, "name", r"^Optimizer\.step#"))
    if groups := _groups(view, calls):
        yield _in_groups(view, calls, kernels, groups)
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


def _in_groups(view: RankView, calls: pl.DataFrame, kernels: pl.DataFrame, groups: int) -> Finding:
    share = 1 - TOGETHER / groups
    tiny = kernels.filter(pl.col("duration_ns") < TINY_NS)
    saving = savings.device(
        view,
        tiny,
        f"the optimizer's host time and its kernels below 5 µs, for {groups - TOGETHER} of {groups} groups",
        pl.col("duration_ns") * share,
        savings.called(view, calls, share),
    )
    return Finding(
        subject="groups",
        title=f"The optimizer updates {groups} groups of one parameter each, one after the other",
        saving=savings.if_so(saving, f"their options allow {TOGETHER} groups"),
        evidence=[evidence.of(view, "Optimizer.step", calls)],
        advice="Put parameters that have the same options into one group: foreach and fused updates go "
        "group by group.",
        snippet='groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0}]',
        source=evidence.source(view, calls["id"]),
    )


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
