"""Weights are normalized anew in each call, though nothing trains them.

What it finds
    ``weight_norm`` in inference: vocoders and codecs of speech, super-resolution.

Why it is slow
    The layer keeps a direction and a length in the place of its weights, and makes weights of them in each
    call: a kernel more for each layer, and tens of microseconds of the host. Where nothing trains, the result
    is the same each time.

How it decides
    ``aten::_weight_norm``, which either kind of ``weight_norm`` calls, in programs in which neither an
    optimizer steps nor a backward pass runs. All of it goes, and with it the parametrization's Python: what
    passes before and after such a call beyond what usually passes between two ops.

What to do
    Remove it after loading, which leaves the weights as they are:
    ``torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")``, or
    ``torch.nn.utils.remove_weight_norm(layer)`` of the older ``torch.nn.utils.weight_norm``.

Source
    PyTorch, ``torch.nn.utils.parametrizations.weight_norm``; NVIDIA/waveglow #21 (5 to 10 %).
"""

from kinetoscope.findings.rule import *

NORMALIZES = r"^aten::_weight_norm$"


def find(view: RankView) -> Findings:
    calls = view.inside(view.host(NORMALIZES))
    sources = view.record.steps.candidates if view.record else ()  # a program may train at other times
    if calls.is_empty() or trains(view) or any(source.kind == "optimizer" for source in sources):
        return
    work = view.launched_during(calls)
    called = savings.called(view, _with_python(view))
    yield Finding(
        title=f"Weights are normalized {numbers.times(round(view.per_step(len(calls))))} per {view.unit} "
        "(weight_norm), though nothing trains them",
        affected_us=view.us_of(work),
        saving=savings.device(view, work, "their kernels and calls", "duration_ns", called),
        evidence=[evidence.of(view, f"{len(calls)} calls", calls)],
        advice="Remove the parametrization once the weights are loaded: they stay as they are.",
        snippet='torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")\n'
        "torch.nn.utils.remove_weight_norm(layer)  # of torch.nn.utils.weight_norm",
        source=evidence.source(view, calls["id"]),
    )


def _with_python(view: RankView) -> pl.DataFrame:
    """The host's time in each call and in the Python around it: ``lane``, ``start_ns``, ``duration_ns``."""
    ops = view.called.with_columns(
        before=pl.col("start_ns") - pl.col("end_ns").shift(1).over("lane"),
        after=pl.col("start_ns").shift(-1).over("lane") - pl.col("end_ns"),
    )
    ours = matching(ops, "name", NORMALIZES)
    others = ops.filter(~ours, ~ours.shift(1, fill_value=False))
    calls = ops.filter(ours).with_columns(
        pl.min_horizontal(gap, pl.col(gap).median()).fill_null(0).clip(0) for gap in ("before", "after")
    )
    usual = pl.min_horizontal("before", others.select(pl.median("before").fill_null(0)).item())
    start_ns = (pl.col("start_ns") - pl.col("before") + usual).cast(pl.Int64)
    end_ns = (pl.col("end_ns") + pl.col("after")).cast(pl.Int64)
    return calls.select("lane", start_ns, duration_ns=end_ns - start_ns)
