"""kinetoscope as a user runs it, and recordings of an H200 to run it on."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from kinetoscope.cli import main

ROOT = Path(__file__).resolve().parents[2]
RECORDING = ROOT / "examples" / "recordings" / "llama_train_compile.json.gz"
SMALL = ROOT / "tests" / "fixtures" / "h200" / "mm_64_warm_eager.json.gz"

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src")}


def kinetoscope(
    *words: object, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run one command with ``variables`` added to the environment: in this process, which has everything
    imported, unless they are Python's own."""
    if any(name.startswith("PYTHON") for name in variables):
        return process(*words, cwd=cwd, **variables)
    before = Path.cwd()
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with (
        patch.dict(os.environ, variables),
        patch.object(sys, "stdin", io.StringIO()),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        os.chdir(cwd or before)
        try:
            status = main([*map(str, words)])
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        finally:
            os.chdir(before)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return subprocess.CompletedProcess([*map(str, words)], status, *texts)


def process(*words: object, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """The same as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "kinetoscope", *map(str, words)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=cwd,
        env=ENVIRONMENT | variables,
        timeout=60,
        check=False,
    )


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What it said on stderr, but for how long reading took: a busy machine makes that worth a line."""
    return [line for line in done.stderr.splitlines() if not re.match(r"read \d+ traces? in ", line)]


def refused(done: subprocess.CompletedProcess[str], status: int, *expected: str) -> None:
    """Fail unless the command ended with ``status`` and one message of ours that says what is expected."""
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert complaints(done)[0].startswith("kinetoscope: "), done.stderr
    for text in expected:
        assert text in done.stderr
