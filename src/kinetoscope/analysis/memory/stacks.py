"""What the Python stacks of allocations say: the user's line, the module, the graph, and on whose behalf."""

from __future__ import annotations

import re
from itertools import pairwise, takewhile
from pathlib import PurePath
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.memo import remembered
from kinetoscope.snapshot.model import Snapshot, Stack, StackFrame

LIBRARY = re.compile(
    r"(^|/)(site-packages|dist-packages)/|(^|/)lib/python3[^/]*/|^<frozen |(^|/)torch/_"
    r"|(^|/)kinetoscope/capture/|^[A-Za-z]:/.*/Lib/"
)
TORCH = re.compile(r"(^|/)torch/(?!_inductor_generated)")
LAYER = re.compile(r"(^|/)torch/nn/modules/(?!module\.py|_functions|container)(\w+)\.py$")
BUILDS = re.compile(r"(^|/)torch/nn/(modules/|parameter\.py$)")
OPTIMIZER = re.compile(r"(^|/)torch/optim/")
DISTRIBUTED = re.compile(r"(^|/)torch/(distributed/|nn/parallel/|_C/_distributed)")
CHECKPOINT = re.compile(r"(^|/)torch/utils/checkpoint\.py$")
# Its ``forward`` is that of a graph which was compiled with its backward.
COMPILED_FORWARD = re.compile(r"(^|/)torch/_functorch/_aot_autograd/\w*runtime_wrappers\.py$")
COMPILER = re.compile(r"(^|/)torch/_(dynamo|inductor|functorch|subclasses|export)/")
# What Inductor writes: a folder of two letters, a file that is named after its content.
GENERATED = re.compile(r"(^|/)([0-9a-z]{2})/(c\2[0-9a-z]{20,})\.py$")
CALL = ("_call_impl", "_wrapped_call_impl")
# A Python thread begins with one of these; autograd's own threads begin in the middle of torch.
BEGINNINGS = ("<module>", "_run_module_as_main", "_bootstrap", "_bootstrap_inner", "_run_code")


class StackOwner(NamedTuple):
    """Whose allocations with one stack are.

    Attributes:
        line: ``train.py:12`` of the innermost frame that is the user's own; empty where none is.
        function: that frame's.
        module: the innermost module whose forward runs: torch's own by its file (``linear``), others by the
            line where they are written.
        graph, graph_line: of generated code: the file's name and the line that allocates.
        built: a module is made or moved to the device, and none runs.
        trains: it is of a checkpoint, or of a graph that has a backward: no inference does either.
        backward: nothing of the program's own thread is on it: autograd called.
    """

    line: str = ""
    function: str = ""
    module: str = ""
    graph: str = ""
    graph_line: int = 0
    backward: bool = False
    forward: bool = False
    optimizer: bool = False
    communication: bool = False
    built: bool = False
    trains: bool = False


SCHEMA = {
    "stack": pl.Int32, "line": pl.String, "function": pl.String, "module": pl.String, "graph": pl.String,
    "graph_line": pl.Int32, "backward": pl.Boolean, "forward": pl.Boolean, "optimizer": pl.Boolean,
    "communication": pl.Boolean, "built": pl.Boolean, "trains": pl.Boolean,
}  # fmt: skip


@remembered
def stack_owners(snapshot: Snapshot) -> pl.DataFrame:
    """One row per stack: whose the allocations with it are."""
    rows = [(number, *stack_owner(stack)) for number, stack in enumerate(snapshot.stacks)]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def stack_owner(stack: Stack) -> StackOwner:
    """Whose a stack is. One without a frame is autograd's, where stacks were recorded at all."""
    user = next((frame for frame in stack if not _is_library(frame)), None)
    generated = next(((match, frame) for frame in stack if (match := GENERATED.search(frame.file))), None)
    forward = any(frame.name in CALL for frame in stack) or generated is not None
    # What calls modules is not what allocates: DDP's forward, an optimizer that is given a closure.
    inside = [*takewhile(lambda frame: frame.name not in CALL, stack)]
    return StackOwner(
        line=f"{PurePath(user.file).name}:{user.line}" if user else "",
        function=user.name if user else "",
        module=_module(stack),
        graph=generated[0][3] if generated else "",
        graph_line=generated[1].line if generated else 0,
        backward=stack[-1].name not in BEGINNINGS if stack else True,
        forward=forward,
        optimizer=any(OPTIMIZER.search(frame.file) for frame in inside),
        communication=any(DISTRIBUTED.search(frame.file) for frame in takewhile(_is_library, inside)),
        built=not forward and any(BUILDS.search(frame.file) for frame in stack),
        trains=any(CHECKPOINT.search(frame.file) or _is_compiled_forward(frame) for frame in stack),
    )


def _is_compiled_forward(frame: StackFrame) -> bool:
    return frame.name == "forward" and COMPILED_FORWARD.search(frame.file) is not None


def _is_library(frame: StackFrame) -> bool:
    return bool(LIBRARY.search(frame.file) or GENERATED.search(frame.file)) or not frame.file


def _module(stack: Stack) -> str:
    """What the innermost ``Module.__call__`` calls, through what others wrap around its ``forward``."""
    called: list[StackFrame] = []
    for inner, outer in pairwise(stack):
        called.append(inner)
        if outer.name in CALL and inner.name not in CALL:
            inner = next((frame for frame in reversed(called) if frame.name == "forward"), inner)
            layer = LAYER.search(inner.file)
            return layer[2] if layer else f"{inner.name} ({PurePath(inner.file).name}:{inner.line})"
    return ""
