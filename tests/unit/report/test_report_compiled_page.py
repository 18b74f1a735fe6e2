"""The page's section on torch.compile: from the very document, and safe whatever a program is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilation_sample import compilation, sample
from kinetoscope.analysis.run import load
from kinetoscope.report.collect.report import build
from kinetoscope.report.document.compilation import (
    Failure,
    Frame,
    GraphBreak,
    Kernel,
    Reason,
    Recompilation,
    SourceLine,
)
from kinetoscope.report.pages import html
from kinetoscope.report.pages.compiled_page import ROWS, compiled, extra_launches, how, place
from report_sample import report

FIXTURES = Path(__file__).parents[2] / "fixtures" / "h200_breaks"
EVIL = "</script><script>alert(1)</script>"


def test_it_shows_breaks_with_their_launches_and_kernels_with_their_speed() -> None:
    document = build(load(str(FIXTURES / "breaks.log.gz"), str(FIXTURES / "breaks.json.gz")))
    page = html.render(document, ["breaks"])
    shown = compiled(document.compilation)
    assert shown is not None
    assert [(extra_launches(row), row.crossings) for row in shown.graph_breaks] == [
        ("10, 1 a step", 10),
        ("20, 2 a step", 10),
    ]
    assert [kernel.name for kernel in shown.kernels] == [
        "triton_poi_fused_mul_sin_0",
        "triton_poi_fused_add_cos_0",
        "triton_poi_fused_relu_sub_0",
    ]
    for text in ("What torch.compile did", "inductor (default)", "20, 2 a step", "84.6 %", "breaks.py:29"):
        assert text in page


def test_without_a_compile_log_there_is_no_section() -> None:
    assert compiled(None) is None
    assert compiled(compilation()) is None
    assert "What torch.compile did" not in html.render(report(), ["trace.json"])


def test_the_longest_compilations_stand_in_their_order() -> None:
    frames = [sample(Frame, index=index, compile_s=float(index % 7)) for index in range(3 * ROWS)]
    shown = compiled(compilation(*frames))
    assert shown is not None
    assert len(shown.frames) == ROWS
    assert [frame.index for frame in shown.frames] == sorted(frame.index for frame in shown.frames)
    assert min(frame.compile_s for frame in shown.frames) == 4


def test_what_is_not_known_is_a_dash_or_nothing() -> None:
    assert how(sample(Frame, backend="none")) == ""
    assert how(sample(Frame, backend="eager", mode="unknown", cudagraphs="off")) == "eager"
    assert extra_launches(sample(GraphBreak, crossings=3, extra_launches=0)) == ""
    assert extra_launches(sample(GraphBreak, extra_launches=2, eager_launches=2)) == "2"
    assert place(sample(Frame)) == ""
    page = html.render(report(compilation=compilation(sample(Frame))), ["trace.json"])
    assert "What torch.compile did" in page


@pytest.mark.parametrize("key", ["function", "file", "status", "backend", "cudagraphs"])
def test_names_of_frames_run_nothing(key: str) -> None:
    hostile = sample(Frame, **{"line": 1, key: EVIL})
    assert EVIL not in html.render(report(compilation=compilation(hostile)), ["t"])


def test_names_of_everything_else_run_nothing() -> None:
    line = {"file": EVIL, "line": 1, "code": EVIL}
    hostile = compilation(
        sample(Frame),
        graph_breaks=(sample(GraphBreak, **line, reason=EVIL, explanation=EVIL, hints=(EVIL,)),),
        recompilations=(
            sample(
                Recompilation,
                compile_id=EVIL,
                reasons=(sample(Reason, of=EVIL, guard=EVIL),),
                advice=EVIL,
            ),
        ),
        failures=(sample(Failure, **line, type=EVIL, reason=EVIL, effect=EVIL),),
        kernels=(
            sample(
                Kernel,
                name=EVIL,
                source=(sample(SourceLine, **line),) * 3,
                device_time_us=1.0,
                launches=1,
                direction=EVIL,
            ),
        ),
    )
    page = html.render(report(compilation=hostile), ["t"])
    assert "What torch.compile did" in page
    assert EVIL not in page
