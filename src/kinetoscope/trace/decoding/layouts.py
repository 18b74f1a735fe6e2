"""The packed tables, and which attributes of an event's ``args`` each of them keeps."""

from __future__ import annotations

from typing import NamedTuple


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
