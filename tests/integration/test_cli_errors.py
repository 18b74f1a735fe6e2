"""What cannot be read or written, or was asked for wrongly: a message, a status, no traceback."""

from __future__ import annotations

import gzip
import json
import os
import stat

import pytest

from command import ROOT, SMALL, kinetoscope, process, refused
from kinetoscope.recording import manifest
from kinetoscope.recording.manifest import Manifest, RankRecord


def test_a_folder_with_nothing_in_it_is_refused(tmp_path):
    refused(kinetoscope("report", tmp_path), 3, "no trace, recording or compile log", str(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_refused(tmp_path):
    path = tmp_path / "secret.json"
    path.write_bytes(b"[]")
    path.chmod(0)
    refused(kinetoscope("report", path), 3, "Permission denied", str(path))
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)


def test_one_bad_file_among_good_ones_is_named(tmp_path):
    bad = tmp_path / "bad.json"
    bad.write_bytes(b"nothing")
    refused(kinetoscope("report", SMALL, bad), 3, str(bad))


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("report.pdf", ".html, .json, .md, .txt"),
        ("report", "a name without a suffix"),
        ("missing/report.html", "mkdir -p"),
        (".", "without a suffix"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path, target, expected):
    done = kinetoscope("report", tmp_path / "never-read.json", "-o", tmp_path / target)
    refused(done, 2, expected)


def test_a_folder_is_no_place_for_a_report(tmp_path):
    (tmp_path / "x.html").mkdir()
    refused(kinetoscope("report", SMALL, "-o", tmp_path / "x.html"), 2, "a folder stands there")


def test_traces_of_two_runs_are_not_one_report(tmp_path):
    trace = json.loads(gzip.decompress(SMALL.read_bytes())) | {"distributedInfo": {"rank": 0}}
    (tmp_path / "one.json").write_text(json.dumps(trace))
    (tmp_path / "other.json").write_text(
        json.dumps(
            trace
            | {
                "traceEvents": [
                    *trace["traceEvents"],
                    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1},
                ]
            }
        )
    )
    refused(kinetoscope("report", tmp_path), 3, "two traces are of rank 0", "one.json", "other.json")


def test_the_input_is_not_overwritten(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.decompress(SMALL.read_bytes()))
    before = path.read_bytes()
    refused(kinetoscope("report", path, "-o", path), 2, "overwrite the input")
    refused(kinetoscope("export", path, "--to", "perfetto", "-o", path), 2, "overwrite the input")
    assert path.read_bytes() == before


def test_a_wrong_query_says_what_is_there():
    refused(
        kinetoscope("query", SMALL, "SELECT nonsense FROM host_events"),
        2,
        "nonsense",
        "duration_ns",
        "--tables",
    )
    refused(kinetoscope("query", SMALL, "SELEC 1"), 2, "only a SELECT")
    refused(kinetoscope("query", SMALL, "SELECT * FROM nothing"), 2, "nothing")
    refused(kinetoscope("query", SMALL), 2, "SELECT")


def test_a_category_that_is_not_there_says_which_are():
    refused(kinetoscope("kernels", SMALL, "--category", "nonsense"), 2, "matmul")


@pytest.mark.parametrize(
    "arguments", [["report"], ["kernels"], ["export", SMALL], ["kernels", SMALL, "--by", "x"], ["nonsense"]]
)
def test_wrong_usage_is_an_error_that_shows_the_usage(arguments):
    done = kinetoscope(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "usage: kinetoscope" in done.stderr


def test_without_a_verb_a_pipe_gets_the_help_too():
    done = process(PYTHONUNBUFFERED="")
    assert done.returncode == 2
    assert done.stdout == process("--help").stdout


def test_export_into_a_missing_folder(tmp_path):
    for kind in ("parquet", "perfetto", "speedscope"):
        done = kinetoscope("export", SMALL, "--to", kind, "-o", tmp_path / "missing" / "x")
        refused(done, 2, "mkdir -p")
    (tmp_path / "file").write_bytes(b"")
    refused(
        kinetoscope("export", SMALL, "--to", "parquet", "-o", tmp_path / "file"), 2, "a file stands there"
    )


def test_what_is_no_trace_in_a_folder_is_left_out_and_said(tmp_path):
    (tmp_path / "trace.json.gz").write_bytes(SMALL.read_bytes())
    (tmp_path / "config.json").write_text('{"layers": 8}')
    done = kinetoscope("kernels", tmp_path, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["kernels"]
    assert done.stderr.startswith(f"kinetoscope: {tmp_path / 'config.json'} was left out: ")
    report = tmp_path / "r.json"
    assert kinetoscope("report", tmp_path, "-o", report).returncode == 0
    (unread,) = json.loads(report.read_text())["unread"]
    assert "config.json" in unread


def test_a_recording_whose_compile_log_was_left_behind_is_read_without_it(tmp_path):
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "rank0.json.gz").write_bytes(SMALL.read_bytes())
    rank = RankRecord(rank=0, trace="trace/rank0.json.gz", compile_log="compile/rank0.log")
    manifest.write(tmp_path, Manifest(ranks=(rank,), exit="ok"))
    done = kinetoscope("report", tmp_path)
    assert done.returncode == 0
    assert "compile/rank0.log was left out: there is no such file" in done.stderr
    refused(kinetoscope("graphs", tmp_path), 3, "no compile log")


LOG = ROOT / "tests" / "fixtures" / "h200_breaks" / "breaks.log.gz"


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        (["reprot", SMALL], 2, "did you mean report or export?"),
        (["kernels", SMALL, "--category", "matmull"], 2, "did you mean matmul?"),
        (["kernels", LOG], 3, "no device work was recorded"),
        (["graphs", LOG, "--graph", "dinamo"], 3, "did you mean dynamo?"),
        (["query", SMALL, "SELECT nam FROM device_events"], 2, "did you mean name"),
        (["query", SMALL, "SELECT name FROM devic_events"], 2, "did you mean device_events"),
        (["query", SMALL, "DROP TABLE device_events"], 2, "only a SELECT"),
        (["query", SMALL, " -- a comment\n delete from device_events"], 2, "only a SELECT"),
        (["explain", "overhead-bond"], 2, "overhead-bound"),
    ],
)
def test_a_name_that_is_not_there_is_met_with_those_that_are(words, status, expected):
    done = kinetoscope(*words)
    assert done.returncode == status, done.stderr
    assert expected in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "sql", ["select 1 AS x", "(SELECT 1 AS x)", "/* c */ WITH a AS (SELECT 1 AS x) SELECT x FROM a"]
)
def test_every_way_to_begin_a_select_is_run(sql):
    assert kinetoscope("query", SMALL, sql).returncode == 0
