"""Weights are normalized anew in each call, though nothing trains them.

What it finds
    ``weight_norm`` in inference: vocoders and codecs of speech, super-resolution.

Why it is slow
    The layer keeps a direction and a length in the place of its weights, and makes weights of them in each
    call: a kernel more for each layer, and tens of microseconds of the host. Where nothing trains, the result
    is the same each time.

How it decides
    ``aten::_weight_norm``, which either kind of ``weight_norm`` calls, in programs in which neither an
    optimizer steps nor a backward pass runs. All of it goes. What the parametrization's own Python takes is
    not counted.

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
    freed = savings.device(view, work, "their kernels", "duration_ns")
    yield Finding(
        title=f"Weights are normalized {numbers.times(round(view.per_step(len(calls))))} per {view.unit} "
        "(weight_norm), though nothing trains them",
        affected_us=view.us_of(work),
        saving=savings.both(view, freed, savings.host(view, calls, "their calls")),
        evidence=[evidence.of(view, f"{len(calls)} calls", calls)],
        advice="Remove the parametrization once the weights are loaded: they stay as they are.",
        snippet='torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")\n'
        "torch.nn.utils.remove_weight_norm(layer)  # of torch.nn.utils.weight_norm",
        source=evidence.source(view, calls["id"]),
    )
