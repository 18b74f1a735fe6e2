"""``kinetoscope kernels`` against a sum over the raw events."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from statistics import mean, median

import pytest

from command import RECORDING, complaints, kinetoscope
from kinetoscope import numbers

WORK = ("kernel", "gpu_memcpy", "gpu_memset")


@pytest.fixture(scope="module")
def events():
    return json.loads(gzip.decompress(RECORDING.read_bytes()))["traceEvents"]


def listed(*words):
    done = kinetoscope("kernels", RECORDING, "--json", *words)
    assert done.returncode == 0, done.stderr
    assert not complaints(done)
    return json.loads(done.stdout)


def durations(events, key):
    sums = defaultdict(list)
    for event in events:
        if event.get("cat") in WORK:
            sums[key(event)].append(event["dur"])
    return sums


def agree(rows, expected):
    assert {row["name"] for row in rows} == set(expected)
    for row in rows:
        times = expected[row["name"]]
        assert row["launches"] == len(times)
        assert row["device_time_us"] == pytest.approx(sum(times), abs=1e-3 * len(times))
        assert row["mean_us"] == pytest.approx(mean(times), abs=1e-3)
        assert row["median_us"] == pytest.approx(median(times), abs=1e-3)
        assert (row["min_us"], row["max_us"]) == pytest.approx((min(times), max(times)), abs=1e-3)


def test_kernels_are_listed_by_their_device_time(events):
    document = listed()
    expected = durations(events, lambda event: event["name"])
    agree(document["kernels"], expected)
    times = [row["device_time_us"] for row in document["kernels"]]
    assert times == sorted(times, reverse=True)
    assert document["device_time_us"] == pytest.approx(sum(times))
    assert sum(row["share_of_device_time"] for row in document["kernels"]) == pytest.approx(1)


def test_kernels_of_one_short_name_are_told_apart():
    shorts = [row["short_name"] for row in listed()["kernels"]]
    assert len(set(shorts)) == len(shorts)


def test_streams_are_listed_with_their_device_time(events):
    agree(listed("--by", "stream")["streams"], durations(events, lambda event: str(event["args"]["stream"])))


def test_grids_are_listed_with_the_waves_that_they_take(events):
    grids = {row["name"]: row for row in listed("--by", "grid")["grids"]}
    agree(
        list(grids.values()),
        durations(events, lambda event: json.dumps(event["args"].get("grid", "no grid")).strip('"')),
    )
    # 512 threads and 32 registers each: four blocks on each of the 132 multiprocessors.
    assert grids["[320, 1, 1]"]["waves"] == pytest.approx(320 / (4 * 132))
    assert grids["no grid"]["waves"] is None
    assert "0.606" in kinetoscope("kernels", RECORDING, "--by", "grid").stdout


def test_a_category_is_what_its_share_says():
    document = listed("--category", "pointwise")
    rows = document["kernels"]
    assert {row["category"] for row in rows} == {"pointwise"}
    assert all(row["name"].startswith("triton_poi_") for row in rows)
    assert sum(row["share_of_device_time"] for row in rows) == pytest.approx(
        document["share_of_device_time"]["pointwise"]
    )
    assert sum(document["share_of_device_time"].values()) == pytest.approx(1)


@pytest.mark.parametrize(("by", "plural"), [("category", "categories"), ("op", "ops"), ("step", "steps")])
def test_every_sum_is_of_all_device_time(by, plural):
    document = listed("--by", by)
    assert sum(row["device_time_us"] for row in document[plural]) == pytest.approx(document["device_time_us"])


def test_the_table_ends_with_the_categories_percentages():
    done = kinetoscope("kernels", RECORDING, "--category", "reduction")
    shares = listed()["share_of_device_time"]
    summary = " ".join(done.stdout.split())
    for category, share in shares.items():
        assert f"{category} {numbers.percent(share)}" in summary
    assert done.stdout.startswith("Reduction device time by kernel")


def test_the_limit_says_what_it_leaves_out():
    done = kinetoscope("kernels", RECORDING, "--limit", "3")
    total = len(listed()["kernels"])
    assert f"… and {total - 3} rows more" in done.stdout
    assert "rows more" not in kinetoscope("kernels", RECORDING, "--limit", "0").stdout
