"""What proofs on a GPU share: the command as a user runs it, recordings packed, the table that comes back."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser with the folder that all results are written into."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    return parser


def kinetoscope(
    *words: str | Path, timeout: float | None = None, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command; the caller looks at its status."""
    return subprocess.run(
        [sys.executable, "-m", "kinetoscope", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
        env=os.environ | variables,
        check=False,
    )


def record(
    folder: Path, *program: str | Path, options: Iterable[str] = (), timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Record a program, without the report at its end."""
    return kinetoscope("run", "--no-report", *options, "--out", folder, "--", *program, timeout=timeout)


def pack(folder: Path, target: Path) -> None:
    """Write a folder as a .tar.gz."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:gz", compresslevel=6) as archive:
        archive.add(folder, arcname=folder.name)


def show(out: Path, lines: Iterable[str]) -> None:
    """Print the table, and write it as ``table.txt``."""
    text = "\n".join(lines)
    (out / "table.txt").write_text(text + "\n")
    print(text)
