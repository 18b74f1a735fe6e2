"""The modules that Inductor writes: their kernels, the calls of them, and where each kernel is from."""

from __future__ import annotations

import re

from kinetoscope.compilation.generated.buffers import Buffers
from kinetoscope.compilation.model import CallCost, Row

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
HINT = re.compile(r"'?(\w+)'?: (\d+)")
CODE_START = re.compile(r"\n(?:async_compile\.wait\(|def partition_\d+\()")

TF32 = "ALLOW_TF32 : tl.constexpr = True"
# Triton's dtypes, by the unit that multiplies them.
PEAKS = {
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
# For kernels whose source names no heuristic: Inductor's own prefixes.
PREFIX = {
    "triton_poi": "pointwise",
    "triton_per": "persistent reduction",
    "triton_red": "reduction",
    "triton_spl": "scan",
    "triton_tem": "template",
    "triton_for": "foreach",
}


class Definition(Row, frozen=True, kw_only=True):
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


class Comment(Row, frozen=True, kw_only=True):
    """What Inductor writes above one call and, of a library's matrix product, what its arguments tell."""

    aten_ops: tuple[str, ...] = ()
    source_nodes: tuple[str, ...] = ()
    handles: tuple[str, ...] = ()
    cost: CallCost | None = None


class Call(Row, frozen=True, kw_only=True):
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


class Module(Row, frozen=True, kw_only=True):
    aot_id: str | None
    kernels: tuple[Definition, ...]
    calls: tuple[Call, ...]
    handles: frozenset[str]


def parse(text: str) -> Module:
    aot_id = AOT_ID.search(text, 0, 400)
    # With benchmark_kernel every kernel's source has a `def call(` of its own: that name marks nothing.
    code = CODE_START.search(text)
    definitions_end = code.start() if code else max(text.find("\ndef call("), 0)
    kernels = tuple(_definitions(text, definitions_end))
    calls = _calls(text[definitions_end:], {k.name: k for k in kernels})
    return Module(
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
    heuristic = HEURISTIC.search(body)
    path = KERNEL_PATH.search(header)
    original = ORIGINAL_ATEN.search(header)
    hints = SIZE_HINTS.search(body)
    signature = SIGNATURE.search(body)
    gigabytes, flop = KERNEL_GB.search(body), KERNEL_FLOP.search(body)
    return Definition(
        name=name,
        symbol=match["symbol"] or name,
        language="triton" if match["language"] == "triton" else match["language"].split("_")[0],
        category=_category(name, heuristic[1] if heuristic else "", body),
        path=path[1].strip() if path else None,
        aten_ops=_names(original["aten"]) if original else (),
        nodes=tuple(dict.fromkeys(FRAGMENT.findall(header))),
        size_hints={k: int(v) for k, v in HINT.findall(hints[1])} if hints else None,
        pointers=tuple(POINTER.findall(signature[1])) if signature else (),
        dtype=_dtype(signature[1] if signature else "", body),
        bytes=round(float(gigabytes[1]) * 1e9) if gigabytes else None,
        flops=int(flop[1]) if flop else None,
        start=match.start() - len(header),
        end=end,
    )


def _category(name: str, heuristic: str, body: str) -> str:
    if heuristic in CATEGORIES:
        return CATEGORIES[heuristic]
    if name.startswith("cpp_"):
        return cpp_category(body)
    return next((category for prefix, category in PREFIX.items() if name.startswith(prefix)), "other")


def cpp_category(source: str) -> str:
    """The category of a C++ kernel: what reduces has an accumulator."""
    return "reduction" if "tmp_acc" in source else "pointwise"


def _dtype(signature: str, body: str) -> str | None:
    """What a kernel's first argument is made of, as a device's peaks name it."""
    first = POINTER.search(signature)
    dtype = PEAKS.get(first[2]) if first else None
    return "tf32" if dtype == "fp32" and TF32 in body else dtype


def _names(listed: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for part in listed.split(",") if (name := part.strip())))


def _calls(body: str, kernels: dict[str, Definition]) -> tuple[Call, ...]:
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
        Call(
            name=name,
            comments=tuple(listed),
            bytes=None if (total := moved.get(name)) is None else total // len(listed),
        )
        for name, listed in comments.items()
    )
