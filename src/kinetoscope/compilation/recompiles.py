"""Why a frame was compiled again: the guard that failed, in parts, and the change that stops it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kinetoscope.compilation.model import Reason

MISMATCH = re.compile(
    r"^tensor '(?P<subject>.+?)' (?P<what>size|stride) mismatch at index (?P<index>\d+)\. "
    r"expected (?P<expected>\S+), actual (?P<actual>\S+)"
)
PROPERTY = re.compile(
    r"^tensor '(?P<subject>.+?)' "
    r"(?P<what>dtype|rank|device|requires_grad|dispatch key set|Tensor dispatch key)s? "
    r"mismatch\. expected (?P<expected>.+?), actual (?P<actual>.+)$"
)
TYPE = re.compile(
    r"^expected type of '(?P<subject>.+?)' to be (?:a )?(?P<expected>.+?)'?,? '? ?but found (?P<actual>.+)$"
)
RANGE = re.compile(r"^(?P<low>\d+) <= (?P<subject>.+?)\.size\(\)\[(?P<index>\d+)\](?: <= (?P<high>\d+))?$")
SIZE_RELATION = re.compile(r"(?P<subject>[^\s(]+?)\.size\(\)\[(?P<index>\d+)\]")
CONSTANT = re.compile(r"^(?P<subject>.+?) == (?P<expected>.+)$")
IDENTITY = re.compile(r"___check_obj_id\((?P<subject>.+?), \d+\)")
SOURCE = re.compile(r"\s+# (?P<code>.*?)\s+# (?P<file>\S.*?):(?P<line>\d+) in (?P<function>\S+)")
LOCAL = re.compile(r"[LG]\['([^']+)'\]")  # ``L['x']`` is the user's ``x``

CONFIGURED_LIMIT = re.compile(r'"(?:recompile_limit|cache_size_limit)": (\d+)')
DEFAULT_LIMIT = 8


def limit(dynamo_config: str | None) -> int:
    """How often one code object may be compiled, from Dynamo's configuration as a log holds it (JSON)."""
    found = CONFIGURED_LIMIT.search(dynamo_config or "")
    return int(found[1]) if found else DEFAULT_LIMIT


def parse(text: str) -> Reason:
    """One reason as torch writes it: ``0/1: guard  # code  # file:line in function``."""
    of, colon, rest = text.strip().partition(": ")
    if not colon or not re.fullmatch(r"[!\d/]+", of):
        of, rest = "", text.strip()
    first = rest.split("\nUser stack trace", 1)[0].split("\n", 1)[0]
    guard = first.split("  # ", 1)[0].rstrip()
    place = SOURCE.search(first)
    kind, found = _kind(guard)
    index, subject = found.get("index"), found.get("subject")
    return Reason(
        of=of,
        guard=guard,
        kind=kind,
        subject=LOCAL.sub(r"\1", subject) if subject else None,
        dimension=int(index) if index is not None else None,
        expected=found.get("expected"),
        actual=found.get("actual"),
        file=place["file"] if place else None,
        line=int(place["line"]) if place else None,
        code=place["code"] if place else None,
    )


def _kind(guard: str) -> tuple[str, dict[str, str | None]]:
    if match := MISMATCH.match(guard):
        return match["what"], match.groupdict()
    if match := PROPERTY.match(guard):
        return match["what"].removeprefix("Tensor ").removesuffix(" set"), match.groupdict()
    if match := TYPE.match(guard):
        return "type", match.groupdict()
    if match := RANGE.match(guard):
        return "range", {**match.groupdict(), "expected": guard}
    if match := IDENTITY.search(guard):
        return "identity", match.groupdict()
    if guard.startswith("BACKEND_MATCH"):
        return "backend", {}
    if "_dynamo_dynamic_indices" in guard:
        return "marked-late", {}
    if guard.startswith("GLOBAL_STATE") or "global_state" in guard.lower():
        return "global-state", {}
    if match := SIZE_RELATION.search(guard):
        return "shape-relation", {**match.groupdict(), "expected": guard}
    if match := CONSTANT.match(guard):
        return ("length" if guard.startswith("len(") else "constant"), match.groupdict()
    return "other", {}


def advice(reasons: Iterable[Reason], *, limit_hit: bool) -> str:
    """The change that stops this recompilation, for the newest guard that failed (first of ``reasons``)."""
    first = next(iter(reasons), None)
    text = _advice(first) if first else "Record TORCH_LOGS=recompiles to see which guard failed."
    if limit_hit:
        text = (
            "The recompile limit is reached: from now on this function runs eagerly. "
            f"{text} Raising torch._dynamo.config.recompile_limit only moves the wall."
        )
    return text


def _advice(reason: Reason) -> str:
    name, index = reason.subject or "the value", reason.dimension
    match reason.kind:
        case "size":
            return (
                f"Dimension {index} of {name} varies ({reason.expected}, then {reason.actual}): call "
                f"torch._dynamo.mark_dynamic({name}, {index}) before the first call, "
                "or compile with dynamic=True; or pad to a few fixed sizes."
            )
        case "stride":
            return (
                f"The stride of dimension {index} of {name} varies "
                f"({reason.expected}, then {reason.actual}): "
                f"pass {name}.contiguous() (or always the same layout)."
            )
        case "range" | "shape-relation":
            return (
                f"The compiled code holds only while {reason.expected}: mark the dimension with its full "
                f"range, torch._dynamo.mark_dynamic({name}, {index}, min=…, max=…), or keep sizes inside it."
            )
        case "dtype" | "device" | "rank" | "requires_grad" | "dispatch key":
            return (
                f"The {reason.kind} of {name} varies ({reason.expected}, then {reason.actual}): "
                f"make it the same at every call, or compile one function for each."
            )
        case "type":
            return (
                f"{name} is sometimes {reason.expected}, sometimes {reason.actual}: pass always one type, "
                f"for instance torch.as_tensor({name})."
            )
        case "constant" if name.startswith("___stack"):
            return (
                "A number computed before a graph break was burnt into the code after it: keep it a tensor, "
                "or set torch._dynamo.config.capture_scalar_outputs = True so that there is no break."
            )
        case "constant":
            return _constant_advice(name, reason.expected or "")
        case "identity":
            return (
                f"{name} is another object than before: create it once, outside of the compiled function "
                "(lambdas, partials and modules built on every call each compile anew)."
            )
        case "length":
            return (
                "A list or dict changed its length: "
                "pass a fixed number of items, or stack them into one tensor."
            )
        case "global-state":
            return (
                "A global switch changed (grad mode, autocast, deterministic algorithms, default dtype or "
                "threads): call the function always under the same ones."
            )
        case "backend":
            return (
                "The same code was compiled with another backend object: call torch.compile once and keep "
                "what it returns, with one backend (a backend function that is made anew at each call is "
                "another one)."
            )
        case "marked-late":
            return "mark_dynamic was called after the first compilation: call it before the first call."
        case _:
            return "Make the guarded value the same at every call, or move the code that depends on it out."


def _constant_advice(name: str, expected: str) -> str:
    burnt = f"{name} was {expected} when the code was compiled, and is burnt into it: "
    if re.fullmatch(r"-?\d+", expected):
        return burnt + (
            f"pass {name} as an argument so that it becomes dynamic, or compile with dynamic=True "
            "(for an attribute of a module: torch._dynamo.config.allow_unspec_int_on_nn_module = True)."
        )
    if re.fullmatch(r"-?\d*\.\d+(?:e[+-]?\d+)?|-?(?:inf|nan)", expected):
        return burnt + f"pass it as a tensor, torch.tensor({name}), or set specialize_float = False."
    if expected in ("True", "False", "None"):
        return burnt + "each value compiles once; keep the branch on it outside of the compiled function."
    return burnt + (
        f"make {name} an argument that does not change, "
        "or move what depends on it outside of the compiled function."
    )
