"""Kernel names that fit a table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

LONGEST = 60

# Namespaces that say nothing about what a kernel does.
_NAMESPACES = re.compile(
    r"(?<!\w)(?:at::native|at::cuda|at|c10|std|cub|thrust|detail|internal|\(anonymous namespace\))::"
)
# Kernels that run whatever functor they are given: it is the functor that tells them apart.
_RUNS_A_FUNCTOR = re.compile(r"(elementwise|reduce|multi_tensor_apply)_kernel")
_GENERIC_FUNCTOR = re.compile(
    r"^(gpu_kernel_impl(_nocast)?|gpu_index_kernel|ReduceOp|func_wrapper_t|[AB]?UnaryFunctor|BinaryFunctor"
    r"|(Unary|Binary|Ternary|Pointwise)Op\w*Functor|TensorList\w*Metadata)$"
)
_OF_TENSORS = re.compile(r"^([AB]?Unary|Binary)Functor$")
_FUNCTOR = re.compile(
    r"functor|ops$|_kernel|^launch_|_to_device$|_cuda|_impl$|_out$|adam|sgd|^(multiplies|plus|minus|divides|power_functor|minimum"
    r"|maximum"
    r"|Sqrt|Abs|Neg|Exp|Log|Reciprocal|Sign|Square|Identity|Copy)$",
    re.IGNORECASE,
)
# Kernels that are named after their only template argument.
_NAMED_INSIDE = re.compile(r"^cutlass\w*::(device_)?[Kk]ernel2?$")
# Names whose grammar is known: the parts that say what is computed, in which types and tiles.
_GRAMMARS = tuple(
    (re.compile(pattern), short)
    for pattern, short in (
        (
            # Products in TF32 are of tensors in float32, which the name has first.
            r"sm\d+_xmma_([a-z]+)_(?:.*?(?=tf32)|.*?)(bf16|f16|tf32|f32|f64|i8|e4m3|e5m2)(?=_|[a-z]).*?"
            r"_(nhwckrsc_n(?:hwc|chw)|[nt]{2})(?=_).*?tilesize([\dx]+).*",
            r"xmma_\1_\2_\3_\4",
        ),
        (
            r"cutlass_(?:\d+_)?(?:wmma_)?(?:tensorop_)?(?:bf16_|f16_)?(\w*?(?:gemm|fprop|dgrad|wgrad))"
            r"(?:_optimized)?_(\w+)",
            r"cutlass_\1_\2",
        ),
        (r"_ZN\d+cutlass\w*?6Kernel.*?(Conv2d(?:Fprop|Dgrad|Wgrad)).*", r"cutlass_\1"),
        (r"nvjet_sm\d+_(\w+)", r"nvjet_\1"),
        (
            r"cudnn_generated_fort_native_([a-z]+)_sm\d+_(\w+?)_w\w*?mma_(\w+?)_knob_\d+_([\dx]+)_.*",
            r"cudnn_\1_\2_\3_\4",
        ),
        (r"(Cijk_[A-Z][a-z]+_[A-Z][a-z]+_[A-Z]+)_.*?(MT[\dx]+)_.*", r"\1_\2"),
    )
)
# As they are written in a short name, of C++'s.
_TYPES = {
    "BFloat16": "bf16", "__nv_bfloat16": "bf16", "Half": "f16", "float": "f32", "double": "f64",
    "signed char": "i8", "int": "i32", "long": "i64",
}  # fmt: skip
_WRAPPING = re.compile(
    r"^CUDA(?=Functor)|^launch_|Functor_?|_kernel(_cuda|_impl)?$|_cuda(_kernel|_out)?$|_functor$|Ops$"
)
_LAMBDA = re.compile(r"\{lambda\(([^{}]*)\)#\d+\}")
_WORD = re.compile(r"[A-Za-z_]\w*")
_LENGTH = re.compile(r"K?(\d{1,6})(?!\d)")


def short_names(names: Iterable[str]) -> list[str]:
    """The short name of each; those that are the same are numbered in the order given: "f", "f #2", …"""
    seen: Counter[str] = Counter()
    result: list[str] = []
    for name in names:
        short = short_name(name)
        seen[short] += 1
        result.append(short if seen[short] == 1 else f"{short} #{seen[short]}")
    return result


def short_name(name: str) -> str:
    """A kernel's name in at most 60 characters.

    A C++ signature loses its return type, parameters, template arguments and well-known namespaces; a kernel
    that runs any functor keeps the functor and its element type (``vectorized_elementwise<Add f32>``). Names
    of a known grammar keep the operation, types and tile; a mangled name shows its nested identifiers. What
    is still too long is cut in the middle, with "…".
    """
    if name.startswith(("Memcpy", "Memset")):
        return name
    if name.startswith("_Z"):
        return _fit(_by_grammar(name) or _NAMESPACES.sub("", _demangled(name)))
    base, arguments = _split(_NAMESPACES.sub("", name.removeprefix("void ")))
    if _NAMED_INSIDE.match(base) and arguments:
        base, _ = _split(arguments.split(",")[0])
    if not _RUNS_A_FUNCTOR.search(base):
        return _fit(_by_grammar(base) or base or name.strip())
    functor = _functor(arguments)
    return _fit(f"{base.replace('_kernel', '')}<{functor}>" if functor else base)


def _by_grammar(name: str) -> str | None:
    matches = ((pattern.fullmatch(name), short) for pattern, short in _GRAMMARS)
    return next((match.expand(short) for match, short in matches if match), None)


def _split(name: str) -> tuple[str, str]:
    """The part before the first template bracket or parameter list, and what is inside that bracket."""
    opening = min((i for i in (name.find("<"), name.find("(")) if i > 0), default=len(name))
    if opening == len(name) or name[opening] == "(":
        return name[:opening].strip(), ""
    return name[:opening].strip(), name[opening + 1 : _closing(name, opening)]


def _closing(name: str, opening: int) -> int:
    """Where the bracket at ``opening`` closes; the end of a name that was cut off before."""
    depth = 0
    for i in range(opening, len(name)):
        if name[i] in "<({":
            depth += 1
        elif name[i] in ">)}" and name[i - 1] != "-":
            depth -= 1
            if depth == 0:
                return i
    return len(name)


def _functor(arguments: str) -> str:
    """The functor that a kernel runs, with its element type: ``Add f32``; empty if not known."""
    plain = _LAMBDA.sub("", arguments)
    telling = [match for match in _WORD.finditer(plain) if _FUNCTOR.search(match[0])]
    chosen = [match for match in telling if not _GENERIC_FUNCTOR.match(match[0])] or telling
    if not chosen:
        return ""
    word = chosen[0]
    # BinaryFunctor<BFloat16, …, MulFunctor<float>>: the tensors' type, not that of the arithmetic.
    outer = telling[0] if _OF_TENSORS.match(telling[0][0]) else word
    of = re.match(r"<([\w ]+)[,>]", plain[outer.end() :]) or re.match(r"<([\w ]+)[,>]", plain[word.end() :])
    taken = _LAMBDA.findall(arguments)
    kind = of[1] if of else next((types.split(",")[0] for types in taken if types), "")
    called = _WRAPPING.sub("", word[0]) or word[0]
    return f"{called} {_TYPES.get(kind, kind)}" if kind else called


def _demangled(name: str) -> str:
    """The nested identifiers of an Itanium-mangled name, joined by "::" (template arguments are left out)."""
    parts: list[str] = []
    position = 3 if name.startswith("_ZN") else 2
    while match := _LENGTH.match(name, position):
        position = match.end() + int(match[1])
        parts.append(name[match.end() : position])
    return "::".join(part for part in parts if part != "_GLOBAL__N_1") or name


def _fit(name: str) -> str:
    if len(name) <= LONGEST:
        return name
    tail = LONGEST // 3
    return f"{name[: LONGEST - tail - 1]}…{name[-tail:]}"
