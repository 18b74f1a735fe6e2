"""The optimizer updates parameters with many kernels.

What it finds
    ``Optimizer.step`` as a loop over parameters, or with ``foreach``: dozens to thousands of elementwise
    kernels.

Why it is slow
    Each kernel reads and writes optimizer state that the next reads again, and each pays a launch.

How it decides
    At least 30 optimizer kernels per step, none of them a fused optimizer's. A fused one reads and writes
    each
    state once: 60 % of the device time counts as saved, and with it the time that the device idles during
    ``Optimizer.step``.

What to do
    ``torch.optim.AdamW(…, fused=True)`` (Adam, AdamW, SGD); compile ``optimizer.step`` of any other.

Source
    PyTorch documentation of torch.optim, "fused".
"""

from kinetoscope.analysis.events.backward import updates
from kinetoscope.findings.rule import *

KERNELS = 30  # a fused optimizer needs a handful
FUSED = r"(?i)Fused(Optimizer|Adam|SGD|Adagrad)|triton_"
GAIN = 0.6
WITH_FUSED = ("Adam", "AdamW", "SGD")  # on a device; Adagrad's fused one is the CPU's


def find(view: RankView) -> Findings:
    kernels = view.work.filter(
        (pl.col("category").cast(pl.String) == "optimizer") & (pl.col("kind") == "kernel")
    )
    if (
        len(kernels) < KERNELS * view.steps
        or kernels["name"].unique().cast(pl.String).str.contains(FUSED).any()
    ):
        return
    calls = view.inside(updates(view.trace))
    calls = calls.filter(matching(calls, "name", r"^Optimizer\.step#"))
    name = _name(calls)
    fused = name in WITH_FUSED
    idle = savings.idle(view, view.idle_during(calls), "")
    basis = "60 % of the optimizer's device time, and the device's idle time during Optimizer.step"
    yield Finding(
        title=f"The optimizer launches {view.per_step(len(kernels)):,.0f} kernels per {view.unit}: it is not "
        "fused",
        saving=savings.device(view, _gone(kernels), basis, "duration_ns", idle.change),
        evidence=[evidence.of(view, "Optimizer.step", calls)],
        advice="Use the fused implementation." if fused else f"There is no fused {name}: compile its step.",
        snippet=f"optimizer = torch.optim.{name}(model.parameters(), fused=True)"
        if fused
        else "optimizer.step = torch.compile(optimizer.step)",
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
