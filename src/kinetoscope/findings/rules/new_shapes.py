"""A library plans anew for input sizes that it has not met.

What it finds
    Ops of cuDNN, cuBLAS, cuFFT and their kin (convolutions, attention, recurrent nets, transforms) that now
    and then take the host ten times as long as usual, in steps of a program that has long been running.

Why it is slow
    For each new combination of sizes the library looks for an algorithm, builds a plan or tries several:
    milliseconds on the host, against microseconds once it is remembered. Sizes that vary from batch to batch
    (the longest sequence of each) never repeat.

How it decides
    Of one op, calls whose own time on the host, without what they call in the runtime, is at least ten times
    the op's median and 500 µs, in two or more of the recorded steps and in half of them; where
    shapes were recorded, only such as occurred for the first time. What they take beyond the median goes.
    Work that is paid once is ``cold-start-step``'s.

What to do
    Pad to few lengths: multiples of 64 or 128, or batches of samples of like length. Switch
    ``torch.backends.cudnn.benchmark`` off where sizes vary: it tries all algorithms for each.

Source
    NVIDIA cuDNN developer guide, "Heuristics" and "Plan cache"; PyTorch, ``torch.backends.cudnn.benchmark``.
"""

from kinetoscope.findings.rule import *

PLANNED = (
    r"^aten::(cudnn_\w+|_cudnn_\w+|miopen_\w+|_?convolution|convolution_backward|_scaled_dot_product_cudnn\w+"
    r"|_fft_\w+|mm|addmm|bmm|baddbmm|_scaled_mm|_thnn_fused\w+)$"
)
FACTOR = 10
LONG_NS = 500_000


def find(view: RankView) -> Findings:
    steps = view.trace.steps
    if len(steps) < 2:
        return
    host = view.trace.host_events
    calls = view.inside(host.filter(matching(host, "name", PLANNED)))
    usual = pl.col("self_ns").median().over("name")
    first = pl.col("input_dims").is_null() | pl.struct("name", "input_dims").is_first_distinct()
    calls = calls.with_columns(
        usual_ns=usual, first=first, step=steps["start_ns"].search_sorted(calls["start_ns"])
    )
    slow = calls.filter("first", pl.col("self_ns") >= pl.max_horizontal(FACTOR * pl.col("usual_ns"), LONG_NS))
    if slow["step"].n_unique() < max(2, len(steps) / 2):
        return
    slow = slow.with_columns(share=(pl.col("self_ns") - pl.col("usual_ns")) / pl.col("duration_ns"))
    longest = slow.sort("self_ns", descending=True)
    names = " and ".join(slow["name"].cast(pl.String).unique(maintain_order=True).head(2))
    takes, others = (numbers.time(float(str(slow[ns].median())) / 1000) for ns in ("self_ns", "usual_ns"))
    yield Finding(
        title=f"{view.per_step(len(slow)):.2g} calls of {names} per {view.unit} take the host {takes}, the "
        f"others {others}: the library plans anew for sizes that it has not met",
        saving=savings.host(view, slow, "what these calls take on the host beyond the op's median"),
        evidence=[evidence.of(view, "the longest calls", longest)],
        advice="Pad to few lengths, or batch samples of like length, so that sizes repeat; with "
        "torch.backends.cudnn.benchmark, switch that off.",
        snippet="length = -(-length // 64) * 64  # the next multiple of 64",
        source=evidence.source(view, longest["id"]),
    )
