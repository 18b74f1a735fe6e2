import html
import re

import pytest

from kinetoscope.render import markdown
from kinetoscope.render.markdown import escape
from kinetoscope.views import overview
from report_sample import HOSTILE, host_only, hostile, report


def page(document):
    return markdown.render(overview.blocks(document, ["runs/trace.json.gz"], "file"))


def cells(line):
    return len(re.findall(r"(?<!\\)\|", line))


def test_the_numbers_are_the_reports():
    text = page(report())
    assert "| GPU 0 | 40.0 % | 9.00 ms | 3.00 ms | 2.00 ms | 1.50 ms | 18.0 ms | 30.0 ms |" in text
    assert "| pointwise | 60.0 % | 8.10 ms | 27.0 % | 200 | 2 |" in text
    assert (
        "| `triton_poi_fused_add_mul_0` | pointwise | 40.0 % | 5.40 ms | 30 | 170 µs | 90.0–410 µs |" in text
    )
    assert "- **high** **The host launches work more slowly than the GPU does it**" in text
    assert "Saves about 12.6 ms per step." in text
    assert "(train.py:41)" in text
    assert "kinetoscope kernels runs/trace.json.gz --category pointwise" in text


def test_a_machine_without_gpu_gets_its_ops():
    assert "| `aten::mm` | 70.0 % | 2.10 ms | 2.10 ms | 110 |" in page(host_only())


def test_hostile_names_leave_every_table_whole():
    lines = page(hostile()).splitlines()
    tables = [line for line in lines if line.startswith("|")]
    assert len(tables) > 3 * len(HOSTILE)
    widths = {}
    for line in lines:
        if line.startswith("|"):
            widths.setdefault("now", cells(line))
            assert cells(line) == widths["now"]
        else:
            widths.clear()


def test_hostile_names_are_no_html_and_call_nobody():
    text = page(hostile())
    outside_code = re.sub(r"(`+)(?:(?!\1).)+?\1(?!`)", "", text.split("```sh")[0])
    assert "<" not in outside_code
    assert not re.search(r"(?<!\\)\[", outside_code)
    assert not re.search(r"@\w|(?<![\w&])#\d", outside_code)
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_escaped_text_starts_no_block():
    assert markdown.escape("- item") == "\\- item"
    assert markdown.escape("1. item") == "1\\. item"
    assert markdown.escape("# title") == "\\# title"
    assert markdown.escape("a_b _c_") == "a_b \\_c\\_"
    assert markdown.escape("18.3 ms (each)") == "18.3 ms (each)"
    assert markdown.escape("a < b & c") == "a &lt; b &amp; c"


def test_code_spans_hold_back_ticks_and_bars():
    assert markdown.code("a`b``c") == "``` a`b``c ```"
    assert markdown.code("a|b") == "`a¦b`"
    assert markdown.code("") == "` `"


@pytest.mark.parametrize(
    ("name", "live"),
    [
        ("https://evil.example/login", "://"),
        ("see www.evil.example", "www."),
        ("octocat/hello-world#1", "#1"),
        ("GH-12", "GH-12"),
        ("@octocat", "@octocat"),
    ],
)
def test_a_name_leads_nowhere(name: str, live: str) -> None:
    assert live in name
    assert live not in escape(name)
    assert html.unescape(escape(name)).replace("\u200b", "").replace("\\", "") == name
