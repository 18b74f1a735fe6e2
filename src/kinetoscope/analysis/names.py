"""Kernel names that fit a table."""

from __future__ import annotations

import re

LONGEST = 60
_NAMESPACES = re.compile(
    r"(?:\b(?:at::native|at::cuda|at|c10|std|cub|thrust|detail|internal)|\(anonymous namespace\))::"
)
_WRAPPERS = ("elementwise_kernel", "reduce_kernel", "multi_tensor_apply_kernel", "index_elementwise_kernel")
_LAMBDA = re.compile(r"\{lambda\([^{}]*\)#\d+\}")


def short_name(name: str) -> str:
    """A kernel's name in at most about 60 characters.

    A C++ signature loses its return type, parameters, template arguments and well-known namespaces; a generic
    wrapper (``vectorized_elementwise_kernel<4, at::native::AddFunctor<float>, …>``) keeps the functor that tells it
    apart. A mangled name shows its nested identifiers. What is still too long is cut in the middle, with "…".
    """
    if name.startswith(("Memcpy", "Memset")):
        return name
    if name.startswith("_Z"):
        name = _demangled(name)
    base, arguments = _split(_NAMESPACES.sub("", name.removeprefix("void ")))
    functor = _functor(arguments) if any(base.endswith(wrapper) for wrapper in _WRAPPERS) else ""
    return _fit(f"{base}<{functor}>" if functor else base)


def _split(name: str) -> tuple[str, str]:
    """The part before the first template bracket or parameter list, and what is inside that bracket."""
    cut = min((i for i in (name.find("<"), name.find("(")) if i > 0), default=len(name))
    base = name[:cut].strip()
    if cut == len(name) or name[cut] == "(":
        return base, ""
    return base, name[cut + 1 : _closing(name, cut)]


def _closing(name: str, opening: int) -> int:
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
    """The identifier among a wrapper's template arguments that says what it computes."""
    words = re.findall(r"[A-Za-z_]\w*", _LAMBDA.sub("", arguments))
    telling = [
        w for w in words if re.search(r"functor|ops$|_kernel|_cuda|impl|_out$|Op$|Adam|SGD", w, re.IGNORECASE)
    ]
    generic = {"gpu_kernel_impl", "gpu_kernel_impl_nocast", "ReduceOp", "func_wrapper_t", "gpu_index_kernel"}
    unary = ("AUnaryFunctor", "BUnaryFunctor", "BinaryFunctor", "UnaryOpFunctor", "BinaryOpScalarFunctor")
    chosen = [w for w in telling if w not in generic]
    inner = [w for w in chosen if w not in unary]
    return (inner or chosen or [""])[0]


def _demangled(name: str) -> str:
    """The nested identifiers of an Itanium-mangled name, joined by "::" (template arguments are left out)."""
    parts: list[str] = []
    position = 3 if name.startswith("_ZN") else 2
    while match := re.compile(r"K?(\d+)").match(name, position):
        length = int(match[1])
        start = match.end()
        parts.append(name[start : start + length])
        position = start + length
    return "::".join(p for p in parts if p != "_GLOBAL__N_1") or name


def _fit(name: str) -> str:
    if len(name) <= LONGEST:
        return name
    tail = LONGEST // 3
    return f"{name[: LONGEST - tail - 1]}…{name[-tail:]}"
