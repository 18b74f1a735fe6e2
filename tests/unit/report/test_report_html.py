import base64
import hashlib
import re
from html.parser import HTMLParser

import msgspec
import pytest

from kinetoscope.report.pages import html
from report_sample import HOSTILE, as_it_runs, device, host_only, hostile, kernel, report, timing

# Elements that may stay open, by the HTML standard.
VOID = {"meta", "link", "input", "img", "br"}


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.text, self.scripts = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.scripts if self.open and self.open[-1] == "script" else self.text).append(data)

    def values(self, attribute):
        return [attributes[attribute] for _, attributes in self.tags if attribute in attributes]


def page(document):
    return Page(html.render(document, ["runs/trace.json.gz"]))


@pytest.fixture(params=["gpu", "host", "hostile", "ranks"])
def any_page(request):
    documents = {
        "gpu": report(timings=[timing()], as_it_runs=as_it_runs()),
        "host": host_only(),
        "hostile": hostile(),
        "ranks": report(devices=[device(rank=rank) for rank in range(8)]),
    }
    return page(documents[request.param])


def test_every_element_is_closed(any_page):
    assert any_page.open == []


def test_nothing_is_fetched(any_page):
    assert any_page.values("src") == []
    assert set(any_page.values("href")) == {"data:,"}
    assert not [
        tag for tag, _ in any_page.tags if tag in ("iframe", "object", "embed", "form", "base", "img")
    ]
    assert "url(" not in " ".join(any_page.text)
    assert "@import" not in " ".join(any_page.text)


def test_only_our_script_may_run(any_page):
    (policy,) = [value for value in any_page.values("content") if "default-src" in value]
    (script,) = any_page.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; ")
    assert f"script-src 'sha256-{digest}'" in policy
    assert not [name for _, attributes in any_page.tags for name in attributes if name.startswith("on")]


def test_hostile_names_are_shown_as_text():
    whole = html.render(hostile(), ["runs/trace.json.gz"])
    parsed = Page(whole)
    assert len(parsed.scripts) == 1
    shown = " ".join(parsed.text)
    assert "<script>window.hacked = 1</script>" in shown
    assert "{{ 7 * 7 }}" in shown
    assert not set(whole) & set("\x1b\u202e\u2066")
    whole.encode()


def test_the_numbers_are_the_reports():
    shown = page(report(timings=[timing()], as_it_runs=as_it_runs()))
    words = " ".join(" ".join(shown.text).split())
    for expected in (
        "As it runs, a step takes 8.00 ms",
        "the GPU was busy 40.0 % of 3 steps (10.0 ms each)",
        "50.0 % busy, as it runs",
        "40.0 % busy, of 30.0 ms as recorded",
        "its step takes 25.0 % longer",
        "saves about 12.6 ms",
        "launch-bound",
        "2.00 ms exposed of 3.00 ms communication",
    ):
        assert expected in words
    # The values that the tables sort by are the report's own, unrounded.
    values = shown.values("data-value")
    for row in report().kernels:
        for number in (row.device_time_us, row.share_of_device_time, row.launches, row.median_us, row.p90_us):
            assert str(number) in values


def test_bars_are_as_wide_as_their_shares():
    (bar,) = re.findall(
        r'aria-label="GPU 0: 40.0 % busy">(.*?)</div>', html.render(report(), ["t"]), re.DOTALL
    )
    assert [float(width) for width in re.findall(r"width:([\d.]+)%", bar)] == pytest.approx(
        [30, 20 / 3, 10 / 3, 60], abs=1e-3
    )


def test_a_huge_table_says_what_it_leaves_out():
    many = report(kernels=[kernel(f"kernel_{number}") for number in range(html.ROWS + 7)])
    text = html.render(many, ["t"])
    assert f"kernel_{html.ROWS - 1}<" in text
    assert f"kernel_{html.ROWS}<" not in text
    assert "… and 7 kernels more in the JSON report." in text


def test_a_recording_of_nothing():
    empty = msgspec.structs.replace(host_only(), ops=[], steps=[])
    assert "neither device work nor ops" in " ".join(page(empty).text)


def test_notes_of_a_damaged_recording_are_listed():
    words = " ".join(page(hostile()).text)
    assert HOSTILE[5] in words
