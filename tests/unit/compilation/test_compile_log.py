"""The reader of TORCH_TRACE logs: whole logs exactly, damaged ones without ever failing."""

from __future__ import annotations

import gzip
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compile_records import PREFIX, artifact, record
from kinetoscope.compilation.log import read as log
from kinetoscope.compilation.sources import load
from kinetoscope.errors import InputError, TooLargeError


def write(path: Path, *records: bytes) -> Path:
    path.write_bytes(b"".join(records))
    return path


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), min_size=1, max_size=6))
@settings(deadline=None)  # they write files: a busy disk is no failure
def test_payloads_come_back_as_they_were_given(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    path = write(
        tmp_path_factory.mktemp("log") / "a.log",
        *(artifact(f"a{i}", text, frame_id=0, frame_compile_id=i) for i, text in enumerate(texts)),
    )
    read = log.read(path)
    assert [read.payload(r) for r in read.records] == [text.encode() for text in texts]
    assert [r.compile_id for r in read.records] == [f"0/{i}" for i in range(len(texts))]
    assert not read.damages


WHOLE = b"".join(
    [
        record({"str": ["/home/user/a.py", 1]}),
        record(
            {
                "dynamo_start": {"stack": [{"line": 3, "name": "f", "filename": 1}]},
                "frame_id": 0,
                "frame_compile_id": 0,
            }
        ),
        artifact(
            "dynamo_graph_break_reason",
            "Graph break in user code at /a.py:3\nGraph Break Reason: no\n  Explanation: x",
            frame_id=0,
            frame_compile_id=0,
        ),
        record(
            {"inductor_output_code": {"filename": "/x.py"}, "frame_id": 0, "frame_compile_id": 0},
            "# AOT ID: ['0_forward']\n",
        ),
        record(
            {
                "compilation_metrics": {"compile_id": "0/0", "co_name": "f"},
                "frame_id": 0,
                "frame_compile_id": 0,
            }
        ),
    ]
)


@given(st.integers(0, len(WHOLE)))
@settings(deadline=None)  # they write files: a busy disk is no failure
def test_a_log_cut_anywhere_is_read_up_to_there(
    tmp_path_factory: pytest.TempPathFactory, length: int
) -> None:
    path = write(tmp_path_factory.mktemp("log") / "a.log", WHOLE[:length])
    read = log.read(path)
    whole_lines = WHOLE[:length].count(b"\nV") + (length > 0)
    assert whole_lines - 1 <= len(read.records) <= whole_lines
    if read.records:
        load_or_not(path)


@given(st.binary(max_size=400))
@settings(deadline=None)  # they write files: a busy disk is no failure
def test_no_bytes_break_the_reader(tmp_path_factory: pytest.TempPathFactory, noise: bytes) -> None:
    path = write(tmp_path_factory.mktemp("log") / "a.log", WHOLE[:300], noise, WHOLE[300:])
    log.read(path)
    load_or_not(path)


def load_or_not(path: Path) -> None:
    """Loading either works or says why not."""
    with suppress(InputError):
        load(path)


def test_damage_is_counted(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.log",
        b"Some warning of the program\n",
        record({"str": ["/a.py", 1]}),
        (PREFIX + '{"dynamo_start": {"stack": [}\n').encode(),
        artifact("x", "one\ntwo", frame_id=0, frame_compile_id=0).replace(b"\ttwo", b"\ttvo"),
        artifact("y", "one\ntwo", frame_id=0, frame_compile_id=0).replace(b"\ttwo", b"noise\n\ttwo"),
        artifact("z", "one\ntwo", frame_id=0, frame_compile_id=0)[:-4],
    )
    read = log.read(path)
    assert [r.artifact for r in read.records] == ["", "x", "y", "z"]
    assert dict(read.damages) == {"foreign-line": 2, "bad-json": 1, "checksum": 1, "cut": 1}
    assert read.text(read.records[2]) == "one\ntwo"


def test_gzip_whole_concatenated_and_cut(tmp_path: Path) -> None:
    packed = gzip.compress(WHOLE[:400]) + gzip.compress(WHOLE[400:])
    read = log.read(write(tmp_path / "a.log.gz", packed))
    assert bytes(read.data) == WHOLE
    assert not read.damages
    cut = log.read(write(tmp_path / "b.log.gz", gzip.compress(WHOLE)[:-40]))
    assert cut.damages["cut"] >= 1
    assert WHOLE.startswith(bytes(cut.data))


def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MAX_UNPACKED_BYTES", 1 << 20)
    path = write(tmp_path / "a.log.gz", gzip.compress(WHOLE + b"\t" + b"a" * (4 << 20)))
    with pytest.raises(TooLargeError):
        log.read(path)


def test_a_folder_of_ranks(tmp_path: Path) -> None:
    write(tmp_path / "dedicated_log_torch_trace_rank_0_abc.log", WHOLE)
    write(tmp_path / "dedicated_log_torch_trace_rank_1_def.log", WHOLE)
    (tmp_path / "notes.txt").write_text("nothing of torch's")
    compilation = load(tmp_path)
    assert [frame.rank for frame in compilation.frames] == [0, 1]
    # The same break on both ranks is one row.
    assert [row.count for row in compilation.graph_breaks] == [2]
    assert compilation.frames[0].stack[0].file == "/home/user/a.py"


def test_what_is_no_log_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load(tmp_path / "absent.log")
    path = tmp_path / "a.log"
    path.write_text("hello\n")
    with pytest.raises(InputError) as refused:
        load(path)
    assert refused.value.hint


def test_the_same_id_after_a_reset_is_another_frame(tmp_path: Path) -> None:
    compilation = load(write(tmp_path / "a.log", WHOLE, WHOLE))
    assert [(f.compile_id, f.generation) for f in compilation.frames] == [("0/0", 0), ("0/0", 1)]


def test_unknown_records_are_no_trouble(tmp_path: Path) -> None:
    known = load(write(tmp_path / "a.log", WHOLE))
    odd = record({"brand_new": {"x": [1]}, "frame_id": 0, "frame_compile_id": 0}, "{}")
    more = load(
        write(
            tmp_path / "b.log", odd, WHOLE, odd, artifact("newer_still", "x", frame_id=0, frame_compile_id=0)
        )
    )
    assert len(more.frames) == len(known.frames)
    assert len(more.graphs) == len(known.graphs)


def test_what_packs_as_no_log_does_is_refused(tmp_path: Path) -> None:
    bomb = gzip.compress(WHOLE + b"\t" + b"a" * (100 << 20), compresslevel=1)
    assert len(bomb) < 1 << 20
    with pytest.raises(TooLargeError, match="unpacks to more than"):
        log.read(write(tmp_path / "bomb.log.gz", bomb))


def test_text_of_the_scheduler_that_packs_as_none_does_is_refused(tmp_path: Path) -> None:
    line = b"V0101 00:00:00.000000 1 torch/_inductor/scheduler.py:1] [0/0] [__fusion] attempting fusion\n"
    bomb = gzip.compress(line + b"a" * (100 << 20), compresslevel=1)
    with pytest.raises(TooLargeError, match="unpacks to more than"):
        load(write(tmp_path / "bomb.log.gz", bomb))


def test_what_was_read_is_let_go_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_RESIDENT", 100)
    texts = [f"text {number}\n" + "x" * 5000 for number in range(20)]
    content = [artifact("x", text, frame_id=0, frame_compile_id=0) for text in texts]
    read = log.read(write(tmp_path / "a.log", *content))
    assert [read.text(record) for record in read.records] == texts
