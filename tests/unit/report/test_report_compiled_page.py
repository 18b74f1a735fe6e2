"""The page's section on torch.compile: from the very document, and safe whatever a program is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kinetoscope.analysis.run import load
from kinetoscope.report.collect.report import build
from kinetoscope.report.pages import html
from kinetoscope.report.pages.compiled_page import Break, Frame, compiled, place
from report_sample import report

FIXTURES = Path(__file__).parents[2] / "fixtures" / "h200_breaks"
EVIL = "</script><script>alert(1)</script>"


def test_it_shows_breaks_with_their_launches_and_kernels_with_their_speed() -> None:
    document = build(load(str(FIXTURES / "breaks.log.gz"), str(FIXTURES / "breaks.json.gz")))
    page = html.render(document, ["breaks"])
    shown = compiled(document.compilation)
    assert shown is not None
    assert [(row.launches, row.crossings) for row in shown.graph_breaks] == [
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
    assert compiled({"frames": []}) is None
    assert "What torch.compile did" not in html.render(report(), ["trace.json"])


def test_what_is_not_known_is_a_dash_or_nothing() -> None:
    shown = compiled({"frames": [{}], "graph_breaks": [{"crossings": 3, "extra_launches": 0}]})
    assert shown is not None
    assert (shown.frames[0].how, shown.graph_breaks[0].launches) == ("", "")
    assert place(Frame()) == ""
    assert Break(extra_launches=2, eager_launches=2).launches == "2"
    assert "What torch.compile did" in html.render(report(compilation={"frames": [{}]}), ["trace.json"])


@pytest.mark.parametrize("key", ["function", "file", "status", "backend", "cudagraphs"])
def test_names_of_frames_run_nothing(key: str) -> None:
    assert EVIL not in html.render(report(compilation={"frames": [{key: EVIL, "line": 1}]}), ["t"])


def test_names_of_everything_else_run_nothing() -> None:
    line = {"file": EVIL, "line": 1, "code": EVIL}
    rows: dict[str, Any] = {
        "graph_breaks": [{**line, "reason": EVIL, "explanation": EVIL, "hints": [EVIL]}],
        "recompilations": [{"compile_id": EVIL, "reasons": [{"of": EVIL, "guard": EVIL}], "advice": EVIL}],
        "failures": [{**line, "type": EVIL, "reason": EVIL, "effect": EVIL}],
        "kernels": [
            {"name": EVIL, "source": [line] * 3, "device_time_us": 1.0, "launches": 1, "direction": EVIL}
        ],
    }
    page = html.render(report(compilation=msgspec.to_builtins({"frames": [{}], **rows})), ["t"])
    assert "What torch.compile did" in page
    assert EVIL not in page
