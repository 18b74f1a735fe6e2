"""``kinetoscope report`` as a user runs it, on a recording of an H200."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from itertools import pairwise

import pytest

from command import ENVIRONMENT, RECORDING, SMALL, complaints, kinetoscope
from kinetoscope.document import Report
from kinetoscope.document.collect.report import build
from kinetoscope.sources.run import load


@pytest.fixture(scope="module")
def document() -> Report:
    return build(load(RECORDING))


def test_the_terminal_answers_where_the_time_went(document):
    done = kinetoscope("report", RECORDING)
    assert done.returncode == 0
    assert not complaints(done)
    (device,) = document.devices
    words = " ".join(done.stdout.split())
    busy = f"the GPU was busy {100 * device.busy_fraction:.1f} % of 2 steps"
    assert f"As recorded, under the profiler, {busy}" in words
    top = document.categories[0]
    assert f"{100 * top.share_of_device_time:.1f} % {top.category}" in done.stdout
    assert [
        line for line in done.stdout.splitlines() if len(line) > 100 and " kinetoscope " not in line
    ] == []
    assert "\x1b" not in done.stdout


def test_json_is_the_report(tmp_path, document):
    done = kinetoscope("report", RECORDING, "-o", tmp_path / "x.json")
    assert done.returncode == 0
    assert done.stdout == ""
    assert "wrote" in done.stderr
    written = json.loads((tmp_path / "x.json").read_text())
    assert written["devices"][0]["busy_us"] == document.devices[0].busy_us
    assert len(written["kernels"]) == len(document.kernels)


def test_busy_agrees_with_the_raw_events(tmp_path):
    kinetoscope("report", SMALL, "-o", tmp_path / "x.json")
    (device,) = json.loads((tmp_path / "x.json").read_text())["devices"]
    events = json.loads(gzip.decompress(SMALL.read_bytes()))["traceEvents"]
    work = sorted(
        (event["ts"], event["ts"] + event["dur"], event["dur"])
        for event in events
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    )
    # One stream, nothing overlaps: busy is the sum of the durations.
    assert all(one[1] <= other[0] for one, other in pairwise(work))
    assert device["busy_us"] == pytest.approx(sum(duration for *_, duration in work), abs=1e-3)
    assert device["span_us"] == pytest.approx(work[-1][1] - work[0][0], abs=2e-3)
    steps = [
        (e["ts"], e["ts"] + e["dur"])
        for e in events
        if str(e.get("name")).startswith("ProfilerStep#") and e["cat"] == "user_annotation"
    ]
    assert device["window_us"] == pytest.approx(
        max(end for _, end in steps) - min(start for start, _ in steps), abs=2e-3
    )


@pytest.mark.parametrize(
    ("suffix", "beginning"),
    [(".html", "<!doctype html>"), (".md", "# "), (".txt", RECORDING.name), (".JSON", "{")],
)
def test_the_suffix_is_the_format(tmp_path, suffix, beginning):
    target = tmp_path / f"x{suffix}"
    assert kinetoscope("report", RECORDING, "-o", target).returncode == 0
    assert target.read_text(encoding="utf-8").startswith(beginning)


def test_several_ranks_are_one_report(tmp_path):
    for rank in (0, 1):
        trace = json.loads(gzip.decompress(SMALL.read_bytes()))
        trace["distributedInfo"] = {"rank": rank, "world_size": 2}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(trace))
    done = kinetoscope("report", tmp_path / "rank0.json", tmp_path / "rank1.json")
    assert done.returncode == 0
    assert "rank 0 · GPU 0" in done.stdout
    assert "rank 1 · GPU 0" in done.stdout
    assert "3 steps on 2 ranks" in done.stdout


def test_the_next_commands_work_as_printed(tmp_path):
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    shutil.copy(SMALL, folder / "my trace.json.gz")
    printed = kinetoscope("report", folder / "my trace.json.gz").stdout
    commands = [
        line[line.index("kinetoscope ") :] for line in printed.splitlines() if "  kinetoscope " in line
    ]
    assert len(commands) >= 2
    for command in commands:
        words = command.replace("kinetoscope ", f"{sys.executable} -m kinetoscope ", 1)
        done = subprocess.run(
            words,
            shell=True,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").is_file()


def test_a_terminal_that_knows_only_ascii_gets_no_traceback():
    done = kinetoscope("report", RECORDING, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0
    assert "GPU 0" in done.stdout
    assert "####" in done.stdout


def test_a_reader_that_goes_away_is_no_error():
    shell = f"{sys.executable} -m kinetoscope report {RECORDING} | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == 0
