"""The program's source, kept with its trace: its own modules, and whatever else was compiled."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import tokenize
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

import kinetoscope
from kinetoscope.recording.manifest import Program, write_whole

MOST = 8 << 20  # bytes; what comes first is kept
STANDARD = sysconfig.get_path("stdlib") + os.sep
INSTALLED = ("site-packages", "dist-packages")
# The compile log numbers each file that it names, once.
NAMED = re.compile(r'\] \{"str": (\["[^"\\]+\.py", \d+\])\}$')


def script() -> list[str]:
    """The script that runs, while it does: once it has, Python forgets its path."""
    path = vars(sys.modules["__main__"]).get("__file__")
    return [os.path.abspath(path)] if path else []


def keep(folder: Path, rank: int, scripts: list[str], compile_log: Path | None) -> str:
    """Write it; the file's path in the recording."""
    files: dict[str, str] = {}
    left = MOST
    for path in dict.fromkeys([*scripts, *_own_modules(), *_compiled(compile_log)]):
        with suppress(OSError, SyntaxError, ValueError), tokenize.open(path) as file:
            text = file.read(left + 1)
            if len(text) <= left:
                files[path.encode().decode()] = text  # a path that is no text is left out
                left -= len(text)
    target = folder / "program" / f"rank{rank}.json"
    target.parent.mkdir(exist_ok=True)
    write_whole(target, msgspec.json.encode(Program(files=files)))
    return target.relative_to(folder).as_posix()


def _own_modules() -> Iterator[str]:
    for module in list(sys.modules.values()):
        path = None
        with suppress(AttributeError):  # some only stand for modules
            # Any other look at one that is imported lazily imports it.
            path = object.__getattribute__(module, "__dict__").get("__file__")
        if isinstance(path, str) and path.endswith(".py") and is_own(path):
            yield path


def _compiled(log: Path | None) -> Iterator[str]:
    if log is None:
        return
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if named := NAMED.search(line.rstrip()):
                path = msgspec.json.decode(named[1])[0]
                if not is_foreign(path):
                    yield path


def is_own(path: str) -> bool:
    """Whether a file is the program's: of no library, nor Python's, nor ours, nor written by Inductor."""
    return not (is_foreign(path) or _is_installed(path) or _is_generated(path))


def _is_generated(path: str) -> bool:
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return f"{os.sep}torchinductor_" in path or (bool(cache) and path.startswith(f"{cache}{os.sep}"))


def _is_installed(path: str) -> bool:
    return any(f"{os.sep}{name}{os.sep}" in path for name in INSTALLED)


def is_foreign(path: str) -> bool:
    """Whether it is of torch, of Python's own library, or ours."""
    homes = (*kinetoscope.__path__, *getattr(sys.modules.get("torch"), "__path__", ()))
    if any(path.startswith(home + os.sep) for home in homes):
        return True
    return path.startswith(STANDARD) and not _is_installed(path)
