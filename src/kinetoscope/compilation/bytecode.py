"""Python bytecode before and after Dynamo, in the columns of ``dis``, with each opcode's meaning."""

from __future__ import annotations

import re

from kinetoscope.compilation.model import Instruction

LINE = re.compile(
    r"^\s*(?P<numbers>(?:\d+\s+)?)(?:-->\s*)?(?:(?:>>|L\d+:)\s*)?(?P<offset>\d+\s+)?"
    r"(?P<opcode>[A-Z][A-Z0-9_]+)(?:\s+(?P<argument>\S+))?(?:\s+\((?P<operand>.*)\))?\s*$"
)

# Each an opcode of its own until Python 3.10.
OPERATORS = "ADD SUBTRACT MULTIPLY MATRIX_MULTIPLY TRUE_DIVIDE FLOOR_DIVIDE MODULO POWER"

MEANINGS = {
    "RESUME": "start (or resumption) of the function",
    "LOAD_FAST": "push a local variable",
    "LOAD_FAST_BORROW": "push a local variable",
    "LOAD_FAST_CHECK": "push a local variable, checking that it is set",
    "LOAD_FAST_LOAD_FAST": "push two local variables",
    "LOAD_DEREF": "push a closure's variable",
    "LOAD_CLOSURE": "push a closure's cell",
    "LOAD_GLOBAL": "push a global; NULL + name: about to be called",
    "LOAD_NAME": "push a name",
    "LOAD_CONST": "push a constant",
    "LOAD_SMALL_INT": "push a small integer",
    "LOAD_ATTR": "replace the top by its attribute",
    "LOAD_METHOD": "push a method and its object",
    "LOAD_SUPER_ATTR": "push an attribute of super()",
    "STORE_FAST": "pop into a local variable",
    "STORE_FAST_STORE_FAST": "pop into two local variables",
    "STORE_FAST_LOAD_FAST": "pop into a local variable and push another",
    "STORE_ATTR": "set an attribute",
    "STORE_GLOBAL": "pop into a global",
    "STORE_DEREF": "pop into a closure's variable",
    "STORE_SUBSCR": "container[key] = value",
    "DELETE_FAST": "forget a local variable",
    "DELETE_SUBSCR": "del container[key]",
    "BINARY_OP": "apply a binary operator to the top two",
    **{
        f"{way}_{operator}": "apply a binary operator to the top two"
        for way in ("BINARY", "INPLACE")
        for operator in OPERATORS.split()
    },
    "BINARY_SUBSCR": "container[key]",
    "BINARY_SLICE": "container[start:end]",
    "UNARY_NEGATIVE": "negate the top",
    "UNARY_NOT": "not the top",
    "COMPARE_OP": "compare the top two",
    "IS_OP": "is / is not",
    "CONTAINS_OP": "in / not in",
    "TO_BOOL": "turn the top into a truth value",
    "PRECALL": "prepare a call",
    "CALL": "call with so many arguments",
    "CALL_KW": "call with keyword arguments",
    "CALL_FUNCTION": "call with so many arguments",
    "CALL_FUNCTION_KW": "call with keyword arguments",
    "CALL_METHOD": "call a method with so many arguments",
    "CALL_FUNCTION_EX": "call with *args (and **kwargs)",
    "CALL_INTRINSIC_1": "call one of the interpreter's own functions",
    "KW_NAMES": "names of the keyword arguments",
    "PUSH_NULL": "mark that a plain function is about to be called",
    "RETURN_VALUE": "return the top",
    "RETURN_CONST": "return a constant",
    "RETURN_GENERATOR": "return a generator",
    "YIELD_VALUE": "yield the top",
    "POP_TOP": "drop the top",
    "COPY": "push a copy from the stack",
    "DUP_TOP": "push the top once more",
    "ROT_TWO": "swap the top two",
    "ROT_THREE": "put the top below the next two",
    "SWAP": "swap with the top",
    "NOP": "nothing",
    "CACHE": "room for the interpreter's inline cache",
    "EXTENDED_ARG": "more bits for the next argument",
    "BUILD_TUPLE": "make a tuple of the top items",
    "BUILD_LIST": "make a list of the top items",
    "BUILD_MAP": "make a dict of the top items",
    "BUILD_CONST_KEY_MAP": "make a dict with constant keys",
    "BUILD_SET": "make a set of the top items",
    "BUILD_SLICE": "make a slice",
    "BUILD_STRING": "join strings",
    "FORMAT_VALUE": "format for an f-string",
    "LIST_EXTEND": "extend a list",
    "LIST_APPEND": "append to a list",
    "UNPACK_SEQUENCE": "unpack into so many items",
    "UNPACK_EX": "unpack with a starred name",
    "GET_ITER": "iter(top)",
    "FOR_ITER": "next item, or leave the loop",
    "END_FOR": "end of a for loop",
    **{
        f"POP_JUMP{way}_IF_{test.upper().replace(' ', '_')}": f"jump{where} if {test}"
        for way, where in (("", ""), ("_FORWARD", " forward"), ("_BACKWARD", " back"))
        for test in ("false", "true", "None", "not None")
    },
    "JUMP_ABSOLUTE": "jump",
    "JUMP_FORWARD": "jump forward",
    "JUMP_BACKWARD": "jump back",
    "JUMP_BACKWARD_NO_INTERRUPT": "jump back",
    "IMPORT_NAME": "import a module",
    "IMPORT_FROM": "from module import name",
    "MAKE_FUNCTION": "make a function object",
    "MAKE_CELL": "make a cell for a closure",
    "COPY_FREE_VARS": "copy the closure's cells in",
    "BEFORE_WITH": "enter a with block",
    "WITH_EXCEPT_START": "leave a with block by an exception",
    "PUSH_EXC_INFO": "start handling an exception",
    "POP_EXCEPT": "the exception is handled",
    "CHECK_EXC_MATCH": "does the except clause match",
    "RERAISE": "raise the exception again",
    "RAISE_VARARGS": "raise",
}


def parse(text: str) -> tuple[Instruction, ...]:
    """The instructions of a ``dis`` listing of any CPython from 3.10 on; lines that are not one are left out.

    Until 3.12 every row has an offset and some a line before it; from 3.13 on there are lines and labels.
    """
    rows = [match for row in text.split("\n") if (match := LINE.match(row))]
    with_offsets = any(match["numbers"].strip() and match["offset"] for match in rows)
    result: list[Instruction] = []
    for match in rows:
        first, second = match["numbers"].strip(), (match["offset"] or "").strip()
        if with_offsets and not second:
            first, second = "", first
        opcode, operand = match["opcode"], match["operand"]
        result.append(
            Instruction(
                line=int(first) if first else None,
                offset=int(second) if second else None,
                opcode=opcode,
                argument=match["argument"],
                operand=operand,
                meaning=_meaning(opcode, operand),
            )
        )
    return tuple(result)


def _meaning(opcode: str, operand: str | None) -> str:
    if operand and "__compiled_fn" in operand:
        return "the compiled graph"
    if operand and "__resume_at" in operand:
        return "the rest of the function, after a graph break"
    return MEANINGS.get(opcode, "")
