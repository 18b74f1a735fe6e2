"""How pieces of a compilation are called: by their place in the program, by their id, by their hash."""

from __future__ import annotations

from collections.abc import Iterable

from kinetoscope.document import Report
from kinetoscope.document.compilation import CompiledKernel, Frame
from kinetoscope.render import names


def graph_labels(report: Report) -> list[str]:
    """Each compiled graph in few words: ``0/0 backward``, and the hash's beginning (as ``--graph`` takes it)
    where that does not tell it apart."""
    labels = [" ".join(part for part in (row.compile_id, row.direction) if part) for row in report.graphs]
    return [
        names.plain(
            label
            if row.compile_id and labels.count(label) == 1
            else f"{label} {row.hash[: names.HASH]}".strip()
        )
        for label, row in zip(labels, report.graphs, strict=True)
    ]


def event(report: Report, name: str) -> str:
    """The name of an event as it is shown: calls of compiled graphs by their graph's label."""
    found = names.CALL.fullmatch(name)
    for row, label in zip(report.graphs, graph_labels(report), strict=True) if found else ():
        if found and row.hash == found[1]:
            return f"graph {label}"
    return names.plain(name)


def kernel_languages(kernels: Iterable[CompiledKernel]) -> str:
    """In what generated kernels are written, as the column of the time that compiling them took is called:
    torch calls that phase Triton's on the CPU as well, where a C++ compiler takes it."""
    languages = {"C++" if kernel.language == "cpp" else kernel.language for kernel in kernels}
    return "+".join(sorted(languages, reverse=True)) or "triton"


def place(file: str | None, line: int | None, function: str | None = None) -> str:
    """``compile_cases.py:14 in forward``; only the file's last part, which is what a reader looks for."""
    if file is None:
        return names.plain(function or "unknown place")
    where = names.plain(file.replace("\\", "/").rpartition("/")[2]) + (f":{line}" if line else "")
    return f"{where} in {names.plain(function)}" if function else where


def frame_name(frame: Frame) -> str:
    """``0/0``, and what tells it apart from others of that id."""
    after = f"·{frame.generation + 1}" if frame.generation else ""
    return f"{frame.compile_id}{after}" + (f" rank {frame.rank}" if frame.rank else "")
