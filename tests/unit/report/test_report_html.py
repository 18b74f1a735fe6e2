import base64
import hashlib
import re
from html.parser import HTMLParser

import msgspec
import pytest

from kinetoscope.views import page as html
from page_data import page_data, words
from report_sample import HOSTILE, as_it_runs, device, host_only, hostile, report, timing

# Elements that may stay open, by the HTML standard.
VOID = {"meta", "link"}


class Page(HTMLParser):
    """The page as it is before its script has run."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.text, self.inside = [], [], [], {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style"):
            self.inside.setdefault(self.open[-1], []).append(data)
        else:
            self.text.append(data)

    def values(self, attribute):
        return [attributes[attribute] for _, attributes in self.tags if attribute in attributes]


def render(document):
    return html.render(document, ["runs/trace.json.gz"])


DOCUMENTS = {
    "gpu": report(timings=[timing()], as_it_runs=as_it_runs()),
    "host": host_only(),
    "hostile": hostile(),
    "ranks": report(devices=[device(rank=rank) for rank in range(8)]),
}


@pytest.fixture(params=DOCUMENTS)
def any_page(request):
    return Page(render(DOCUMENTS[request.param]))


def test_every_element_is_closed(any_page):
    assert any_page.open == []


def test_nothing_is_fetched(any_page):
    assert any_page.values("src") == []
    assert set(any_page.values("href")) == {"data:,"}
    assert {tag for tag, _ in any_page.tags} <= {
        "html", "head", "meta", "link", "title", "style", "body", "noscript", "p", "code", "div", "script",
    }  # fmt: skip
    (style,) = any_page.inside["style"]
    assert "url(" not in style
    assert "@import" not in style


def test_only_our_script_and_style_may_work(any_page):
    (policy,) = [value for value in any_page.values("content") if "default-src" in value]
    data, script = any_page.inside["script"]
    (style,) = any_page.inside["style"]
    hashes = [
        "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (style, script)
    ]
    assert policy == (
        f"default-src 'none'; style-src '{hashes[0]}'; script-src '{hashes[1]}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", data)
    assert not [
        name for _, attributes in any_page.tags for name in attributes if name.startswith(("on", "style"))
    ]


def test_hostile_names_are_data():
    whole = render(hostile())
    shown = " ".join(Page(whole).text)
    assert "<script>window" not in whole
    assert "<img" not in whole
    assert not set(shown) & set("\x1b\u202e\u2066")
    whole.encode()
    names = [row["name"] for row in page_data(whole).report["kernels"]]
    assert set(HOSTILE) <= set(names)


def test_the_page_has_its_summary_without_the_script():
    shown = " ".join(" ".join(Page(render(DOCUMENTS["gpu"])).text).split())
    assert "As it runs, a step takes 8.00 ms" in shown
    assert "-o report.md" in shown


def test_the_numbers_are_the_reports():
    shown = render(DOCUMENTS["gpu"])
    for expected in (
        "As it runs, a step takes 8.00 ms",
        "the GPU was busy 40.0 % of 3 steps (10.0 ms each)",
        "its step takes 25.0 % longer",
        "saves about 12.6 ms",
        "launch-bound",
    ):
        assert expected in words(shown)
    assert page_data(shown).report == msgspec.json.decode(msgspec.json.encode(DOCUMENTS["gpu"]))


def test_bars_are_as_wide_as_their_shares():
    (bar,) = page_data(render(report())).sentences["devices"]
    assert [100 * part["share"] for part in bar["segments"]] == pytest.approx([30, 20 / 3, 10 / 3, 60])


def test_a_recording_of_nothing():
    empty = msgspec.structs.replace(host_only(), ops=[], steps=[])
    assert "neither device work nor ops" in " ".join(Page(render(empty)).text)


def test_notes_of_a_damaged_recording_are_listed():
    assert any(HOSTILE[5] in note for note in page_data(render(hostile())).sentences["notes"])


def test_the_same_report_makes_the_same_bytes():
    assert render(report()) == render(report())
