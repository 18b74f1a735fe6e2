"""What is no trace is refused by name, with what to do; what is packed is unpacked within a limit."""

from __future__ import annotations

import gzip
import json
import pickle
import resource
import struct
import zlib
from itertools import product
from pathlib import Path

import pytest

from broad import broad
from kinetoscope.errors import InputError, KinetoscopeError, NotATraceError, TooLargeError
from kinetoscope.trace import container
from kinetoscope.trace.read import read

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "h200"
PERFETTO = b"\x0a\x9a\x01\x08\x00\x12" + struct.pack("<Q", 12) + b"\x00\x01process"

REFUSED: dict[str, tuple[str, bytes, str]] = {
    "memory snapshot": ("s.pickle", pickle.dumps({"segments": [], "device_traces": [[]]}), "memory snapshot"),
    "memory snapshot as JSON": ("s.json", b'{"segments": [], "device_traces": [[]]}', "memory snapshot"),
    "pickle": ("p.pkl", pickle.dumps([1, 2]), "pickle"),
    "Perfetto": ("trace.pftrace", PERFETTO, "Perfetto"),
    "Perfetto by content": ("trace.bin", PERFETTO, "Perfetto"),
    "Nsight Systems": ("r.nsys-rep", b"\x00\x01\x02" * 40, "Nsight Systems"),
    "Nsight Systems, not imported": ("r.qdstrm", b"\x00\x01\x02" * 40, "not made into a report"),
    "Nsight Compute": ("r.ncu-rep", b"NVR\0" + b"\1" * 90, "Nsight Compute"),
    "SQLite": ("r.sqlite", b"SQLite format 3\0" + b"\0" * 80, "SQLite"),
    "compile log": ("log.txt", b"V0331 11:22:33.000000 1 torch/x.py:1] {}\n", "compile log"),
    "picture": ("a.png", b"\x89PNG\r\n\x1a\n" + b"\0" * 60, "PNG"),
    "zip": ("m.pt", b"PK\x03\x04" + b"\0" * 60, "zip"),
    "binary": ("x.bin", b"\x01\x02\0\0\xff" * 30, "binary"),
    "web page": ("trace.json", b"<!DOCTYPE html><html>404</html>", "web page"),
    "empty": ("e.json", b"", "empty"),
    "text": ("t.json", b"hello, this is no trace at all", "no events"),
    "number": ("n.json", b"12", "nothing in it"),
    "list of numbers": ("l.json", b"[1, 2, 3]", "nothing in it"),
    "empty list": ("l.json", b"[]", "nothing in it"),
    "other JSON": ("o.json", b'{"a": {"b": [1, {"c": 2}]}}', "nothing in it"),
    "objects that are no events": ("o.json", b'[{"name": "x"}, {"name": "y"}]', "nothing in it"),
    "other JSON in no UTF-8": ("o.json", b'{"a\xff\xfe": [1, {"c": 2}]}', "nothing in it"),
    "execution trace": (
        "et.json",
        b'{"schema": "1.1.1-chakra.0.0.4", "nodes": [{"id": 1}]}',
        "execution trace",
    ),
    "our own report": ("r.json", b'{"schema": "kinetoscope.report/1", "sources": []}', "report"),
    "a trace of nothing": ("t.json", b'{"schemaVersion": 1, "traceEvents": []}', "holds no events"),
    "xz": ("t.json.xz", b"\xfd7zXZ\0\0\4", "xz"),
    "UTF-16": ("t.json", '{"traceEvents": []}'.encode("utf-16"), "UTF-16"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_trace_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    name, content, said = REFUSED[kind]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as refusal:
        read(path)
    assert said in refusal.value.what
    assert refusal.value.where == str(path)
    assert refusal.value.hint


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder"):
        read(tmp_path)
    with pytest.raises(InputError, match="No such file"):
        read(tmp_path / "none.json")


def test_a_report_of_nsys_in_a_folder_is_refused_with_the_command_that_exports_it(tmp_path: Path) -> None:
    (tmp_path / "my run").mkdir()
    report = tmp_path / "my run" / "r.nsys-rep"
    report.write_bytes(b"\x00\x01\x02" * 40)
    for path in (report, report.parent):
        with pytest.raises(NotATraceError, match="Nsight Systems") as refusal:
            read(path)
        assert refusal.value.where == str(report)
        assert f"nsys export --type sqlite '{report}'" in (refusal.value.hint or "")


@pytest.mark.parametrize("name", ["cpu.pftrace", "cpu.gz", "cpu"])
def test_what_torch_writes_as_pftrace_is_refused_whatever_it_is_called(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes((FIXTURES.parent / "torch_cpu.pftrace").read_bytes())
    with pytest.raises(NotATraceError, match="Perfetto protobuf") as refusal:
        read(path)
    assert "export_chrome_trace" in (refusal.value.hint or "")


def test_refused_content_is_also_refused_when_packed(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b"\x89PNG\r\n\x1a\n" + b"\0" * 100))
    with pytest.raises(NotATraceError, match="PNG"):
        read(path)


BEGINNINGS = (b"", b'{"traceEvents": [', b'{"traceEvents": [{"ph": "X", "name": "')


def bomb(path: Path, start: bytes, filler: bytes, unpacked: int) -> None:
    packer = zlib.compressobj(9, wbits=31)
    block = filler * ((1 << 20) // len(filler))
    with path.open("wb") as file:
        file.write(packer.compress(start))
        for _ in range(unpacked >> 20):
            file.write(packer.compress(block))
        file.write(packer.flush())


@pytest.mark.parametrize(
    ("start", "filler"),
    broad(
        product(BEGINNINGS, (b" ", b"a", b'{"ph":"X"},', b"[")),
        # What goes on as it began, and what does not.
        (
            (BEGINNINGS[0], b" "),
            (BEGINNINGS[0], b"["),
            (BEGINNINGS[1], b'{"ph":"X"},'),
            (BEGINNINGS[2], b"a"),
        ),
    ),
)
def test_a_bomb_is_refused_quickly_and_within_memory(
    start: bytes, filler: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.json.gz"
    if filler == b"[":
        bomb(path, start, filler, 80 << 20)
    else:  # the others are refused an eighth of the way: unpacking and decoding so much is all they cost
        monkeypatch.setattr(container, "SUSPECT", 8 << 20)
        bomb(path, start, filler, 10 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(KinetoscopeError):
        read(path)
    allowed = 900_000 if filler == b"[" else 225_000  # KiB: what is decoded takes many times its bytes
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < allowed


def test_the_limit_can_be_raised_and_lowered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = FIXTURES / "mm_64_warm_eager.json.gz"
    monkeypatch.setenv(container.LIMIT_VARIABLE, "8K")
    with pytest.raises(TooLargeError, match="limit") as refusal:
        read(packed)
    assert container.LIMIT_VARIABLE in str(refusal.value.hint)
    monkeypatch.setenv(container.LIMIT_VARIABLE, "1MB")
    assert read(packed).source.events == 105


def test_zstd_is_read_like_gzip(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    plain = gzip.decompress((FIXTURES / "forum_eager.json.gz").read_bytes())
    path = tmp_path / "t.json.zst"
    path.write_bytes(zstandard.compress(plain))
    trace, expected = read(path), read(FIXTURES / "forum_eager.json.gz")
    assert trace.host_events.equals(expected.host_events)
    assert trace.source.complete


def test_what_a_truncated_zstd_file_holds_is_read(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    events = [{"ph": "X", "name": f"op{n * n}", "ts": n * 1.25, "dur": n % 7} for n in range(20_000)]
    packed = zstandard.compress(json.dumps({"traceEvents": events}).encode())
    path = tmp_path / "t.json.zst"
    path.write_bytes(packed[: len(packed) // 2])
    trace = read(path)
    assert 1000 < len(trace.host_events) < 20_000
    assert not trace.source.complete


def test_progress_tells_how_far_reading_has_come(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [{"ph": "X", "name": "x", "ts": 1, "dur": 1}]}))
    told: list[tuple[int, int]] = []
    read(path, progress=lambda at, size: told.append((at, size)))
    assert told[-1] == (path.stat().st_size, path.stat().st_size)
    assert [at for at, _ in told] == sorted(at for at, _ in told)
