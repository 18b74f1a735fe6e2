"""Whose every allocation was: by the program's own account, by its stack, and by how long it lived.

graph pool        the memory of a CUDA graph
parameter, gradient, optimizer state
                  what the program says it is; buffers count as parameters
communication     allocated by torch.distributed
workspace         what cuBLAS multiplies in
activation        allocated in the forward pass, and kept until the backward pass
input             kept likewise, and allocated before the first module of its step was called
temporary         given back in the pass in which it was allocated
cache             nothing runs backward, and it outlives its step
kept              in training, what outlives the step after its own; not what is younger than a step where the
                  history ends
                  (both: also what a variable has kept since before the history)
before            it was there before the history, and its owner is unknown
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise, takewhile
from pathlib import PurePath
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.memory.lifetimes import allocations
from kinetoscope.recording.memory import Held, HeldTensor
from kinetoscope.snapshot.model import Snapshot, Stack, StackFrame
from kinetoscope.trace.schema import whole

LIBRARY = re.compile(
    r"(^|/)(site-packages|dist-packages)/|(^|/)lib/python3[^/]*/|^<frozen |(^|/)torch/_"
    r"|(^|/)kinetoscope/capture/|^[A-Za-z]:/.*/Lib/"
)
LAYER = re.compile(r"(^|/)torch/nn/modules/(?!module\.py|_functions|container)(\w+)\.py$")
BUILDS = re.compile(r"(^|/)torch/nn/(modules/|parameter\.py$)")
OPTIMIZER = re.compile(r"(^|/)torch/optim/")
DISTRIBUTED = re.compile(r"(^|/)torch/(distributed/|nn/parallel/|_C/_distributed)")
CHECKPOINT = re.compile(r"(^|/)torch/utils/checkpoint\.py$")
# Its ``forward`` is that of a graph which was compiled with its backward.
COMPILED_FORWARD = re.compile(r"(^|/)torch/_functorch/_aot_autograd/\w*runtime_wrappers\.py$")
# What Inductor writes: a folder of two letters, a file that is named after its content.
GENERATED = re.compile(r"(^|/)([0-9a-z]{2})/(c\2[0-9a-z]{20,})\.py$")
CALL = ("_call_impl", "_wrapped_call_impl")
# A Python thread begins with one of these; autograd's own threads begin in the middle of torch.
BEGINNINGS = ("<module>", "_run_module_as_main", "_bootstrap", "_bootstrap_inner", "_run_code")


class StackOwner(NamedTuple):
    """Whose allocations with one stack are."""

    line: str = ""  # ``train.py:12`` of the innermost frame that is the user's own; empty where none is
    function: str = ""  # that frame's
    # the innermost module whose forward runs: torch's own by its file (``linear``), others by the line where
    # they are written
    module: str = ""
    # graph, graph_line: of generated code: the file's name and the line that allocates
    graph: str = ""
    graph_line: int = 0
    backward: bool = False  # nothing of the program's own thread is on it: autograd called
    forward: bool = False
    optimizer: bool = False
    communication: bool = False
    built: bool = False  # a module is made or moved to the device, and none runs
    trains: bool = False  # it is of a checkpoint, or of a graph that has a backward: no inference does either


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
    """The module that the innermost ``Module.__call__`` runs, below what wraps its ``forward``."""
    called: list[StackFrame] = []
    for inner, outer in pairwise(stack):
        called.append(inner)
        if outer.name in CALL and inner.name not in CALL:
            inner = next((frame for frame in reversed(called) if frame.name == "forward"), inner)
            layer = LAYER.search(inner.file)
            return layer[2] if layer else f"{inner.name} ({PurePath(inner.file).name}:{inner.line})"
    return ""


MIB = 1 << 20
# Of Hopper and later, and of others (torch's aten/src/ATen/cuda/CublasHandlePool.cpp).
SIZES = (32 * MIB, 8 * MIB + 128 * 1024)
OF_LT = MIB  # cuBLASLt's own, which the same call asks for
OWNER = "cuBLAS"


def workspaces(known: pl.DataFrame) -> pl.Series:
    """The numbers of cuBLAS' workspaces among a device's allocations: no tensors, and never given back.

    Each thread that multiplies has one for every stream, of a size that is known. Where another allocation of
    that size lasts as long and has no known owner, neither is called one.
    """
    lasting = known.filter(
        pl.col("end").is_null(), pl.col("named").is_null(), pl.col("pool") == 0,
        ~pl.col("optimizer"), ~pl.col("communication"),
    )  # fmt: skip
    own = _only(lasting.filter(pl.col("forward"), ~pl.col("backward"), pl.col("bytes").is_in(SIZES)))
    # Autograd's thread runs modules where it computes anew what a checkpoint did not save.
    is_call = pl.col("stack").is_in(own["stack"].implode()) | (pl.col("backward") & pl.col("forward"))
    of_lt = is_call & (pl.col("bytes") == OF_LT)
    autograd = pl.col("backward") & pl.col("bytes").is_in(own["bytes"].implode())
    found = [own, _only(lasting.filter(autograd)), _only(lasting.filter(of_lt))]
    return pl.concat(found)["allocation"] if len(own) else own["allocation"]


def _only(similar: pl.DataFrame) -> pl.DataFrame:
    """Allocations that are the only ones of their thread, stream and size; of older ones, where there are
    any."""
    kind = "backward", "stream", "bytes"
    is_old = pl.col("start").is_null()
    return similar.filter(is_old == is_old.any().over(kind)).filter(pl.len().over(kind) == 1)


ROLES = (
    "parameter", "gradient", "optimizer state", "activation", "input", "temporary", "cache", "graph pool",
    "communication", "workspace", "kept", "before",
)  # fmt: skip
NAMED = {
    "parameter": "parameter",
    "buffer": "parameter",
    "gradient": "gradient",
    "optimizer state": "optimizer state",
}
# Modules whose results only the next layer takes; alive in so many layers, backward's.
ONLY_BACKWARD, LAYERS = ("activation", "batchnorm", "dropout", "normalization"), 3
MORE = "{} and {} more"
PLACED = {"place": pl.Int64, "address": pl.Int64, "named": pl.String, "name": pl.String, "at_us": pl.Int64}


def owned(snapshot: Snapshot, held: Held | None, device: int) -> pl.DataFrame:
    """The allocations of a device (see ``lifetimes.ALLOCATIONS``) with ``allocation`` (their number),
    ``step`` and ``last_step`` (counted from the first boundary: 0 lies before it), ``role``, ``name`` (the
    program's own, of the tensor, or of the variable that holds it at the snapshot) and what their stacks say.
    """
    known = allocations(snapshot).filter(pl.col("device") == device).with_row_index("allocation")
    known = known.join(stack_owners(snapshot), on="stack", how="left", maintain_order="left")
    known = _in_steps(_in_passes(known, snapshot, device), held.boundaries_ns if held else ())
    names = _names(known, held.tensors if held else (), device)
    known = known.join(names, on="allocation", how="left", maintain_order="left")
    # One that ran out of memory in its first forward pass has run nothing backward yet.
    meant = held.failed_bytes is not None and held.has_optimizer if held is not None else _saves(known)
    is_whole = held is not None and whole(known["step"].max()) < len(held.boundaries_ns)
    return known.with_columns(role=_role(known, meant, is_whole)).drop(
        "named", "pass", "last_pass", "ran_backward", "called"
    )


def _in_passes(known: pl.DataFrame, snapshot: Snapshot, device: int) -> pl.DataFrame:
    """Add the passes that allocations begin and end in: intervals of the history in which the program's own
    threads allocate, or autograd does; and with the place at which the pass first called a module."""
    has_stacks = len(snapshot.stacks) > 1
    older, begun = (known.filter(pl.col("start").is_null() == is_older) for is_older in (True, False))
    begun = begun.with_columns(ran_backward=pl.col("backward") & has_stacks)
    begun = begun.with_columns(pl.col("ran_backward").rle_id().cast(pl.Int64).alias("pass"))
    calls = begun.filter(pl.col("forward")).group_by("pass").agg(called=pl.col("start").min())
    begun = begun.join(calls, on="pass", how="left", maintain_order="left")
    ends = known.select("allocation", "end").drop_nulls().sort("end")
    ends = ends.join_asof(begun.select("start", last_pass="pass"), left_on="end", right_on="start")
    return pl.concat([older, begun], how="diagonal").join(
        ends.select("allocation", "last_pass"), on="allocation", how="left", maintain_order="left"
    )


def _in_steps(known: pl.DataFrame, boundaries_ns: Sequence[int]) -> pl.DataFrame:
    """Add the steps that allocations begin and end in; without steps, passes stand for them."""
    if not boundaries_ns:
        # Where the history begins in a backward pass, the first step is what is left of one.
        cut = bool(known.filter(pl.col("pass") == 0)["ran_backward"].any())
        step, last_step = ((pl.col(name) + cut) // 2 for name in ("pass", "last_pass"))
        return known.with_columns(step=step, last_step=last_step)
    marks = pl.Series([ns // 1000 for ns in boundaries_ns])
    return known.with_columns(
        pl.when(pl.col(name).is_not_null())
        .then(pl.Series(marks.search_sorted(known[name].fill_null(0))).cast(pl.Int64))
        .alias(step)
        for name, step in (("start_us", "step"), ("end_us", "last_step"))
    )


def _names(known: pl.DataFrame, tensors: Sequence[HeldTensor], device: int) -> pl.DataFrame:
    """The program's own names of allocations: ``allocation``, ``named`` (its role), ``name``."""
    rows = [
        (place, one.address, one.role, one.name, one.time_ns // 1000)
        for place, one in enumerate(tensors)
        if one.device == device
    ]
    placed = known.select("allocation", "address", "start_us", "end_us")
    found = pl.DataFrame(rows, PLACED, orient="row").join(placed, on="address")
    at_us, begun = pl.col("at_us"), pl.col("start_us").fill_null(0)
    lay_there = (at_us > 0) & (begun <= at_us) & (pl.col("end_us").is_null() | (pl.col("end_us") > at_us))
    found = found.filter(lay_there | ((at_us == 0) & pl.col("end_us").is_null()))
    rank = pl.col("named").replace_strict({role: n for n, role in enumerate((*NAMED, "variable"))}, default=9)
    found = found.sort(rank, "place", maintain_order=True)
    several = pl.col("name").n_unique()
    return found.group_by("allocation", maintain_order=True).agg(
        pl.col("named").first(),
        name=pl.when(several > 1)
        .then(pl.format(MORE, pl.col("name").first(), several - 1))
        .otherwise(pl.col("name").first()),
    )


def _saves(known: pl.DataFrame) -> bool:
    """Whether what is there is for a backward pass by its stack, or since nothing else needs it: results of
    torch's own layers that the next ones have used, in layer after layer."""
    there = known.filter(pl.col("end").is_null())
    last = there.filter(pl.col("forward"), pl.col("module").is_in(ONLY_BACKWARD))
    return bool(there["trains"].any() or (last.group_by("stack", "bytes").len()["len"] >= LAYERS).any())


def _role(known: pl.DataFrame, meant_to_train: bool, is_whole: bool) -> pl.Expr:
    """``is_whole``: the history ends with a step, not in it."""
    trains = bool(known["ran_backward"].any()) or meant_to_train
    # What the backward pass left to the snapshot is a gradient, if the program has it as one; without its
    # account, what an unfinished pass has left is one if a parameter is as large.
    built = known.filter(pl.col("built"), pl.col("end").is_null())["bytes"]
    is_last = pl.col("pass") == pl.col("pass").max()
    is_strange = is_last & ~pl.col("bytes").is_in(built.implode()) & (not built.is_empty())
    is_no_gradient = pl.col("ran_backward") & pl.col("end").is_null()
    is_no_gradient &= pl.lit(True) if known["named"].is_not_null().any() else is_strange
    unfinished = is_no_gradient & is_last
    outlived = (pl.col("last_pass") > pl.col("pass")).fill_null(False)
    passed = (pl.col("end").is_null() & ~unfinished) | outlived
    last = pl.col("step").max() if known["step"].count() else pl.lit(0)
    steps = pl.coalesce("last_step", last + 1) - pl.col("step")
    older = pl.coalesce("last_step", last + is_whole) - pl.col("step") > 1
    of_optimizer = pl.when(pl.col("end").is_null() | (steps > 1)).then(pl.lit("optimizer state"))
    before_modules = pl.col("called").is_not_null() & (pl.col("start") < pl.col("called"))
    return (
        pl.when(pl.col("pool") != 0)
        .then(pl.lit("graph pool"))
        .when(pl.col("named").is_in(list(NAMED)))
        .then(pl.col("named").replace(NAMED))
        .when(pl.col("built") & pl.col("end").is_null() & (not known["named"].is_in(list(NAMED)).any()))
        .then(pl.lit("parameter"))
        .when(pl.col("communication"))
        .then(pl.lit("communication"))
        .when(pl.col("allocation").is_in(workspaces(known).implode()))
        .then(pl.lit("workspace"))
        .when(pl.col("optimizer"))
        .then(of_optimizer.otherwise(pl.lit("temporary")))
        .when(pl.col("start").is_null() & pl.col("named").is_null())
        .then(pl.lit("before"))
        .when(pl.col("start").is_null())
        .then(pl.lit("kept" if trains else "cache"))
        .when(~passed if trains else steps < 1)
        .then(pl.lit("temporary"))
        .when(pl.lit(not trains))
        .then(pl.lit("cache"))
        .when(pl.col("ran_backward") & ~is_no_gradient)
        .then(pl.lit("gradient"))
        .when(older | pl.col("ran_backward"))
        .then(pl.lit("kept"))
        .when(before_modules)
        .then(pl.lit("input"))
        .otherwise(pl.lit("activation"))
    )
