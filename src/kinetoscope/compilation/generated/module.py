"""The modules that Inductor writes: their kernels, the calls of them, and where each kernel is from."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from kinetoscope.compilation.fx import item_bytes
from kinetoscope.compilation.model import CallCost, CompileRow

EMPTY = re.compile(r"^\s+(\w+) = empty_strided_\w+\(\((.*?)\), \(.*?\), torch\.(\w+)")
ASSERTED = re.compile(r"^\s+assert_size_stride\((\w+), \((.*?)\), ")
REUSED = re.compile(r"^\s+(\w+) = (\w+); del ")
RESHAPED = re.compile(r"^\s+(\w+) = reinterpret_tensor\((\w+), \((.*?)\), ")
VIEW = re.compile(r"reinterpret_tensor\(\w+, \((.*?)\), ")
# Torch's dtypes, by the unit of a device that multiplies them.
TORCH_PEAKS = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
# Calls that multiply matrices, and where the two stand among their arguments.
PRODUCTS = {
    "extern_kernels.mm": 0,
    "extern_kernels.bmm": 0,
    "extern_kernels.addmm": 1,
    "extern_kernels.baddbmm": 1,
    "extern_kernels.bias_addmm": 1,
}

Shape = tuple[int, ...]


class Buffers:
    """Shapes and dtypes of the names so far; a shape with a symbol in it is not known."""

    def __init__(self) -> None:
        self.shapes: dict[str, Shape | None] = {}
        self.dtypes: dict[str, str] = {}

    def take(self, line: str) -> None:
        if "empty_strided" in line and (m := EMPTY.match(line)):
            self.shapes[m[1]], self.dtypes[m[1]] = _shape(m[2]), m[3]
        elif "assert_size_stride" in line and (m := ASSERTED.match(line)):
            self.shapes[m[1]] = _shape(m[2])
        elif "; del " in line and (m := REUSED.match(line)):
            self.shapes[m[1]] = self.shapes.get(m[2])
            self.dtypes[m[1]] = self.dtypes.get(m[2], "")
        elif "reinterpret_tensor" in line and (m := RESHAPED.match(line)):
            self.shapes[m[1]] = _shape(m[3])
            self.dtypes[m[1]] = self.dtypes.get(m[2], "")

    def bytes(self, pointers: Iterable[tuple[str, str]], arguments: str) -> int | None:
        """Bytes one call reads and writes if it touches every buffer whole, once (in-place ones twice).

        ``pointers``: the kernel's tensor parameters and their dtypes, in the order of the arguments.
        """
        total = 0
        pointers, given = tuple(pointers), _split(arguments)
        if not pointers or len(given) < len(pointers):
            return None
        for (name, dtype), argument in zip(pointers, given, strict=False):
            shape, item = self._of(argument), item_bytes(dtype)
            if shape is None or item is None:
                return None
            total += prod(shape) * item * (2 if name.startswith("in_out") else 1)
        return total

    def matrix_product(self, callee: str, arguments: str) -> CallCost | None:
        """FLOPs (a multiply-add is two) and bytes of a library's matrix product, everything touched once."""
        if callee not in PRODUCTS:
            return None
        at = PRODUCTS[callee]
        given = _split(arguments)
        out = next((a.removeprefix("out=") for a in given if a.startswith("out=")), "")
        dtype = self.dtypes.get(out, "")
        item = item_bytes(dtype)
        shapes = [self._of(argument) for argument in (*given[: at + 2], out)]
        if dtype not in TORCH_PEAKS or item is None or len(shapes) < at + 3:
            return None
        known = [shape for shape in shapes if shape is not None]
        if len(known) < len(shapes) or len(known[at]) < 2:
            return None
        flops = 2 * prod(known[-1]) * known[at][-1]
        return CallCost(flops=flops, bytes=sum(map(prod, known)) * item, dtype=TORCH_PEAKS[dtype])

    def _of(self, argument: str) -> Shape | None:
        view = VIEW.match(argument)
        return _shape(view[1]) if view else self.shapes.get(argument)


def _shape(listed: str) -> Shape | None:
    extents = [part.strip() for part in listed.split(",") if part.strip()]
    return tuple(map(int, extents)) if all(e.isdecimal() for e in extents) else None


def _split(arguments: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for i, character in enumerate(arguments):
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append(arguments[start:i].strip())
            start = i + 1
    return [*parts, arguments[start:].strip()]


AOT_ID = re.compile(r"# AOT ID: \['([^']*)'\]")
KERNEL = re.compile(r"^(?P<name>\w+) = async_compile\.(?P<language>\w+)\((?:'(?P<symbol>\w+)', )?", re.M)
COMMENTS = re.compile(r"(?:^#.*\n)+\Z", re.M)
KERNEL_PATH = re.compile(r"^# kernel path: (.*)$", re.M)
ORIGINAL_ATEN = re.compile(r"Source Nodes: \[(?P<source>.*?)\], Original ATen: \[(?P<aten>.*?)\]")
FRAGMENT = re.compile(r"^#   %(?P<name>\w+) : .*?call_function\[target=[\w.]+\]", re.M)
HANDLES = re.compile(r"# \[Provenance debug handles\] (.*)$")
CALL = re.compile(
    r"^\s+(?:\w+ = )?"
    r"(?P<name>(?:extern_kernels|torch\.ops|aten|prims|\w+)(?:\.\w+)*)\((?P<arguments>.*)\)\s*$"
)
HEURISTIC = re.compile(r"@triton_heuristics\.(\w+)\(")
SIZE_HINTS = re.compile(r"size_hints=(\{[^}]*\}|\[[^\]]*\])")
SIGNATURE = re.compile(r"'signature': \{([^}]*)\}")
POINTER = re.compile(r"'(\w+)': '\*(\w+)'")
KERNEL_GB = re.compile(r"'kernel_num_gb': ([\d.e+-]+)")
KERNEL_FLOP = re.compile(r"'kernel_flop': (\d+)")
MUTATED = re.compile(r"'mutated_arg_names': \[([^\]]*)\]")
INDEX_BOUND = re.compile(r"index out of bounds: 0 <= \w+ < (\d+)")
CPP_PARAMETERS = re.compile(r"void\s+kernel\((.*?)\)\s*{", re.DOTALL)
HINT = re.compile(r"'?(\w+)'?: (\d+)")
CODE_START = re.compile(r"\n(?:async_compile\.wait\(|def partition_\d+\()")

TF32 = "ALLOW_TF32 : tl.constexpr = True"
# Triton's dtypes, by the unit that multiplies them.
TRITON_PEAKS = {
    **{name: name for name in ("fp64", "fp32", "fp16", "bf16")},
    **dict.fromkeys(("fp8e4nv", "fp8e5", "fp8e4b8", "fp8e5b16"), "fp8"),
    "i8": "int8",
}

LIBRARIES = ("extern_kernels.", "torch.ops.", "aten.", "prims.")

# Inductor's heuristic (the decorator of a Triton kernel) → the project's category.
CATEGORIES = {
    "pointwise": "pointwise",
    "reduction": "reduction",
    "cooperative_reduction": "reduction",
    "persistent_reduction": "persistent reduction",
    "split_scan": "scan",
    "scan": "scan",
    "template": "template",
    "fixed_config": "template",
    "foreach": "foreach",
    "user_autotune": "user Triton",
}
# For kernels whose source names no heuristic: their names begin with its first letters, ``triton_poi``.
PREFIX = {f"triton_{heuristic[:3]}": category for heuristic, category in CATEGORIES.items()}


class Definition(CompileRow, frozen=True, kw_only=True):
    """A generated kernel; ``start`` and ``end`` frame its definition, with comments, in the module's text."""

    name: str
    symbol: str
    language: str
    category: str
    path: str | None
    aten_ops: tuple[str, ...]
    nodes: tuple[str, ...]
    size_hints: dict[str, int] | None
    pointers: tuple[tuple[str, str], ...]
    dtype: str | None
    bytes: int | None
    flops: int | None
    start: int
    end: int


class Comment(CompileRow, frozen=True, kw_only=True):
    """The comment that Inductor writes above a call, and the cost of a library's product by its arguments."""

    aten_ops: tuple[str, ...] = ()
    source_nodes: tuple[str, ...] = ()
    handles: tuple[str, ...] = ()
    cost: CallCost | None = None


class CalleeCalls(CompileRow, frozen=True, kw_only=True):
    """All calls of one callee in the module's ``call``, in order."""

    name: str
    comments: tuple[Comment, ...]
    bytes: int | None

    @property
    def count(self) -> int:
        return len(self.comments)

    @property
    def aten_ops(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(op for comment in self.comments for op in comment.aten_ops))

    @property
    def handles(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(handle for comment in self.comments for handle in comment.handles))

    @property
    def source_nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node for comment in self.comments for node in comment.source_nodes))


class InductorModule(CompileRow, frozen=True, kw_only=True):
    aot_id: str | None
    kernels: tuple[Definition, ...]
    calls: tuple[CalleeCalls, ...]
    handles: frozenset[str]


def parse(text: str) -> InductorModule:
    aot_id = AOT_ID.search(text, 0, 400)
    # With benchmark_kernel every kernel's source has a `def call(` of its own: that name marks nothing.
    code = CODE_START.search(text)
    definitions_end = code.start() if code else max(text.find("\ndef call("), 0)
    kernels = tuple(_definitions(text, definitions_end))
    calls = _calls(text[definitions_end:], {k.name: k for k in kernels})
    return InductorModule(
        aot_id=aot_id[1] if aot_id else None,
        kernels=kernels,
        calls=calls,
        handles=frozenset(handle for call in calls for handle in call.handles),
    )


def direction(aot_id: str | None) -> str:
    """forward, backward or inference, from Inductor's AOT ID (``0_backward``)."""
    return next((d for d in ("backward", "forward") if d in (aot_id or "")), "inference")


def _definitions(text: str, end: int) -> list[Definition]:
    found = list(KERNEL.finditer(text, 0, end))
    result: list[Definition] = []
    previous = 0
    for row, match in enumerate(found):
        stop = found[row + 1].start() if row + 1 < len(found) else end
        comment = COMMENTS.search(text, previous, match.start())
        header = comment[0] if comment else ""
        close = text.rfind("''')", match.end(), stop)
        close = text.rfind("''', device_str", match.end(), stop) if close < 0 else close
        previous = stop if close < 0 else text.find("\n", close) + 1 or stop
        result.append(_definition(match, header, text[match.end() : previous], previous))
    return result


def _definition(match: re.Match[str], header: str, body: str, end: int) -> Definition:
    name = match["name"]
    path = KERNEL_PATH.search(header)
    original = ORIGINAL_ATEN.search(header)
    hints = SIZE_HINTS.search(body)
    signature = SIGNATURE.search(body)
    language = "triton" if match["language"] == "triton" else match["language"].split("_")[0]
    known = facts(name, language, body)
    return Definition(
        name=name,
        symbol=match["symbol"] or name,
        language=language,
        category=known.category,
        path=path[1].strip() if path else None,
        aten_ops=_names(original["aten"]) if original else (),
        nodes=tuple(dict.fromkeys(FRAGMENT.findall(header))),
        size_hints={k: int(v) for k, v in HINT.findall(hints[1])} if hints else None,
        pointers=tuple(POINTER.findall(signature[1])) if signature else (),
        dtype=_dtype(signature[1] if signature else "", body),
        bytes=known.inductor_bytes,
        flops=known.flops,
        start=match.start() - len(header),
        end=end,
    )


class KernelFacts(NamedTuple):
    """Facts of a kernel that are known without running it."""

    category: str
    parameters: tuple[str, ...]
    mutated: tuple[str, ...]
    inductor_bytes: int | None
    flops: int | None
    index_bound: int | None = None
    """Integers below this are valid indices everywhere in the kernel; null where it checks none."""


def facts(name: str, language: str, source: str) -> KernelFacts:
    """Read a kernel's source: its decorator and metadata (Triton), or its C++ signature."""
    bound = min(map(int, INDEX_BOUND.findall(source)), default=None)
    if language == "cpp":
        match = CPP_PARAMETERS.search(source)
        parameters = tuple(re.findall(r"(\w+)\s*(?:,|$)", match[1])) if match else ()
        mutated = tuple(parameter for parameter in parameters if parameter.startswith("in_out"))
        return KernelFacts(_category(name, source), parameters, mutated, None, None, bound)
    signature, mutates = SIGNATURE.search(source), MUTATED.search(source)
    gigabytes, flops = KERNEL_GB.search(source), KERNEL_FLOP.search(source)
    return KernelFacts(
        _category(name, source),
        tuple(re.findall(r"'(\w+)': '", signature[1])) if signature else (),
        tuple(re.findall(r"'(\w+)'", mutates[1])) if mutates else (),
        round(float(gigabytes[1]) * 1e9) if gigabytes else None,
        (int(flops[1]) or None) if flops else None,
        bound,
    )


def _category(name: str, source: str) -> str:
    if heuristic := HEURISTIC.search(source):
        if "triton_helpers.sort_with_index" in source:
            return "sort"
        if "tl.associative_scan" in source:
            return "scan"
        if heuristic[1] in CATEGORIES:
            return CATEGORIES[heuristic[1]]
    if name.startswith("cpp_"):  # what reduces has an accumulator
        return "reduction" if "tmp_acc" in source else "pointwise"
    return next((category for prefix, category in PREFIX.items() if name.startswith(prefix)), "other")


def _dtype(signature: str, body: str) -> str | None:
    """The dtype of a kernel's first argument, as a device's peaks name it."""
    first = POINTER.search(signature)
    dtype = TRITON_PEAKS.get(first[2]) if first else None
    return "tf32" if dtype == "fp32" and TF32 in body else dtype


def _names(listed: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for part in listed.split(",") if (name := part.strip())))


def _calls(body: str, kernels: dict[str, Definition]) -> tuple[CalleeCalls, ...]:
    """Calls of kernels and library functions, with the comments that Inductor puts above each."""
    comments: dict[str, list[Comment]] = {}
    moved: dict[str, int | None] = {}
    buffers = Buffers()
    above: re.Match[str] | None = None
    handles: tuple[str, ...] = ()
    for line in body.split("\n"):
        if "#" in line and (found := ORIGINAL_ATEN.search(line)):
            above = found
            continue
        if "# [Prov" in line and (listed := HANDLES.search(line)):
            handles = _names(listed[1])
            continue
        buffers.take(line)
        call = CALL.match(line)
        if call is None:
            continue
        name = call["name"].removesuffix(".run")
        if name not in kernels and not name.startswith(LIBRARIES):
            continue
        comment = Comment(
            aten_ops=_names(above["aten"]) if above else (),
            source_nodes=_names(above["source"]) if above else (),
            handles=handles,
            cost=None if name in kernels else buffers.matrix_product(name, call["arguments"]),
        )
        comments.setdefault(name, []).append(comment)
        if name in kernels:
            size = buffers.bytes(kernels[name].pointers, call["arguments"])
            before = moved.get(name, 0)
            moved[name] = None if size is None or before is None else before + size
        above, handles = None, ()
    return tuple(
        CalleeCalls(
            name=name,
            comments=tuple(listed),
            bytes=None if (total := moved.get(name)) is None else total // len(listed),
        )
        for name, listed in comments.items()
    )
