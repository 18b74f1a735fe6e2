"""The program's own source, by its lines: the statement of each, the function of each statement."""

from __future__ import annotations

import ast
import builtins
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.events.rows import END, matching
from kinetoscope.analysis.events.torch_names import MODULE
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.origins.lines import FRAME
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace

Function = ast.FunctionDef | ast.AsyncFunctionDef
MOST = 200_000  # lines of a step that are followed: more may not all have been noted
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
# Methods that change their object alone: torch's that end in an underscore, those of lists and dictionaries.
IN_PLACE = re.compile(r"[a-z].*[^_]_")
WRITES = re.compile(
    rf"{IN_PLACE.pattern}|append|extend|update|pop|popleft|insert|add|clear|remove|setdefault|put"
)
# Names of objects that give something new each time.
GIVES_NEW = re.compile(r"(?i)iter|loader|batches|stream|queue|generator|sampler|cursor|env")
NUMBERS = ("numpy", "math", "scipy", "librosa")
DRAW = ("random", "stats")  # parts of them that give other numbers each time
AS_OBJECT = ("__call__", "forward")  # functions that are called by the name of their object


class FileLine(NamedTuple):
    file: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


class NotedLine(NamedTuple):
    """A line that the step with lines came by, or a module's call."""

    lane: int
    start_ns: int
    end_ns: int
    line: FileLine | None
    called: str | None  # the function, ``Model.forward``, or the module's class


class ModuleCall(NamedTuple):
    """A module's call, and from where it was made."""

    lane: int
    start_ns: int
    end_ns: int
    module: str
    line: str


class Located(NamedTuple):
    source: ProgramFile | None
    statement: ast.stmt | None
    function: Function | None

    @property
    def parts(self) -> Sequence[ast.AST]:
        """The nodes of the statement, without those of statements in it."""
        return self.source.parts[self.statement] if self.source and self.statement else ()


@remembered
def noted_lines(trace: Trace) -> list[NotedLine]:
    """The lines and module calls of a step, in order, a line before what it calls; none of more than
    ``MOST``."""
    host = trace.host_events
    is_python = matching(host, "category", "^python_function$")
    if is_python.sum() > MOST:
        return []
    is_module = matching(host, "name", f"^{MODULE}")
    frame = pl.col("name").cast(pl.String).str.extract_groups(FRAME).struct
    rows = (
        host.select(
            "lane",
            "start_ns",
            END,
            file=frame.field("1"),
            number=frame.field("2").cast(pl.Int64, strict=False),
            called=pl.when(is_module)
            .then(pl.col("name").cast(pl.String).str.strip_prefix(MODULE))
            .otherwise(frame.field("3")),
        )
        .filter(is_python)
        .drop_nulls("called")
        .sort("start_ns", pl.col("file").is_null(), maintain_order=True)
        .rows()
    )
    return [
        NotedLine(lane, start, end, None if file is None else FileLine(file, number), called)
        for lane, start, end, file, number, called in rows
    ]


class ProgramFile:
    def __init__(self, text: str) -> None:
        self.statement: dict[int, ast.stmt] = {}
        self.function: dict[ast.stmt, Function | None] = {}
        self.parts: defaultdict[ast.stmt, list[ast.AST]] = defaultdict(list)
        self.imported, self.of_torch, self.shared = set(dir(builtins)), set[str](), set[str]()
        self.of_numbers = set[str]()  # of libraries whose functions compute what they are given
        self.dictionaries = set[str]()  # names and attributes that are made as such
        self.resumed = set[Function]()  # generators, which go on where they were
        self._visit(ast.parse(text), None, None)

    def _visit(self, node: ast.AST, function: Function | None, statement: ast.stmt | None) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self.function[child], self.parts[child] = function, [child]
                body = getattr(child, "body", None)
                ends = max(child.lineno, body[0].lineno - 1) if body else child.end_lineno or child.lineno
                self.statement |= dict.fromkeys(range(child.lineno, ends + 1), child)
                self._visit(child, child if isinstance(child, FUNCTION) else function, child)
            elif statement is not None:
                self.parts[statement].append(child)
                self._visit(child, function, statement)
            if isinstance(child, (ast.Global, ast.Nonlocal)):
                self.shared |= set(child.names)
            elif isinstance(child, ast.alias):
                name = (child.asname or child.name).partition(".")[0]
                self.imported.add(name)
                of = node.module if isinstance(node, ast.ImportFrom) else child.name
                library, _, part = (of or "").partition(".")
                if library == "torch":
                    self.of_torch.add(name)
                elif library in NUMBERS and part not in DRAW:
                    self.of_numbers.add(name)
            elif isinstance(child, ast.Assign):
                self.dictionaries |= set(_dictionaries(child))
            elif isinstance(child, (ast.Yield, ast.YieldFrom)) and function is not None:
                self.resumed.add(function)


def _dictionaries(assigns: ast.Assign) -> Iterator[str]:
    """The names that a statement binds to dictionaries."""
    for target in assigns.targets:
        pairs = (
            zip(target.elts, assigns.value.elts, strict=False)
            if isinstance(target, ast.Tuple) and isinstance(assigns.value, ast.Tuple)
            else [(target, assigns.value)]
        )
        for one, value in pairs:
            made = isinstance(value, ast.Call) and last_name(value.func) in ("dict", "defaultdict")
            if made or isinstance(value, (ast.Dict, ast.DictComp)):
                yield last_name(one)


class ProgramFiles:
    """The files of the program that are Python's."""

    def __init__(self, program: Mapping[str, str]) -> None:
        self._program = program
        self._read: dict[str, ProgramFile | None] = {}

    def of(self, file: str) -> ProgramFile | None:
        """The file that ends with such a path, if there is one such file."""
        if file not in self._read:
            paths = [path for path in self._program if path == file or path.endswith(f"/{file}")]
            try:
                read = ProgramFile(self._program[paths[0]]) if len(paths) == 1 else None
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                read = None
            self._read.setdefault(file, read)  # threads share the first's nodes
        return self._read[file]

    def located(self, line: FileLine) -> Located:
        source = self.of(line.file)
        statement = source.statement.get(line.number) if source else None
        return Located(source, statement, source.function[statement] if source and statement else None)


@remembered
def program_files(run: LoadedRun) -> ProgramFiles:
    return ProgramFiles(run.program)


def first_of(function: Function) -> ast.stmt:
    """The statement of a function that runs first: not its docstring."""
    has_docstring = ast.get_docstring(function, clean=False) is not None and len(function.body) > 1
    return function.body[1 if has_docstring else 0]


def root(node: ast.AST) -> str:
    """``model`` of ``model.encoder.layers``; nothing of what is no such chain of names."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def last_name(node: ast.AST) -> str:
    """``layers`` of ``model.encoder.layers`` and of ``layers[0]``."""
    while isinstance(node, (ast.Subscript, ast.Starred)):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def stores(node: ast.AST) -> bool:
    """Whether a name, attribute or part is bound, written into or deleted."""
    return isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))


def parameters(function: Function) -> list[str]:
    of = function.args
    named = [*of.posonlyargs, *of.args, *of.kwonlyargs, of.vararg, of.kwarg]
    return [one.arg for one in named if one is not None]
