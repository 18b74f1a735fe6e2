"""Guards: the tree that torch prints, each guard in plain words with the line that it comes from."""

from __future__ import annotations

import re

import msgspec

from kinetoscope.compilation.model import Guard, GuardTree

LINE = re.compile(r"^(?P<bars>(?:\| )*)\+- (?P<kind>\w+)(?::\s?(?P<rest>.*))?$")
PLACE = re.compile(
    r"^(?P<text>.*?)\s+# (?:(?P<code>.*?)\s+# )?(?P<file>[^\s#][^#]*?):(?P<line>\d+) in (?P<function>\S+)"
)
SOURCE = re.compile(r"source=(?P<source>.+?), accessed_by=")
TYPE = re.compile(r"type=(?P<type><.+?>)(?:, tag_safe|\s{2}#|$)")
LATENCY = re.compile(r"Guard latency = ([\d.]+) us")
TENSOR = re.compile(
    r"check_tensor\((?P<subject>.+?), (?P<cls>\w+), DispatchKeySet\((?P<keys>.*?)\), (?P<dtype>torch\.\w+), "
    r"device=(?P<device>\w+), requires_grad=(?P<grad>\w+), size=\[(?P<size>.*?)\], stride=\[(?P<stride>.*?)\]"
)
SUBJECT = re.compile(r"[LG]\['([^']+)'\]")
IMPORTED = re.compile(r"__import_(\w+)")

WORDS = {
    "TYPE_MATCH": "{subject} is still of the same type",
    "ID_MATCH": "{subject} is still the very same object",
    "CLASS_MATCH": "{subject} is still the very same class",
    "FUNCTION_MATCH": "{subject} is still the very same function",
    "CLOSURE_MATCH": "{subject} is still the same closure",
    "MODULE_MATCH": "{subject} is still the very same module",
    "EQUALS_MATCH": "{subject} still has the value it was compiled with",
    "CONSTANT_MATCH": "{subject} still has the value it was compiled with",
    "NONE_MATCH": "{subject} is still None",
    "BOOL_MATCH": "{subject} is still the same truth value",
    "DICT_LENGTH": "the dict still has as many items",
    "DICT_CONTAINS": "the dict still has (or still lacks) this key",
    "DICT_NOT_CONTAINS": "the dict still lacks this key",
    "DICT_VERSION": "the dict was not changed",
    "DICT_CONST_KEYS": "the dict still has the same keys",
    "LENGTH_CHECK": "the container still has as many items",
    "SEQUENCE_LENGTH": "the sequence still has as many items",
    "TUPLE_ITERATOR_LEN": "the iterator still has as many items left",
    "SET_CONTAINS": "the set still has this item",
    "NO_HASATTR": "this attribute was not set since (mark_dynamic sets _dynamo_dynamic_indices)",
    "HASATTR": "the object still has this attribute",
    "NOT_PRESENT_IN_GENERIC_DICT": "the instance does not override this attribute",
    "NO_TENSOR_ALIASING": "these tensors are still different tensors",
    "TENSOR_ALIASING": "these names still mean the same tensor",
    "OBJECT_ALIASING": "these names still mean the same object",
    "STORAGE_OVERLAPPING": "these tensors overlap in memory as they did",
    "DATA_PTR_MATCH": "the tensor still lives at the same address",
    "DUAL_LEVEL_MATCH": "the same level of forward-mode autograd is active",
    "GLOBAL_STATE": "grad mode, autocast, threads, default dtype and determinism are as they were",
    "DEFAULT_DEVICE": "the default device is as it was",
    "TORCH_FUNCTION_MODE_STACK": "no other __torch_function__ mode is active",
    "GRAD_MODE": "grad mode is as it was",
    "DETERMINISTIC_ALGORITHMS": "the determinism switch is as it was",
    "SHAPE_ENV": "the sizes still satisfy what the compiled code relies on",
    "SYMBOLIC_SHAPE_GUARD": "the sizes still satisfy what the compiled code relies on",
    "LAMBDA_GUARD": "this expression still holds",
    "WEAKREF_ALIVE": "the object is still alive",
    "RELATIONAL_GUARD": "these objects still relate as they did",
    "FLOAT_IS_NAN": "the number is still not-a-number",
    "COMPLEX_IS_NAN": "the number is still not-a-number",
    "RANGE_ITERATOR_MATCH": "the range is still the same",
    "MAPPING_KEYS_CHECK": "the mapping still has the same keys",
    "DYNAMIC_INDICES": "the same dimensions are marked dynamic",
    "DISPATCH_KEY_SET_MATCH": "the tensor still dispatches to the same backends",
}


def parse(text: str) -> GuardTree:
    """The tree of ``dynamo_cpp_guards_str``."""
    rows: list[Guard] = []
    subjects: list[str] = []
    checks = 0
    for line in text.split("\n"):
        match = LINE.match(line)
        if match is None:
            # Several conditions of one lambda guard stand on lines of their own.
            if rows and line.startswith("|") and "+- " not in line:
                check = f"{rows[-1].check}\n{line.lstrip('| ')}"
                rows[-1] = msgspec.structs.replace(rows[-1], check=check)
            continue
        depth = len(match["bars"]) // 2
        guard = _guard(depth, match["kind"], match["rest"] or "", subjects[:depth])
        del subjects[depth:]
        subjects.append(guard.subject or (subjects[-1] if subjects else ""))
        checks += guard.is_check
        rows.append(guard)
    latency = LATENCY.search(text)
    return GuardTree(roots=_tree(rows), checks=checks, latency_us=float(latency[1]) if latency else None)


def count_checks(text: str) -> int:
    """Number of guards without building the tree."""
    return text.count("+- ") - text.count("GuardManager")


def _guard(depth: int, kind: str, rest: str, around: list[str]) -> Guard:
    place = PLACE.match(rest)
    check = (place["text"] if place else rest).strip()
    source = SOURCE.search(rest)
    named = SUBJECT.search(check)
    subject = source["source"] if source else (around[-1] if around else "") or (named[0] if named else None)
    return Guard(
        depth=depth,
        kind=kind,
        subject=subject,
        check=check,
        words=_words(kind, check, rest, subject),
        file=place["file"] if place else None,
        line=int(place["line"]) if place else None,
        code=place["code"] if place else None,
    )


def _words(kind: str, check: str, rest: str, subject: str | None) -> str:
    name = SUBJECT.sub(r"\1", subject or "") or "the object"
    # Dynamo's own global for an imported module.
    name = IMPORTED.sub(lambda match: match[1].replace("_dot_", "."), name)
    type_ = TYPE.search(rest)
    if kind.endswith("Manager"):
        return f"{name}{f', a {_type(type_[1])}' if type_ else ''}"
    if kind == "TENSOR_MATCH" and (tensor := TENSOR.search(check)):
        sizes = ["any" if extent == "None" else extent for extent in tensor["size"].split(", ")]
        gradient = "with" if tensor["grad"] == "True" else "without"
        return (
            f"{name} is a {tensor['dtype'].removeprefix('torch.')} tensor of shape [{', '.join(sizes)}] "
            f"with strides [{tensor['stride']}] on device {tensor['device']}, {gradient} gradient"
        )
    words = WORDS.get(kind, "this check still holds").format(subject=name)
    if kind == "TYPE_MATCH" and type_:
        words = f"{name} is still a {_type(type_[1])}"
    return words


def _type(text: str) -> str:
    return text.removeprefix("<class '").removesuffix("'>")


def _tree(rows: list[Guard]) -> tuple[Guard, ...]:
    """Children before parents, in one pass from the end."""
    waiting: dict[int, list[Guard]] = {}
    for guard in reversed(rows):
        children = tuple(reversed(waiting.pop(guard.depth + 1, [])))
        waiting.setdefault(guard.depth, []).append(msgspec.structs.replace(guard, children=children))
    return tuple(reversed(waiting.get(0, [])))
