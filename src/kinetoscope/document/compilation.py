"""The contract's ``compilation``: what reports embed and ``graphs --json`` prints.

The rows that ``kinetoscope.compilation`` makes of a log are the contract's as they stand. Added here is
what a trace adds to them, and what ``graphs`` shows of one frame or kernel. ``UNSET`` has no key.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from kinetoscope.analysis.compiled.rows import Coverage, Matched
from kinetoscope.compilation.model import *

FrameText = int | str | GuardTree | tuple[Instruction, ...]


class Caches(CompileRow, frozen=True, kw_only=True):
    fx: Counts
    aot: Counts


class GraphTexts(CompileRow, frozen=True, kw_only=True):
    graph: int
    module: str
    post_grad: str | None


class Texts(CompileRow, frozen=True, kw_only=True):
    """The texts that ``--texts`` adds: for each frame its number, ``frame``, and its texts by name; guards
    and bytecode are parsed."""

    frames: tuple[dict[str, FrameText], ...]
    graphs: tuple[GraphTexts, ...]


class Compilation(CompileRow, frozen=True, kw_only=True):
    """``glossary``: what each op of the graphs does. ``source_lines`` (most device time first) and ``join``
    are there where a trace was joined to the log."""

    torch: str | None
    sources: tuple[LogSource, ...]
    frames: tuple[Frame, ...]
    stretches: tuple[PhaseSpan, ...]
    graph_breaks: tuple[GraphBreak, ...]
    recompilations: tuple[Recompilation, ...]
    graphs: tuple[CompiledGraph, ...]
    kernels: tuple[CompiledKernel, ...]
    failures: tuple[Failure, ...]
    autotune: tuple[Autotune, ...]
    cache: Caches
    compile_s: float
    coverage: Coverage
    notes: tuple[str, ...]
    glossary: dict[str, str]
    source_lines: tuple[LineTime, ...] | UnsetType = UNSET
    join: Matched | UnsetType = UNSET
    texts: Texts | UnsetType = UNSET


class FrameBytecode(CompileRow, frozen=True, kw_only=True):
    before: tuple[Instruction, ...]
    after: tuple[Instruction, ...]


class NamedTexts(CompileRow, frozen=True, kw_only=True):
    """The texts of one name: none where the frame has no such graph, several where it has several."""

    name: str
    texts: tuple[str, ...]


class FrameDetail(CompileRow, frozen=True, kw_only=True):
    """One compilation, closely. A part that was not requested is unset; null: the log does not have it.

    ``text_names``: the names that ``text`` may be of. ``meanings``: of its graphs' ops.
    """

    frame: Frame
    graphs: tuple[CompiledGraph, ...]
    meanings: dict[str, str]
    text_names: tuple[str, ...]
    guards: GuardTree | UnsetType | None = UNSET
    bytecode: FrameBytecode | UnsetType | None = UNSET
    text: NamedTexts | UnsetType = UNSET


class KernelDetail(CompileRow, frozen=True, kw_only=True):
    """One generated kernel, what its ops mean in a few words, and its source as Inductor wrote it."""

    kernel: CompiledKernel
    meanings: dict[str, str]
    code: str
