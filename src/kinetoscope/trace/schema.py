"""The columns of every table of a trace, declared once.

Times are integer nanoseconds on the trace's own clock (``ts`` of the file × 1000); nothing is rounded.
``id`` is the row number in its table and the key that other tables refer to; ``event`` is the position of
the event in the file's ``traceEvents`` and is what evidence points at.
``kinetoscope query`` and ``export --to parquet`` show these tables under these names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import polars as pl

DType = pl.DataType | type[pl.DataType]


class TableColumn(NamedTuple):
    dtype: DType
    meaning: str


Schema = dict[str, TableColumn]

TEXT = pl.String
NAME = pl.Categorical  # texts that repeat: four bytes a row, and as fast to compare as numbers

LANES: Schema = {
    "id": TableColumn(pl.UInt32, "row number; `lane` of the other tables"),
    "pid": TableColumn(TEXT, "process id as the file writes it (number or text)"),
    "tid": TableColumn(TEXT, "thread or stream id as the file writes it"),
    "process_name": TableColumn(TEXT, "from the file's metadata events"),
    "thread_name": TableColumn(TEXT, "from the file's metadata events"),
    "is_device": TableColumn(pl.Boolean, "device work was seen here"),
}

HOST_EVENTS: Schema = {
    "id": TableColumn(pl.UInt32, "row number, ordered by lane, start, longest first"),
    "event": TableColumn(pl.UInt32, "position in the file"),
    "category": TableColumn(
        NAME, "cpu_op, user_annotation, cuda_runtime, cuda_driver, python_function, overhead, …"
    ),
    "name": TableColumn(NAME, "as recorded"),
    "lane": TableColumn(pl.UInt32, "thread: row of `lanes`"),
    "start_ns": TableColumn(pl.Int64, ""),
    "duration_ns": TableColumn(pl.Int64, ""),
    "parent": TableColumn(pl.UInt32, "innermost event of the same lane that encloses it; null at the top"),
    "depth": TableColumn(pl.UInt16, "number of enclosing events"),
    "self_ns": TableColumn(pl.Int64, "duration less what its direct children cover"),
    "correlation": TableColumn(pl.Int64, "runtime and driver calls: joins to device work"),
    "external_id": TableColumn(
        pl.Int64, "Kineto's id of an op; runtime calls carry the id of the op they serve"
    ),
    "sequence": TableColumn(pl.Int64, "autograd sequence number; joins a forward op to its backward"),
    "forward_thread": TableColumn(pl.Int64, "thread that ran the forward op; non-zero only on backward ops"),
    "input_dims": TableColumn(NAME, "JSON of the recorded input shapes"),
    "input_types": TableColumn(NAME, "JSON of the recorded input dtypes"),
    "input_strides": TableColumn(NAME, "JSON of the recorded input strides"),
    "concrete_inputs": TableColumn(NAME, "JSON of the recorded scalar arguments"),
    "call_stack": TableColumn(NAME, "python stack of the op, innermost first, where it was recorded"),
    "python_id": TableColumn(pl.Int64, "id of a python_function event"),
    "python_parent_id": TableColumn(pl.Int64, "id of the python_function that called it"),
    "python_module_id": TableColumn(
        pl.Int64, "python_function events `nn.Module: NAME_n`: which module object"
    ),
    "kernel_file": TableColumn(
        NAME, "triton launches: the file of the generated kernel (its name is the hash), where recorded"
    ),
    "kernel_flops": TableColumn(pl.Int64, "triton launches: FLOPs that Inductor counted, where recorded"),
    "kernel_gigabytes": TableColumn(
        pl.Float64, "triton launches: 1e9 bytes that Inductor counted, where recorded"
    ),
    "collective": TableColumn(NAME, "record_param_comms: JSON of the recorded collective's arguments"),
}

DEVICE_EVENTS: Schema = {
    "id": TableColumn(pl.UInt32, "row number, ordered by device, start"),
    "event": TableColumn(pl.UInt32, "position in the file"),
    "kind": TableColumn(pl.Enum(["kernel", "memcpy", "memset"]), "from the file's `cat`"),
    "name": TableColumn(NAME, "as recorded"),
    "device": TableColumn(pl.Int32, "device index"),
    "stream": TableColumn(pl.Int64, "stream id"),
    "context": TableColumn(pl.Int64, ""),
    "lane": TableColumn(pl.UInt32, "row of `lanes`"),
    "start_ns": TableColumn(pl.Int64, ""),
    "duration_ns": TableColumn(pl.Int64, ""),
    "correlation": TableColumn(pl.Int64, "joins to the launch"),
    "external_id": TableColumn(pl.Int64, "id of the op that launched it, where recorded"),
    "grid": TableColumn(NAME, "JSON [x, y, z] blocks"),
    "block": TableColumn(NAME, "JSON [x, y, z] threads"),
    "registers": TableColumn(pl.Int32, "registers per thread"),
    "shared_memory_bytes": TableColumn(pl.Int64, "shared memory per block"),
    "blocks_per_sm": TableColumn(pl.Float64, ""),
    "warps_per_sm": TableColumn(pl.Float64, ""),
    "occupancy_percent": TableColumn(pl.Float64, "Kineto's estimate"),
    "bytes": TableColumn(pl.Int64, "copies and memsets: bytes moved"),
    "graph_node": TableColumn(pl.Int64, "CUDA-graph node id, where recorded"),
    "graph": TableColumn(pl.Int64, "CUDA-graph id, where recorded"),
    "collective": TableColumn(NAME, "communication kernels: JSON of the recorded collective's arguments"),
    # joined by trace.link
    "launch": TableColumn(pl.UInt32, "row of `host_events`: the runtime or driver call; null = unattributed"),
    "op": TableColumn(
        pl.UInt32,
        "row of `host_events`: innermost cpu_op (or annotation) around the launch, else named by External id",
    ),
    "step": TableColumn(
        pl.UInt32, "row of `steps` its launch belongs to (its own start if it has no launch)"
    ),
}

STEPS: Schema = {
    "id": TableColumn(pl.UInt32, "row number, ordered by start"),
    "event": TableColumn(pl.UInt32, "position in the file"),
    "name": TableColumn(TEXT, "ProfilerStep#N"),
    "host_event": TableColumn(pl.UInt32, "row of `host_events`"),
    "start_ns": TableColumn(pl.Int64, ""),
    "duration_ns": TableColumn(pl.Int64, ""),
}

DEVICE_ANNOTATIONS: Schema = {
    "event": TableColumn(pl.UInt32, "position in the file"),
    "category": TableColumn(NAME, "gpu_user_annotation, cuda_sync: on a device lane, but not work"),
    "name": TableColumn(NAME, ""),
    "device": TableColumn(pl.Int32, ""),
    "stream": TableColumn(pl.Int64, ""),
    "lane": TableColumn(pl.UInt32, ""),
    "start_ns": TableColumn(pl.Int64, ""),
    "duration_ns": TableColumn(pl.Int64, ""),
    "external_id": TableColumn(pl.Int64, ""),
}

FLOWS: Schema = {
    "category": TableColumn(
        NAME, "ac2g (launch to device work; by whichever name the file has), fwdbwd (forward to backward op)"
    ),
    "flow": TableColumn(pl.Int64, "the flow's id"),
    "is_start": TableColumn(pl.Boolean, "ph is 's' (else 'f' or 't')"),
    "lane": TableColumn(pl.UInt32, ""),
    "start_ns": TableColumn(pl.Int64, ""),
}

MEMORY: Schema = {
    "event": TableColumn(pl.UInt32, "position in the file"),
    "start_ns": TableColumn(pl.Int64, ""),
    "lane": TableColumn(pl.UInt32, ""),
    "device_type": TableColumn(pl.Int32, "0 CPU, 1 CUDA, …"),
    "device": TableColumn(pl.Int32, ""),
    "address": TableColumn(pl.UInt64, ""),
    "bytes": TableColumn(pl.Int64, "negative when freed"),
    "total_allocated": TableColumn(pl.Int64, ""),
    "total_reserved": TableColumn(pl.Int64, ""),
}

# Arguments that few events have, or most share: they are kept once for all events that say the same.
ARGUMENTS = {
    "host_events": [
        "forward_thread", "input_dims", "input_types", "input_strides", "concrete_inputs", "call_stack",
        "kernel_file", "kernel_flops", "kernel_gigabytes", "collective",
    ],
    "device_events": ["context", "blocks_per_sm", "warps_per_sm", "occupancy_percent"],
}  # fmt: skip
_ROW = TableColumn(pl.UInt32, "row of the table of arguments; null where there are none")


def _without_arguments(name: str) -> Schema:
    kept = {column: it for column, it in TABLES[name].items() if column not in ARGUMENTS[name]}
    return kept | {"arguments": _ROW}


def _arguments(name: str) -> Schema:
    return {column: TABLES[name][column] for column in ARGUMENTS[name]}


# The tables as they are shown.
TABLES: dict[str, Schema] = {
    "lanes": LANES,
    "host_events": HOST_EVENTS,
    "device_events": DEVICE_EVENTS,
    "steps": STEPS,
    "device_annotations": DEVICE_ANNOTATIONS,
    "flows": FLOWS,
    "memory": MEMORY,
}
# The tables as a trace holds them.
HELD: dict[str, Schema] = {
    **TABLES,
    "host_events": _without_arguments("host_events"),
    "host_arguments": _arguments("host_events"),
    "device_events": _without_arguments("device_events"),
    "device_arguments": _arguments("device_events"),
}


def empty(schema: Schema) -> pl.DataFrame:
    return pl.DataFrame(schema={name: column.dtype for name, column in schema.items()})


def conform(table: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """Put columns in the declared order and types; a column that is absent becomes nulls, as does a value
    that its type cannot hold (files say absurd things); others are dropped."""
    if not table.columns:
        return empty(schema)
    known = {column.name: column for column in table}
    return pl.DataFrame(
        [
            (
                known[name].cast(column.dtype, strict=False)
                if name in known
                else pl.Series(name, [None], column.dtype).new_from_index(0, len(table))
            )
            for name, column in schema.items()
        ]
    )


def typed(columns: Mapping[str, DType]) -> list[pl.Expr]:
    """The columns of a table in their declared order and types; a value that one cannot hold is an error."""
    return [pl.col(name).cast(dtype) for name, dtype in columns.items()]


def whole(aggregate: object) -> int:
    """The minimum, maximum or median of a column of numbers, cut to an integer; 0 where it has none. (Polars
    types an aggregate as whatever a column may hold.)"""
    return int(aggregate) if isinstance(aggregate, int | float) else 0
