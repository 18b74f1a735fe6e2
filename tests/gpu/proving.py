"""What proofs on a GPU share: the command as a user runs it, recordings packed, the table that comes back."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Where a PyTorch has no bytecode and none may be written, each process compiles its modules anew: importing
# Dynamo, which every optimizer does, took 9 s so.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir(), "kinetoscope-bytecode"))


def arguments(description: str | None, verbs: Iterable[str] = ()) -> argparse.ArgumentParser:
    """A parser with what is to be done, where that may be several things, and with the folder that all
    results are written into: it is made."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if verbs:
        parser.add_argument("what", choices=tuple(verbs))
    parser.add_argument("out", type=_made)
    return parser


def _made(text: str) -> Path:
    folder = Path(text).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def python(
    *words: str | Path, timeout: float | None = None, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run this Python with these sources, wherever it stands; the caller looks at its status."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | variables,
        check=False,
    )


def kinetoscope(
    *words: str | Path, timeout: float | None = None, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command; the caller looks at its status."""
    return python("-m", "kinetoscope", *words, timeout=timeout, cwd=cwd, **variables)


def record(
    folder: Path, *program: str | Path, options: Iterable[str] = (), timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Record a program, without the report at its end."""
    return kinetoscope("run", "--no-report", *options, "--out", folder, "--", *program, timeout=timeout)


def record_and_pack(
    name: str, out: Path, *program: str | Path, timeout: float = 240
) -> tuple[Path, subprocess.CompletedProcess[str], float]:
    """Record a program into ``work/NAME``, packed as ``recordings/NAME.tar.gz`` where anything was recorded.

    Returns:
        the recording's folder, the command as it ended, and the seconds that it took.
    """
    folder, began = out / "work" / name, time.perf_counter()
    done = record(folder, *program, timeout=timeout)
    seconds = time.perf_counter() - began
    if (folder / "manifest.json").is_file():
        pack(folder, out / "recordings" / f"{name}.tar.gz")
    return folder, done, seconds


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


def run_sections(chosen: Iterable[str], sections: Mapping[str, Callable[[], None]]) -> None:
    """Run these sections of a proof, and say how long each took."""
    for name in chosen:
        began = time.monotonic()
        try:
            sections[name]()
        except Exception as error:  # one section's failure must not cost the others their time on the machine
            print("FAILED", name, type(error).__name__, error)
        print(f"-- {name}: {time.monotonic() - began:.0f} s", flush=True)
