"""The commands that try what findings advise."""

from __future__ import annotations

import shlex
from pathlib import PurePath

from kinetoscope.findings.model import Proof
from kinetoscope.findings.rank_view import RankView
from kinetoscope.recording.manifest import Manifest


def tune(view: RankView, mode: str | None = None, *, matmul_precision: str | None = None) -> Proof | None:
    """`kinetoscope tune` of the recorded program under one setting, or without a ``mode`` with the program's
    own calls of torch.compile as they are; None where a launcher started it."""
    manifest, folder = view.run.manifest, view.run.folder
    words = program(manifest) if manifest else None
    if words is None or folder is None:
        return None
    options = ["--out", str(folder), "--modes", mode or "eager"]
    if matmul_precision is not None:
        options += ["--matmul-precision", matmul_precision]
    rest = words if words[0] == "-m" else ("--", *words)
    return Proof(
        f"kinetoscope tune {shlex.join([*options, *rest])}", mode=mode, matmul_precision=matmul_precision
    )


def bench(view: RankView, kernel: str) -> Proof | None:
    """`kinetoscope bench` of every configuration of a kernel that Inductor generated; None for others."""
    folder = view.run.folder
    if folder is None or not kernel.startswith("triton_"):
        return None
    launches = view.work.filter(view.work["name"] == kernel)
    options = [str(folder), "--kernel", kernel, "--max-autotune", "--apply"]
    return Proof(
        f"kinetoscope bench {shlex.join(options)}",
        kernel=kernel,
        kernel_us=view.us_of(launches),
        launches=view.per_step(len(launches)),
    )


def program(manifest: Manifest) -> tuple[str, ...] | None:
    """The script and its arguments (or ``-m``, the module and its arguments), without the interpreter and its
    flags. None where something else than Python was started (a launcher), whose processes `tune` cannot
    be."""
    words = list(manifest.command)
    if words and PurePath(words[0]).name.startswith("python"):
        del words[0]
        while words and words[0].startswith("-") and words[0] != "-m":
            del words[: 2 if words[0] in ("-X", "-W") else 1]
    elif not words or not words[0].endswith(".py"):
        return None
    return tuple(words) or None
