"""Of calls in inference mode, which counts no writes, those repeat others between which no op may write."""

from __future__ import annotations

import pytest

from kinetoscope.analysis.events.torch_names import CLOCK
from kinetoscope.analysis.origins.same_calls import same_calls
from kinetoscope.recording.manifest import Manifest, RankRecord, StepTimings
from kinetoscope.sources.run import LoadedRun
from traces import event, host, step, trace

PICTURES, CHANNELS = [4, 3, 8, 8], [4, 16, 8, 8]


@pytest.mark.parametrize(
    ("within", "between", "repeat"),
    [
        (("aten::relu", CHANNELS), ("aten::softmax", CHANNELS), True),
        (("aten::relu_", CHANNELS), ("aten::softmax", CHANNELS), True),
        (("aten::relu_", PICTURES), ("aten::softmax", CHANNELS), False),
        (("aten::relu", CHANNELS), ("aten::add_", [2, 2]), False),
        (("aten::relu", CHANNELS), ("aten::add_", []), True),  # a sum
    ],
)
def test_what_may_have_been_written_is_not_the_same(
    within: tuple[str, list[int]], between: tuple[str, list[int]], repeat: bool
) -> None:
    events = [step(9, 0, 200)]
    for at in (10, 60):
        events.append(event("python_function", "a.py(3): <module>", at, 40))
        events.append(event("python_function", "nn.Module: Net", at + 1, 25))
        ops = ("aten::conv2d", PICTURES, 2), (*within, 8), (*between, 30)
        events += [host(name, at + after, 2, **{"Input Dims": [dims, []]}) for name, dims, after in ops]
    events += [event("python_function", CLOCK, at, 1) for at in (1.0, 3.0)]
    events += [event("user_annotation", CLOCK, at + 0.3, 0.2) for at in (1.0, 3.0)]
    steps = StepTimings(found_by="module", same_calls=((0, 1),), uncounted_calls=(1,))
    run = LoadedRun((), Manifest(ranks=(RankRecord(rank=0, steps=steps),)), lines={0: trace(*events)})
    assert same_calls(run)[0]["call"].to_list() == ([1, 0] if repeat else [])
