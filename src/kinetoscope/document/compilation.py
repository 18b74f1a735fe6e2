"""The contract's ``compilation``: what reports embed and ``graphs --json`` prints.

The rows that ``kinetoscope.compilation`` makes of a log are the contract's as they stand. Added here is
what a trace tells beside them, and what ``graphs`` shows of one frame or kernel. ``UNSET`` has no key.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from kinetoscope.compilation.model import (
    Autotune,
    Counts,
    Failure,
    Frame,
    Graph,
    GraphBreak,
    GuardTree,
    Instruction,
    Kernel,
    LineTime,
    LogSource,
    PhaseSpan,
    Recompilation,
    Row,
)
from kinetoscope.compilation.model import Guard as Guard
from kinetoscope.compilation.model import KeyChange as KeyChange
from kinetoscope.compilation.model import Reason as Reason
from kinetoscope.compilation.model import Rematerialised as Rematerialised
from kinetoscope.compilation.model import SavedTensor as SavedTensor
from kinetoscope.compilation.model import SourceLine as SourceLine

FrameText = int | str | GuardTree | tuple[Instruction, ...]


class LimitHit(Row, frozen=True, kw_only=True):
    """A function that runs eagerly since it was recompiled as often as torch allows."""

    compile_id: str
    function: str | None
    file: str | None
    line: int | None
    advice: str


class Caches(Row, frozen=True, kw_only=True):
    fx: Counts
    aot: Counts


class Coverage(Row, frozen=True, kw_only=True):
    """Null where no device work was recorded."""

    compiled_share_of_device_time: float | None = None
    uncompiled_share_of_device_time: float | UnsetType | None = UNSET
    cudagraph_share_of_device_time: float | None = None


class UnmatchedKernel(Row, frozen=True, kw_only=True):
    name: str
    device_time_us: float
    launches: int


class UnknownGraph(Row, frozen=True, kw_only=True):
    """A graph that ran and is not in the log."""

    hash: str
    device_time_us: float
    launches: int


class Matched(Row, frozen=True, kw_only=True):
    """Device time of generated kernels, how far it could be traced back, and on what ground."""

    generated_us: float
    to_graph_us: float
    to_aten_ops_us: float
    to_source_us: float
    basis_us: dict[str, float]
    unmatched: tuple[UnmatchedKernel, ...]
    unknown_graphs: tuple[UnknownGraph, ...]


class GraphTexts(Row, frozen=True, kw_only=True):
    graph: int
    module: str
    post_grad: str | None


class Texts(Row, frozen=True, kw_only=True):
    """What ``--texts`` adds. Of each frame its number, ``frame``, and its texts by name; guards and bytecode
    are taken apart."""

    frames: tuple[dict[str, FrameText], ...]
    graphs: tuple[GraphTexts, ...]


class Compilation(Row, frozen=True, kw_only=True):
    """``glossary``: what each op of the graphs does. ``source_lines`` (most device time first) and ``join``
    are there where a trace was joined to the log."""

    torch: str | None
    sources: tuple[LogSource, ...]
    frames: tuple[Frame, ...]
    stretches: tuple[PhaseSpan, ...]
    graph_breaks: tuple[GraphBreak, ...]
    recompilations: tuple[Recompilation, ...]
    graphs: tuple[Graph, ...]
    kernels: tuple[Kernel, ...]
    failures: tuple[Failure, ...]
    recompile_limit_hits: tuple[LimitHit, ...]
    autotune: tuple[Autotune, ...]
    cache: Caches
    compile_s: float
    coverage: Coverage
    notes: tuple[str, ...]
    glossary: dict[str, str]
    source_lines: tuple[LineTime, ...] | UnsetType = UNSET
    join: Matched | UnsetType = UNSET
    texts: Texts | UnsetType = UNSET


class Bytecode(Row, frozen=True, kw_only=True):
    before: tuple[Instruction, ...]
    after: tuple[Instruction, ...]


class NamedTexts(Row, frozen=True, kw_only=True):
    """The texts of one name: none where the frame has no such graph, several where it has several."""

    name: str
    texts: tuple[str, ...]


class FrameDetail(Row, frozen=True, kw_only=True):
    """One compilation, closely. What was not asked for is unset, what the log does not have is null.

    ``text_names``: what may be asked for as ``text``. ``meanings``: of its graphs' ops.
    """

    frame: Frame
    graphs: tuple[Graph, ...]
    meanings: dict[str, str]
    text_names: tuple[str, ...]
    guards: GuardTree | UnsetType | None = UNSET
    bytecode: Bytecode | UnsetType | None = UNSET
    text: NamedTexts | UnsetType = UNSET


class KernelDetail(Row, frozen=True, kw_only=True):
    """One generated kernel, what its ops mean in a few words, and its source as Inductor wrote it."""

    kernel: Kernel
    meanings: dict[str, str]
    code: str
