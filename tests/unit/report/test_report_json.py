"""The JSON report against the keys that the contract promises."""

import json

import msgspec

from compilation_sample import compilation, sample
from contract import CONTRACT
from kinetoscope.document import Report
from kinetoscope.document.compilation import Frame
from kinetoscope.render.json import indented
from report_sample import as_it_runs, report, timing


def test_every_promised_key_is_there():
    document = json.loads(indented(report()))
    assert document["schema"] == "kinetoscope.report/1"
    for table, keys in CONTRACT.items():
        rows = [document] if not table else document[table]
        assert rows
        for row in rows:
            assert set(keys.split()) <= set(row)
    assert set(document["health"]) == {"verdict", "notes"}
    assert set(document["findings"][0]["evidence"][0]) == {"text", "start_us", "end_us", "events"}
    assert set(document["kernels"][0]["ops"][0]) == {"name", "launches", "device_time_us"}


def test_a_report_reads_back_exactly_from_json():
    whole = report(timings=[timing()], as_it_runs=as_it_runs(), compilation=compilation(sample(Frame)))
    text = indented(whole)
    assert msgspec.json.decode(text, type=Report) == whole


def test_numbers_are_not_rounded():
    third = report(devices=[msgspec.structs.replace(report().devices[0], busy_fraction=1 / 3)])
    assert json.loads(indented(third))["devices"][0]["busy_fraction"] == 1 / 3


def test_what_a_terminal_would_obey_is_escaped_and_means_the_same() -> None:
    name = "\x9b31m \u202etxet\x1b]52;c;aGk=\x07 µs\u200b"
    shown = indented({"name": name})
    assert not {"\x9b", "\u202e", "\x1b", "\x07", "\u200b"} & set(shown)
    assert "µs" in shown
    assert json.loads(shown) == {"name": name}
