"""The programs of ``programs/``, as their heads describe them, and with which options a seed runs each.

# needs: cpu | cuda | cuda2      the least that it runs on
# packages: lightning, timm      what it imports besides torch
# exact: no                      its output may differ from run to run; only its shape is compared
# arguments: reentrant | not     one program for each, with these arguments
# flags: -W error                of Python
# variables: NAME=VALUE          of the environment
# launcher: -m torch.distributed.run --nproc-per-node 2
# status: 3                      what it ends with (0; minus a signal's number; ?: it depends), or one for
#                                each argument
# interrupted: LINE              what it prints when it is interrupted after it printed ``ready``
# sanitize: yes                  one of those that run under compute-sanitizer
# suite: yes                     the ordinary suite runs it; or those arguments with which it does
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "programs"
DEVICES = {"cpu": 0, "cuda": 1, "cuda2": 2}  # how many GPUs each needs
INTERRUPT = "SIGINT"  # stands among the options of a run for no option of `run`
OPTIONS: tuple[tuple[str, ...], ...] = (
    (),
    ("--budget", "1"),
    ("--memory",),
    ("--stacks",),
    ("--shapes", "--flops"),
    ("--whole",),
    ("--careful",),
    ("--kernel-inputs",),
    ("--one-pass",),
    (INTERRUPT,),
)
_HEADER = re.compile(r"# (\w+): (.+)")


@dataclass(frozen=True)
class Program:
    """A program, as its head describes it."""

    name: str
    path: Path
    needs: str = "cpu"
    packages: tuple[str, ...] = ()
    exact: bool = True
    arguments: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    launcher: tuple[str, ...] = ()
    status: int | None = 0
    interrupted: str = ""
    sanitize: bool = False
    suite: bool = False

    @property
    def words(self) -> list[str]:
        """What follows `python` and its flags."""
        return [*self.launcher, str(self.path), *self.arguments]

    @property
    def missing(self) -> list[str]:
        """The packages that are not installed."""
        return [name for name in self.packages if importlib.util.find_spec(name) is None]


def programs(folder: Path = PROGRAMS) -> list[Program]:
    """Every program of the folder: a file whose head has a ``needs:``; once for each of its ``arguments``."""
    found = []
    for path in sorted(folder.glob("*.py")):
        head = dict(_head(path))
        if "needs" not in head:
            continue  # what the programs share
        each = [tuple(words.split()) for words in head.get("arguments", "").split("|")]
        statuses = [
            None if number.strip() == "?" else int(number) for number in head.get("status", "0").split("|")
        ]
        statuses *= len(each) if len(statuses) == 1 else 1
        in_suite = head.get("suite", "").split()
        for arguments, status in zip(each, statuses, strict=True):
            found.append(
                Program(
                    name="-".join((path.stem, *arguments)),
                    path=path,
                    needs=head["needs"],
                    packages=tuple(head.get("packages", "").replace(",", " ").split()),
                    exact=head.get("exact") != "no",
                    arguments=arguments,
                    flags=tuple(head.get("flags", "").split()),
                    variables=tuple(_assignment(word) for word in head.get("variables", "").split()),
                    launcher=tuple(head.get("launcher", "").split()),
                    status=status,
                    interrupted=head.get("interrupted", ""),
                    sanitize=head.get("sanitize") == "yes",
                    suite=in_suite == ["yes"] or any(word in in_suite for word in arguments),
                )
            )
    return found


def _head(path: Path) -> Iterator[tuple[str, str]]:
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            return
        if match := _HEADER.fullmatch(line):
            yield match[1], match[2]


def _assignment(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name, value


def options_of(program: Program, seed: int, options: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Those of ``options`` with which that seed runs it: none for 0; ten seeds try ten of them, some with a
    second one."""
    offset = int(hashlib.sha256(program.name.encode()).hexdigest(), 16)
    first = options[(seed + offset) % len(options)] if seed else ()
    chance = random.Random(f"{program.name} {seed}")
    second = chance.choice(options) if seed and chance.random() < 0.3 else ()
    return first if not second or second == first else tuple(dict.fromkeys((*first, *second)))


def known_options() -> list[tuple[str, ...]]:
    """Those of ``OPTIONS`` that this version of `run` has."""
    shown = subprocess.run(
        [sys.executable, "-m", "kinetoscope", "run", "--help"],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [chosen for chosen in OPTIONS if all(word in shown for word in chosen if word.startswith("--"))]
