"""Reading needs nothing that Windows or macOS lack: every module is imported and a report made without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from command import ENVIRONMENT, ROOT

NARROW = ROOT / "tests" / "fixtures" / "h200_proved" / "narrow"
WITHOUT_POSIX = """
import importlib, os, pkgutil, signal, subprocess, sys
import jinja2, msgspec, polars, rich.console  # what they need is theirs to guard
for name in dir(signal):
    if name.startswith("SIG") and name not in ("SIGINT", "SIGTERM", "SIGABRT", "SIGFPE", "SIGILL", "SIGSEGV"):
        delattr(signal, name)
for name in ("fork", "uname", "sched_getaffinity", "getpgrp", "tcgetpgrp", "killpg", "setsid", "mkfifo",
             "getuid", "O_NOFOLLOW", "O_NONBLOCK", "sysconf", "posix_spawn", "pread", "sendfile", "fchmod"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("fcntl", "resource", "termios", "pwd", "grp", "tty", "pty", "syslog"):
    sys.modules[name] = None
import kinetoscope
for module in pkgutil.walk_packages(kinetoscope.__path__, "kinetoscope."):
    if not module.name.endswith(("__main__", "sitecustomize")):
        importlib.import_module(module.name)
from kinetoscope import cli
for words in (["report"], ["report", "-o", sys.argv[2]]):
    assert cli.main([words[0], sys.argv[1], *words[1:]]) == 0, words
"""


def test_a_recording_is_read_without_posix(tmp_path: Path) -> None:
    """Nor is any file opened in an encoding that depends on where we are."""
    page = tmp_path / "page.html"
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-c", WITHOUT_POSIX, str(NARROW), str(page)],
        env=ENVIRONMENT | {"KINETOSCOPE_DEBUG": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "EncodingWarning" not in done.stderr
    assert page.stat().st_size > 50_000
