"""One event of a Chrome trace as it is decoded, its packed table, and what that keeps of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

ABSENT = -(1 << 63)  # an integer that the file does not have; packed columns hold no nulls
NO_NUMBER = float("nan")
_NOTHING = msgspec.Raw(b"")
# What msgspec raises on bytes that are no events: malformed, ill-typed, nested past the stack.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

Label = str | int | float | bool | None


class Args(msgspec.Struct, frozen=True, gc=False):
    """The keys of an event's ``args`` that are read. ``Any``: producers write numbers as text, too."""

    external_id: Any = msgspec.field(default=ABSENT, name="External id")
    external_id_2021: Any = msgspec.field(default=ABSENT, name="external id")
    correlation: Any = ABSENT
    sequence: Any = msgspec.field(default=ABSENT, name="Sequence number")
    forward_thread: Any = msgspec.field(default=ABSENT, name="Fwd thread id")
    input_dims: msgspec.Raw = msgspec.field(default=_NOTHING, name="Input Dims")
    input_dims_2022: msgspec.Raw = msgspec.field(default=_NOTHING, name="Input dims")
    input_types: msgspec.Raw = msgspec.field(default=_NOTHING, name="Input type")
    input_strides: msgspec.Raw = msgspec.field(default=_NOTHING, name="Input Strides")
    concrete_inputs: msgspec.Raw = msgspec.field(default=_NOTHING, name="Concrete Inputs")
    call_stack: Any = msgspec.field(default=b"", name="Call stack")
    python_id: Any = msgspec.field(default=ABSENT, name="Python id")
    python_parent_id: Any = msgspec.field(default=ABSENT, name="Python parent id")
    python_module_id: Any = msgspec.field(default=ABSENT, name="Python module id")
    kernel_file: Any = b""
    kernel_flops: Any = msgspec.field(default=ABSENT, name="kernel_flop")
    kernel_gigabytes: Any = msgspec.field(default=NO_NUMBER, name="kernel_num_gb")
    device: Any = ABSENT
    stream: Any = ABSENT
    context: Any = ABSENT
    grid: msgspec.Raw = _NOTHING
    block: msgspec.Raw = _NOTHING
    registers: Any = msgspec.field(default=ABSENT, name="registers per thread")
    shared_memory_bytes: Any = msgspec.field(default=ABSENT, name="shared memory")
    blocks_per_sm: Any = msgspec.field(default=NO_NUMBER, name="blocks per SM")
    warps_per_sm: Any = msgspec.field(default=NO_NUMBER, name="warps per SM")
    occupancy_percent: Any = msgspec.field(default=NO_NUMBER, name="est. achieved occupancy %")
    bytes: Any = ABSENT
    graph_node: Any = msgspec.field(default=ABSENT, name="graph node id")
    graph: Any = msgspec.field(default=ABSENT, name="graph id")
    label: Any = msgspec.field(default=b"", name="name")
    device_type: Any = msgspec.field(default=ABSENT, name="Device Type")
    device_id: Any = msgspec.field(default=ABSENT, name="Device Id")
    address: Any = msgspec.field(default=b"", name="Addr")
    memory_bytes: Any = msgspec.field(default=ABSENT, name="Bytes")
    total_allocated: Any = msgspec.field(default=ABSENT, name="Total Allocated")
    total_reserved: Any = msgspec.field(default=ABSENT, name="Total Reserved")
    collective_name: Any = msgspec.field(default=None, name="Collective name")
    dtype: Any = None
    elements_in: Any = msgspec.field(default=None, name="In msg nelems")
    elements_out: Any = msgspec.field(default=None, name="Out msg nelems")
    group_size: Any = msgspec.field(default=None, name="Group size")
    group_name: Any = msgspec.field(default=None, name="Process Group Name")
    group_description: Any = msgspec.field(default=None, name="Process Group Description")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    split_in: Any = msgspec.field(default=None, name="In split size")
    split_out: Any = msgspec.field(default=None, name="Out split size")
    collective_sequence: Any = msgspec.field(default=None, name="Seq")
    collective_rank: Any = msgspec.field(default=None, name="Rank")
    source_rank: Any = msgspec.field(default=None, name="Src Rank")
    destination_rank: Any = msgspec.field(default=None, name="Dst Rank")


# What is read of a collective, by its name in the file: these alone are null where they are absent.
COLLECTIVE = {f.name: f.encode_name for f in msgspec.structs.fields(Args) if f.default is None}


class Event(msgspec.Struct, gc=False):
    """One element of ``traceEvents``. ``ts`` and ``dur`` are microseconds."""

    ph: Label = None
    cat: Label = None
    name: Label = None
    pid: Label = None
    tid: Label = None
    ts: Any = None
    dur: Any = None
    id: Label = ABSENT
    args: Args | None = None


class ExactEvent(Event, gc=False):
    """An event whose times are kept as written: a double does not hold nanoseconds since 1970."""

    ts: msgspec.Raw = _NOTHING
    dur: msgspec.Raw = _NOTHING


# Categories by the name they have today. Kineto of 2021 capitalised them and called some otherwise.
CATEGORIES = {
    "operator": "cpu_op",
    "runtime": "cuda_runtime",
    "driver": "cuda_driver",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "pythonfunction": "python_function",
    "async": "ac2g",
    "async_gpu": "ac2g",
    "async_cpu_to_gpu": "ac2g",
    "forward_backward": "fwdbwd",
}
DEVICE_KINDS = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "gpu_memset": "memset",
    "mtia_ccp_events": "kernel",
}
CALLS = frozenset(
    f"{maker}_{level}"
    for maker in ("cuda", "hip", "xpu", "mtia", "privateuse1")
    for level in ("runtime", "driver")
)
DEVICE_NOTES = frozenset(["gpu_user_annotation", "cuda_sync"])


def canonical(category: Label) -> str:
    """The category's name of today: ``Operator`` is ``cpu_op``."""
    lower = str(category or "").lower()
    return CATEGORIES.get(lower, lower)


def table_of(phase: Label, category: Label) -> str | None:
    """The packed table that holds events of this phase and category; None if none does."""
    category = canonical(category)
    if phase == "X":
        if category in DEVICE_KINDS:
            return "device"
        if category in CALLS:
            return "calls"
        if category in DEVICE_NOTES:
            return "notes"
        return "python" if category == "python_function" else "ops"
    if phase in ("s", "f", "t"):
        return "flows"
    if phase in ("i", "I"):
        return "instants"
    return "labels" if phase == "M" else None


class Layout(NamedTuple):
    """Attributes of ``Args``, by how they are packed; those of ``json`` together, as one text."""

    integers: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    json: tuple[str, ...] = ()
    collective: bool = False


_INPUTS = ("concrete_inputs", "input_types", "input_strides", "input_dims", "input_dims_2022")
_LIMITS = ("registers", "shared_memory_bytes", "bytes", "graph_node", "graph")
_OCCUPANCY = ("blocks_per_sm", "warps_per_sm", "occupancy_percent")
_PYTHON = ("python_id", "python_parent_id", "python_module_id")
_MEMORY = ("device_type", "device_id", "memory_bytes", "total_allocated", "total_reserved")
LAYOUTS = {
    "ops": Layout(
        ("external_id", "sequence", "forward_thread", "kernel_flops"),
        ("kernel_gigabytes",),
        ("call_stack", "kernel_file"),
        _INPUTS,
        collective=True,
    ),
    "calls": Layout(("external_id", "correlation")),
    "python": Layout(_PYTHON),
    "device": Layout(
        ("external_id", "correlation", "device", "stream", "context", *_LIMITS),
        _OCCUPANCY,
        json=("grid", "block"),
        collective=True,
    ),
    "notes": Layout(("external_id", "device", "stream")),
    "flows": Layout(),
    "instants": Layout(_MEMORY, texts=("address",)),
    "labels": Layout(texts=("label",)),
}
TABLES = tuple(LAYOUTS)
# The same under the name that other years gave it.
RENAMED = {"external_id": "external_id_2021", "input_dims": "input_dims_2022"}
