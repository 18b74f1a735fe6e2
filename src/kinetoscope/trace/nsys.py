"""Exports of Nsight Systems (``nsys export --type sqlite``), read as traces: one for each process.

Rows become the events that Kineto writes of the same things, and those are decoded as any trace's: kernels,
copies, memsets, runtime and driver calls, synchronisation, overhead and NVTX ranges. Tables and columns
differ between versions of Nsight Systems, and are absent where they would be empty: what is there is read,
and columns that are missing where nothing stands for them are named. Older versions write 0 for null.

Sources: the documentation of the export's schema (3.x) and exports of nsys 2026.2; for the ops in NVTX ranges
``getNvtxStr`` of torch (``torch/csrc/profiler/util.cpp``); for the names of copies, waits and overhead Kineto
(``libkineto/src/CuptiActivity.cpp``).
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import polars as pl
from msgspec.structs import replace

from kinetoscope.errors import NotATraceError
from kinetoscope.trace import cache
from kinetoscope.trace.database import Database
from kinetoscope.trace.decoding.spans import decode_span
from kinetoscope.trace.link import link
from kinetoscope.trace.model import RECORDER, Trace
from kinetoscope.trace.read import assembled
from kinetoscope.trace.tables import Assembly

Progress = Callable[[int, int], None]
_PIECE = 2 << 20  # characters of events that are decoded together

_TEXTS, _RANGES, _OF_NVPROF = "StringIds", "NVTX_EVENTS", "StringTable"
_ACTIVITY, _WAIT = "CUPTI_ACTIVITY_KIND_", "SYNCHRONIZATION"
_WORK = "start end globalPid deviceId contextId streamId correlationId"
# Columns without which a table is not understood: of those with a stroke between, one of them.
_NEEDED = {
    _TEXTS: "id value",
    _RANGES: "start end eventType globalTid text|textId",
    f"{_ACTIVITY}RUNTIME": "start end globalTid correlationId nameId",
    f"{_ACTIVITY}KERNEL": "start end streamId correlationId globalPid demangledName|shortName",
    f"{_ACTIVITY}MEMCPY": "start end streamId correlationId globalPid bytes copyKind",
    f"{_ACTIVITY}MEMSET": "start end streamId correlationId globalPid",
}

# Values of CUPTI's enumerations, by the names that Kineto writes.
_COPIES = (
    "Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP",
    "HtoD", "DtoH", "DtoD",
)  # fmt: skip
_FIRST_UNIFIED = 11  # from here on what moved is pages of unified memory
_MEMORIES = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")
_WAITS = ("Unknown Sync", "Event Sync", "Stream Wait Event", "Stream Sync", "Context Sync")
_OVERHEADS = (
    "", "", "Driver Compiler", "Buffer Flush", "Instrumentation", "Resource",
    "Runtime Triggered Module Loading", "Lazy Function Loading", "Command Buffer Full",
)  # fmt: skip
# Before the middle of 2021.
_OLD_DEVICES = "TARGET_INFO_CUDA_GPU"
_OLD_FACTS = "deviceId globalMemorySize numMultiprocessors computeCapabilityMajor computeCapabilityMinor"
_DRIVER = 1  # eventClass of a call
_DRIVER_CALL = re.compile(r"cu[A-Z]")
_LASTING = (59, 60, 70, 71)  # eventType of ranges: push/pop and start/end, by a program or out of a text
# What nsys's demangler writes otherwise than Kineto's.
_SPELLINGS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"<unnamed>", "(anonymous namespace)"),
        (r"\(bool\)0", "false"),
        (r"\(bool\)1", "true"),
        (r"\(int\)(?=-?\d)", ""),
        (r"\(unsigned long\)(\d+)", r"\1ul"),
        (r"\(unsigned int\)(\d+)", r"\1u"),
        (r"\(long\)(-?\d+)", r"\1l"),
        (r"\[lambda\(([^()]*)\) \(instance (\d+)\)\]", r"{lambda(\1)#\2}"),
        (r"operator \(\)", "operator()"),
        (r" ([*&])", r"\1"),
    )
)
_VERSION = re.compile(r"_v\d{4,}$")  # behind a call's name

# A range of torch.autograd.profiler.emit_nvtx, and the names of ops among them: others are record_function's.
_EMITTED = re.compile(
    r"(?s)(.*?)(?:, seq = (\d{1,18}))?(?:, op_id = (\d{1,18}))?(?:, sizes = (\[[][\d, ]*\]))?"
    r"(?:, input_op_ids = .*)?"
)
_OP = re.compile(r"[a-z_]\w*::|(\w+Backward\d*|record_param_comms|detach_?)$")
_LIBRARY = re.compile(r"nccl[A-Z]\w*$")  # ranges in a library, below torch's ops: no op of theirs
# Of NCCL's ranges and their payloads: a head (domain, 0, schema, 0, bytes of what follows, bytes of all), and
# the fields that NVTX_PAYLOAD_SCHEMA_ENTRIES places in what follows. As nsys 2026 writes them; the head is in
# no documentation.
_OF_ONE_MESSAGE = re.compile(r"nccl(AllReduce|Broadcast|Bcast|Reduce)$")
_PAYLOAD, _PAYLOAD_SIZE = struct.Struct("<IIIIQQ"), 1 << 8
_EIGHT_BYTES = (18, 22)  # types of fields: uint64 and size
_MESSAGE, _COMMUNICATOR = "Message size [bytes]", "NCCL communicator ID"
_NUMBER = re.compile(r"\d+")
_ID = re.compile(r"[0-9]{1,19}")
_NO_NAME = "(no name)"
_RECURRING = 3  # ranges of a name, from which on they are steps
_NEARLY_ALL = 0.9  # of the calls from the first step to the last: the others lie between steps


def read(path: str | Path, progress: Progress | None = None, most: int = 64) -> tuple[Trace, ...]:
    """The traces of an export's processes that used a device, ``most`` of them, in the order of their devices
    and numbers; of the process that did most where none used one. ``progress`` is called now and then with
    the bytes of the file read so far, and its size. Raises InputError where it cannot be opened,
    NotATraceError where it is no export of Nsight Systems, or holds nothing to show."""
    path = Path(path)
    if kept := _recalled(path):
        return kept
    with closing(Database(path)) as database:
        known = {_TEXTS, _RANGES, f"{_ACTIVITY}KERNEL", f"{_ACTIVITY}RUNTIME"}
        if not known & database.tables.keys() or _OF_NVPROF in database.tables:
            _refuse(database)
        if replaced := len(_NEEDED.keys() & database.views()):
            database.damages["unread-view"] = replaced
        export = _Export(database)
        export.read(progress)
        processes = export.chosen(most)
        if not processes:
            damaged = "is damaged: what is left of it " if database.damages else ""
            raise NotATraceError(
                f"the export of Nsight Systems {damaged}holds neither device work nor a call or range of a "
                "program",
                where=str(path),
                hint="export it again" if damaged else "record with `nsys profile --trace=cuda,nvtx …`",
            )
        traces = tuple(
            _trace(database, process, export.facts(process, len(processes))) for process in processes
        )
    for number, trace in enumerate(traces):
        cache.keep(path, trace, number)
    return traces


def _recalled(path: Path) -> tuple[Trace, ...]:
    """All traces of the export, if all were kept."""
    found: list[Trace] = []
    while (trace := cache.recall(path, len(found))) is not None:
        found.append(trace)
    match found[0].metadata.get(RECORDER) if found else None:
        case {"processes": int(processes)} if processes == len(found):
            return tuple(found)
        case _:
            return ()


def _trace(database: Database, process: _Recorded, metadata: dict[str, object]) -> Trace:
    trace = assembled(
        process.assembly, str(database.path), database.size, database.damages + process.damages, metadata
    )
    return _with_collectives(link(trace, _recurring(trace.host_events)))


def _with_collectives(trace: Trace) -> Trace:
    """With the collectives of those kernels that were launched right inside a range that describes one."""
    host, device = trace.host_events, trace.device_events
    around = host["parent"].gather(device["launch"])
    said = trace.argument("collective", around)
    return replace(trace, device_events=device.with_columns(said.alias("collective")))


def _refuse(database: Database) -> NoReturn:
    if any(name.lstrip("_").startswith("rocpd_") for name in database.tables):
        what, hint = (
            "a rocpd database of rocprofv3",
            "record the program with torch.profiler, which writes what ROCm ran as well: "
            "`kinetoscope run script.py`",
        )
    elif _OF_NVPROF in database.tables:
        what, hint = (
            "a profile of nvprof, which nsys replaced",
            "record with `nsys profile --trace=cuda,nvtx …`, or torch.profiler",
        )
    else:
        what = "an SQLite database, and none that Nsight Systems exported"
        hint = "nsys export --type sqlite REPORT.nsys-rep writes one"
    raise NotATraceError(f"the file is {what}", where=str(database.path), hint=hint)


class _Recorded:
    """The events of one process, as Kineto would write them, decoded piece by piece."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.pid = key & 0xFFFFFF
        self.events = 0
        self.devices: set[int] = set()
        self.device_of: dict[int | None, int] = {}  # of each context that work ran in
        self.damages: Counter[str] = Counter()
        self.last_ns = 0
        self._piece: list[str] = []
        self._length = 0

    def add(self, event: str) -> None:
        self.events += 1
        self._piece.append(event)
        self._length += len(event)
        if self._length > _PIECE:
            self.decode()

    def decode(self) -> None:
        if self._piece:
            self.assembly.add(decode_span(",".join(self._piece).encode()))
        self._piece, self._length = [], 0

    @cached_property
    def assembly(self) -> Assembly:
        return Assembly()

    def slice(
        self, category: str, name: str, lane: str, start: int | None, end: int | None, args: str
    ) -> None:
        """Add something that took time, from ``start`` to ``end`` (ns). ``name`` is JSON; so are ``lane``
        (``"pid":…,"tid":…``) and ``args`` (what stands within the braces)."""
        self.last_ns = max(self.last_ns, end or 0)
        length = None if start is None or end is None else end - start
        self.add(
            f'{{"ph":"X","cat":"{category}","name":{name},{lane},"ts":{_microseconds(start)},'
            f'"dur":{_microseconds(length)},"args":{{{args}}}}}'
        )

    def thread(self, thread: int) -> str:
        return f'"pid":{self.pid},"tid":{thread & 0xFFFFFF}'


class _Export:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._texts: dict[int | str | None, str] = {
            _as_id(number): text for text, number in database.rows(_TEXTS, "", "value", names="id") if text
        }
        self._quoted: dict[int | str | None, str] = {}
        self._spelled: dict[int | str | None, str] = {}
        self._calls: dict[int | str | None, str] = {}
        self._processes: dict[int, _Recorded] = {}
        self._fields: dict[tuple[int | None, int | None], dict[str, int]] = {}
        for domain, schema, offset, kind, name in database.rows(
            "NVTX_PAYLOAD_SCHEMA_ENTRIES", "domainId schemaId offset type", "name"
        ):
            if (
                kind in _EIGHT_BYTES
                and name in (_MESSAGE, _COMMUNICATOR)
                and 0 <= (offset or 0) < _PAYLOAD_SIZE
            ):
                self._fields.setdefault((domain, schema), {})[name] = offset or 0

    def read(self, progress: Progress | None) -> None:
        subjects = (
            self._kernels, self._graphs, self._copies, self._memsets, self._called, self._waits,
            self._overheads, self._ranges, self._labels,
        )  # fmt: skip
        for done, subject in enumerate(subjects, 1):
            subject()
            if progress is not None:
                progress(self._database.size * done // len(subjects), self._database.size)

    def chosen(self, most: int) -> list[_Recorded]:
        seen = [process for process in self._processes.values() if process.events]
        found = (
            sorted(
                (process for process in seen if process.devices),
                key=lambda one: (one.key >> 24, min(one.devices), one.pid),
            )
            or sorted(seen, key=lambda one: one.events)[-1:]
        )
        for process in found[:most]:
            process.decode()
            if len(found) > most:
                process.damages["more-processes"] = len(found) - most
        return found[:most]

    def facts(self, process: _Recorded, processes: int) -> dict[str, object]:
        """Facts of the machine, under the names of Kineto's metadata, and of who recorded the process."""
        index_of = {
            gpu: cuda
            for gpu, cuda, pid in self._database.rows("TARGET_INFO_CUDA_DEVICE", "gpuId cudaId pid")
            if cuda is not None and pid in (None, process.pid)
        }
        columns = {"totalMemory": "totalGlobalMem", "smCount": "numSms"}
        columns |= {name: name for name in ("computeMajor", "computeMinor")}
        devices = [
            {
                "id": index_of.get(number, number),
                "name": name,
                **dict(zip(columns.values(), values, strict=True)),
            }
            for table, names in (("TARGET_INFO_GPU", f"id {' '.join(columns)}"), (_OLD_DEVICES, _OLD_FACTS))
            for number, *values, name in self._database.rows(table, names, "name")
            if number is not None and name
        ]
        environment = dict(self._database.rows("TARGET_INFO_SYSTEM_ENV", "", "name value"))
        driver = environment.get("CudaDriverVersion") or ""
        exported = dict(self._database.rows("META_DATA_EXPORT", "", "name value"))
        return {
            **({"deviceProperties": devices} if devices else {}),
            **({"cuda_driver_version": int(driver[:9])} if driver.isdecimal() else {}),
            RECORDER: {
                "name": f"Nsight Systems {exported.get('EXPORT_PRODUCT_VERSION') or ''}".strip(),
                "schema": exported.get("EXPORT_SCHEMA_VERSION") or "",
                "lacks": ", ".join(self._lacking()),
                "pid": process.pid,
                "processes": processes,
            },
        }

    def _lacking(self) -> list[str]:
        """The columns that this file's tables lack and nothing stands for."""
        tables = self._database.tables
        return [
            f"{table}.{wanted.split('|')[0]}"
            for table, columns in _NEEDED.items()
            for wanted in columns.split()
            if tables.get(table, frozenset()).isdisjoint(wanted.split("|"))
            and (table in tables or (table == _TEXTS and wanted == "value"))
            and not (wanted.startswith("global") and self._only is not None)
        ]

    @cached_property
    def _only(self) -> int | None:
        """The process of everything, where there is one: tables may lack the column that says so."""
        tables = {f"{_ACTIVITY}KERNEL": "globalPid", f"{_ACTIVITY}RUNTIME": "globalTid"}
        rows = (row for table, column in tables.items() for row in self._database.rows(table, column))
        keys = {number >> 24 for (number,) in rows if number is not None}
        return None if len(keys) > 1 else keys.pop() if keys else 0

    def _of(self, number: int | None) -> _Recorded:
        """The process of a ``globalPid`` or ``globalTid``: their upper bits are its host's and its own."""
        key = (self._only or 0) if number is None else number >> 24
        if key not in self._processes:
            self._processes[key] = _Recorded(key)
        return self._processes[key]

    def _text(self, name: int | str | None) -> str | None:
        """The text that a column names, or holds itself."""
        return self._texts.get(_as_id(name)) or (name if isinstance(name, str) else None)

    def _name(self, name: int | str | None) -> str:
        if name not in self._quoted:
            self._quoted[name] = _json(self._text(name) or _NO_NAME)
        return self._quoted[name]

    def _kernel(self, name: int | str | None, short: int | str | None) -> str:
        """A kernel's name as Kineto writes it, as JSON: demanglers spell the same otherwise."""
        if self._text(name) is None:
            name = short
        if name not in self._spelled:
            text = self._text(name) or _NO_NAME
            for pattern, replacement in _SPELLINGS:
                text = pattern.sub(replacement, text)
            self._spelled[name] = _json(text)
        return self._spelled[name]

    def _device_rows(
        self, kind: str, more: str, names: str = ""
    ) -> Iterator[tuple[_Recorded, str, int, int, str, list[Any]]]:
        """The process of each row, its lane, its times, its arguments, and the values of more columns."""
        for start, end, pid, device, context, stream, correlation, *rest in self._database.rows(
            _ACTIVITY + kind, f"{_WORK} {more}", names=names
        ):
            process = self._of(pid)
            if kind == _WAIT:  # nsys 2026 writes device 0 for all
                device = process.device_of.get(context, device)
            else:
                process.devices.add(device or 0)
                process.device_of[context] = device or 0
            device, stream = device or 0, _or_null(stream)
            args = (
                f'"device":{device},"context":{_or_null(context)},"stream":{stream},'
                f'"correlation":{_or_null(correlation)}'
            )
            lane = f'"pid":{device},"tid":{0 if stream == "null" else stream}'
            yield process, lane, start, end, args, rest

    def _kernels(self) -> None:
        columns = (
            "gridX gridY gridZ blockX blockY blockZ registersPerThread "
            "staticSharedMemory dynamicSharedMemory graphId graphNodeId"
        )
        names = "demangledName shortName"
        for process, lane, start, end, args, row in self._device_rows("KERNEL", columns, names):
            *sizes, registers, static, dynamic, graph, node, name, short = row
            shape = "" if None in sizes else f',"grid":{sizes[:3]},"block":{sizes[3:]}'
            process.slice(
                "kernel", self._kernel(name, short), lane, start, end,
                f'{args},"registers per thread":{_or_null(registers)},'
                f'"shared memory":{(static or 0) + (dynamic or 0)}{shape}{_node(graph, node)}',
            )  # fmt: skip

    def _graphs(self) -> None:
        """Replays of graphs as one piece each, as nsys records them where it is not asked for their nodes."""
        for process, lane, start, end, args, (graph,) in self._device_rows("GRAPH_TRACE", "graphId"):
            process.damages["whole-graphs"] += 1
            name = f'"CUDA graph {_or_null(graph)}"'
            process.slice("kernel", name, lane, start, end, f'{args},"graph id":{_or_null(graph)}')

    def _copies(self) -> None:
        columns = "bytes copyKind srcKind dstKind graphNodeId"
        for process, lane, start, end, args, row in self._device_rows("MEMCPY", columns):
            size, kind, source, to, node = row
            places = f"{_called(_MEMORIES, source)} -> {_called(_MEMORIES, to)}"
            if kind is not None and _FIRST_UNIFIED <= kind < len(_COPIES):
                places = "unified memory"
            name = f'"Memcpy {_called(_COPIES, kind)} ({places})"'
            args = f'{args},"bytes":{_or_null(size)}{_node(None, node)}'
            process.slice("gpu_memcpy", name, lane, start, end, args)

    def _memsets(self) -> None:
        columns = "bytes memKind graphNodeId"
        for process, lane, start, end, args, row in self._device_rows("MEMSET", columns):
            size, kind, node = row
            args = f'{args},"bytes":{_or_null(size)}{_node(None, node)}'
            process.slice("gpu_memset", f'"Memset ({_called(_MEMORIES, kind)})"', lane, start, end, args)

    def _waits(self) -> None:
        for process, lane, start, end, args, (kind,) in self._device_rows(_WAIT, "syncType"):
            process.slice("cuda_sync", f'"{_called(_WAITS, kind)}"', lane, start, end, args)

    def _called(self) -> None:
        columns = "start end globalTid correlationId eventClass"
        # Where kernels do not say which call they answer, no call is one that was not answered.
        answered = f"{_ACTIVITY}KERNEL.correlationId" not in self._lacking()
        for start, end, tid, correlation, kind, name in self._database.rows(
            f"{_ACTIVITY}RUNTIME", columns, names="nameId"
        ):
            if name not in self._calls:
                self._calls[name] = _json(_VERSION.sub("", self._text(name) or _NO_NAME))
            process = self._of(tid)
            if kind is None and _DRIVER_CALL.match(self._calls[name], 1):
                kind = _DRIVER
            category = "cuda_driver" if kind == _DRIVER else "cuda_runtime"
            args = f'"correlation":{_or_null(correlation if answered else None)}'
            process.slice(category, self._calls[name], process.thread(tid or 0), start, end, args)

    def _overheads(self) -> None:
        for table in (f"{_ACTIVITY}OVERHEAD", "PROFILER_OVERHEAD"):
            for start, end, tid, kind, name in self._database.rows(
                table, "start end globalTid overheadType", names="nameId"
            ):
                process = self._of(tid)
                known = _called(_OVERHEADS, kind) if table.startswith(_ACTIVITY) else ""
                named = f'"{known}"' if known and known != "Unknown" else self._name(name)
                process.slice("overhead", named, process.thread(tid or 0), start, end, "")

    def _ranges(self) -> None:
        """NVTX ranges of one thread each; those of torch's emit_nvtx are the ops that they stand for."""
        columns = "start end eventType globalTid endGlobalTid domainId"
        for start, end, kind, tid, end_tid, domain, text, payload, number in self._database.rows(
            _RANGES, columns, "text", "binaryData", "textId"
        ):
            text = text or self._text(number)
            if kind not in _LASTING or not text or start is None or end_tid not in (None, 0, tid):
                continue
            process = self._of(tid)
            category, name, args = _range(text)
            if payload is not None and (match := _OF_ONE_MESSAGE.match(text)) is not None:
                args = self._collective(match[1], domain, payload)
            end = max(start, process.last_ns) if end is None else end  # still open when the recording ended
            process.slice(category, name, process.thread(tid or 0), start, end, args)

    def _collective(self, name: str, domain: int | None, payload: bytes) -> str:
        """The arguments, as JSON, of a collective in which one message is all that a rank gives and gets."""
        if len(payload) < _PAYLOAD.size:
            return ""
        fields = self._fields.get((domain, _PAYLOAD.unpack_from(payload)[2]), {})
        values = {
            field: int.from_bytes(payload[_PAYLOAD.size + at :][:8], "little")
            for field, at in fields.items()
            if len(payload) >= _PAYLOAD.size + at + 8
        }
        size, communicator = values.get(_MESSAGE), values.get(_COMMUNICATOR)
        if size is None:
            return ""
        said = {
            "Collective name": name.lower(),
            "dtype": "Byte",
            "In msg nelems": size,
            "Out msg nelems": size,
            "Process Group Name": "" if communicator is None else f"{communicator:x}",
        }
        return msgspec.json.encode(said).decode()[1:-1]

    def _labels(self) -> None:
        for thread, name in self._database.rows("ThreadNames", "globalTid", names="nameId"):
            process = self._processes.get((thread or 0) >> 24)
            if process is not None:
                args = f'"args":{{"name":{self._name(name)}}}'
                process.add(f'{{"ph":"M","name":"thread_name",{process.thread(thread or 0)},{args}}}')
        for number, name in self._database.rows("PROCESSES", "globalPid", "name"):
            process = self._processes.get((number or 0) >> 24)
            if process is not None and name:
                args = f'"args":{{"name":{_json(name)}}}'
                process.add(f'{{"ph":"M","name":"process_name","pid":{process.pid},"tid":0,{args}}}')


def _range(text: str) -> tuple[str, str, str]:
    """The category of a range, its name and its arguments as JSON."""
    match = _EMITTED.fullmatch(text)
    name, sequence, number, sizes = match.groups() if match is not None else (text, None, None, None)
    if sequence is None and number is None:
        return "nvtx" if _LIBRARY.match(text) else "user_annotation", _json(text), ""
    args = {"Sequence number": sequence, "External id": number, "Input Dims": sizes}
    category = "cpu_op" if sequence is not None or _OP.match(name) else "user_annotation"
    return category, _json(name), ",".join(f'"{key}":{value}' for key, value in args.items() if value)


def _recurring(host: pl.DataFrame) -> frozenset[str]:
    """The names of the ranges that are a program's steps, where it does not mark them as torch does: the
    outermost ranges of one thread, of one name but for its numbers, in which most calls lie, and nearly all
    of those from the first to the last of them."""
    ranges = host.filter(host["category"].cast(pl.String) == "user_annotation")
    calls = host.filter(host["correlation"].is_not_null())
    if ranges.is_empty() or calls.is_empty():
        return frozenset()
    named = ranges.with_columns(like=pl.col("name").cast(pl.String).str.replace_all(_NUMBER.pattern, "#"))
    families = (
        named.group_by("lane", "depth", "like")
        .agg(pl.len(), pl.col("name").cast(pl.String).unique(), pl.col("duration_ns").sum())
        .filter(pl.col("len") >= _RECURRING)
        .sort("depth", pl.col("duration_ns"), descending=[False, True])
    )
    for family in families.iter_rows(named=True):
        inside = named.filter(lane=family["lane"], depth=family["depth"], like=family["like"]).sort(
            "start_ns"
        )
        row = inside["start_ns"].search_sorted(calls["start_ns"], side="right").cast(pl.Int64) - 1
        ends = (inside["start_ns"] + inside["duration_ns"]).gather(row.set(row < 0, None))
        within = int((calls["start_ns"] < ends).sum())
        first, last = inside["start_ns"][0], inside["start_ns"][-1] + inside["duration_ns"][-1]
        between = int(calls["start_ns"].is_between(first, last).sum())
        if 2 * within > len(calls) and within >= _NEARLY_ALL * between:
            return frozenset(family["name"])
    return frozenset()


def _called(names: tuple[str, ...], value: int | None) -> str:
    return names[value] if value is not None and 0 <= value < len(names) else "Unknown"


def _node(graph: int | None, node: int | None) -> str:
    """The graph in which something ran, and its node: the upper half of a node's number is its graph's."""
    return f',"graph id":{graph or node >> 32},"graph node id":{node}' if node else ""


def _as_id(name: int | str | None) -> int | str | None:
    """An id as the number that it is, in whatever type it is stored."""
    return int(name) if isinstance(name, str) and _ID.fullmatch(name) else name


def _or_null(value: int | None) -> str:
    return "null" if value is None else str(value)


def _json(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _microseconds(ns: int | None) -> str:
    """As Kineto writes times: with three decimals."""
    if ns is None:
        return "null"
    if ns < 0:
        return f"-{_microseconds(-ns)}"
    return f"{ns // 1000}.{ns % 1000:03d}"
