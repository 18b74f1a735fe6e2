"""Files that are no Kineto trace, distinguished by their first bytes, and what to do with each."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NoReturn

import msgspec

from kinetoscope.errors import NotATraceError

COMPRESSED = {
    "gzip": b"\x1f\x8b",
    "zstd": b"\x28\xb5\x2f\xfd",
    "xz": b"\xfd7zXZ",
    "bzip2": b"BZh",
    "lz4": b"\x04\x22\x4d\x18",
}
_EXPORT = "record one with torch.profiler and export_chrome_trace, or `kinetoscope run script.py`"
_SNAPSHOT = (
    "a torch CUDA memory snapshot, not a trace",
    "name it .pickle: `kinetoscope memory snapshot.pickle`; for time, " + _EXPORT,
)
_NSYS = (
    "a report of Nsight Systems",
    "export it, and name what that writes: nsys export --type sqlite {path}",
)
_NSYS_STREAM = (
    "a recording of Nsight Systems that was not made into a report",
    "QdstrmImporter, which stands in nsys's own folder, makes one: QdstrmImporter -i {path}",
)
_NCU = ("a report of Nsight Compute", "open it with ncu-ui; " + _EXPORT)
_PERFETTO = (
    "a Perfetto protobuf trace",
    "write JSON in its place: torch.profiler's export_chrome_trace to a name that ends in .json; a trace "
    "that there is converts with Perfetto's `traceconv json IN OUT`",
)
_BY_SUFFIX = {
    ".nsys-rep": _NSYS,
    ".qdrep": _NSYS,
    ".qdstrm": _NSYS_STREAM,
    ".ncu-rep": _NCU,
    ".pftrace": _PERFETTO,
    ".perfetto-trace": _PERFETTO,
}
SQLITE = b"SQLite format 3\0"
_BY_MAGIC: tuple[tuple[bytes, str, str], ...] = (
    (b"\x89PNG", "a PNG picture", _EXPORT),
    (b"\xff\xd8\xff", "a JPEG picture", _EXPORT),
    (b"%PDF", "a PDF document", _EXPORT),
    (b"\x7fELF", "a program or library", _EXPORT),
    (
        b"PK\x03\x04",
        "a zip archive (torch.save writes such)",
        "unpack it and name the trace inside; or " + _EXPORT,
    ),
    (SQLITE, "an SQLite database", "an export of Nsight Systems is read: name it, or its folder"),
    (b"PAR1", "a Parquet file", "query it with Polars or DuckDB"),
    (b"ARROW1", "an Arrow file", "query it with Polars or DuckDB"),
    (b"\x89HDF", "an HDF5 file", _EXPORT),
    (b"NVR\0", *_NCU),
    (b"\xff\xfe", "text in UTF-16", "save it as UTF-8"),
    (b"\xfe\xff", "text in UTF-16", "save it as UTF-8"),
)
_COMPILE_LOG = re.compile(rb"\s*[VDIWEC]\d{4} \d\d:\d\d:\d\d")
_JSON_START = re.compile(rb"(?:\xef\xbb\xbf)?\s*[\[{]")


def refuse_name(path: Path, start: bytes) -> None:
    """Raise if the file's suffix and first bytes are those of another tool's report."""
    kind = _BY_SUFFIX.get(path.suffix.lower())
    if kind and not _JSON_START.match(start):
        _refuse(path, *kind)


def refuse_content(path: Path, start: bytes) -> None:
    """Raise if the first bytes are those of something known that is no Chrome JSON."""
    for magic, what, hint in _BY_MAGIC:
        if start.startswith(magic):
            _refuse(path, what, hint)
    if len(start) > 1 and start[0] == 0x80 and start[1] in range(2, 6):
        if path.suffix == ".pickle" or b"segments" in start or b"device_traces" in start:
            _refuse(path, *_SNAPSHOT)
        _refuse(path, "a Python pickle", _EXPORT)
    if _COMPILE_LOG.match(start):
        _refuse(path, "a compile log (TORCH_TRACE), not a trace", "kinetoscope graphs {path}")
    if b"GPU Memory Timeline HTML" in start[:400]:
        _refuse(
            path, "a picture of a memory timeline", "export the timeline as .json.gz, which has its numbers"
        )
    if start.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html")):
        _refuse(path, "a web page", "was the download link that of the file itself?")
    if not _JSON_START.match(start) and b"\0" in start and b'"ph"' not in start:
        if start[:1] == b"\n":  # a TracePacket, the only field of Perfetto's Trace message
            _refuse(path, *_PERFETTO)
        _refuse(path, "a binary file of an unknown kind", _EXPORT)


def refuse_document(path: Path, start: bytes) -> NoReturn:
    """Raise for a file in which no events were found."""
    keys = set(re.findall(rb'"(\w+)"\s*:', start[: 1 << 16]))
    if {b"segments", b"device_traces"} & keys:
        _refuse(path, *_SNAPSHOT)
    if b"nodes" in keys and b"schema" in keys:
        _refuse(path, "a PyTorch execution trace (of operators, without times)", _EXPORT)
    if b"kinetoscope.report/" in start:
        _refuse(
            path, "a report that kinetoscope wrote, not a trace", "name the trace or the recording folder"
        )
    try:
        msgspec.json.decode(start)
        is_json = True
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        is_json = bool(_JSON_START.match(start)) and bool(keys)
    what = (
        "JSON, but nothing in it is an event of a trace"
        if is_json
        else "not a trace: no events were found in it"
    )
    _refuse(path, what, _EXPORT)


def _refuse(path: Path, what: str, hint: str) -> NoReturn:
    where = str(path)
    raise NotATraceError(f"the file is {what}", where=where, hint=hint.replace("{path}", shlex.quote(where)))
