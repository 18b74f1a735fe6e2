"""The JSON report against the keys that the contract promises (docs/report.md lists them)."""

import json

import msgspec

from kinetoscope.report import json as renderer
from kinetoscope.report.document import Report
from report_sample import report, timing

PROMISED = {
    "": "schema kinetoscope sources environment devices categories kernels steps ops findings health idle compilation",
    "sources": "path bytes events rank complete notes",
    "devices": "rank device name window_us span_us busy_us busy_fraction busy_fraction_of_span compute_us copy_us"
    " communication_us exposed_communication_us idle_us device_time_us kernel_launches unattributed_kernels"
    " launches_without_kernel",
    "categories": "category device_time_us share_of_device_time share_of_window launches distinct_kernels",
    "kernels": "name short_name category launches device_time_us share_of_device_time mean_us median_us min_us max_us"
    " p90_us ops graph source bytes flops speed_of_light",
    "steps": "name start_us duration_us busy_us launches",
    "ops": "name calls host_self_us host_total_us device_self_us device_total_us",
    "findings": "rule severity title saving_us saving_basis evidence advice source",
    "idle": "device cause idle_us share_of_window",
}


def test_every_promised_key_is_there():
    document = json.loads(renderer.render(report(), ["t"]))
    assert document["schema"] == "kinetoscope.report/1"
    for table, keys in PROMISED.items():
        rows = [document] if not table else document[table]
        assert rows
        for row in rows:
            assert set(keys.split()) <= set(row)
    assert set(document["health"]) == {"verdict", "notes"}
    assert set(document["findings"][0]["evidence"][0]) == {"text", "start_us", "end_us", "events"}
    assert set(document["kernels"][0]["ops"][0]) == {"name", "launches", "device_time_us"}


def test_it_reads_back_exactly():
    whole = report(timings=[timing()], compilation={"frames": []})
    text = renderer.render(whole, ["t"])
    assert msgspec.json.decode(text, type=Report) == whole


def test_numbers_are_not_rounded():
    third = report(devices=[msgspec.structs.replace(report().devices[0], busy_fraction=1 / 3)])
    assert json.loads(renderer.render(third, ["t"]))["devices"][0]["busy_fraction"] == 1 / 3
