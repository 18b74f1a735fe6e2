"""Pages whose commands are run: those of a ```` ```console ```` block, each below it with what it printed.

    PYTHONPATH=src:tests/support python -m tutorials          writes what the commands print into the pages
    PYTHONPATH=src:tests/support python -m tutorials FOLDER   and what tests/gpu/prove_tutorials.py left there

They run in a folder with the recordings of tests/fixtures, their terminal 100 columns wide; what stands after
a ``|`` is the shell's. A ```` ```console live ```` block records on this machine: what it printed differs,
so that the page shows some of its lines, with ``…`` for what differs. What needs a GPU stands between two
comments, in a ```` ```text ```` block under a line that says where and when it was printed.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from command import ROOT, kinetoscope, process

BLOCK = re.compile(r"^```console( live)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = sorted(
    page
    for page in (*ROOT.glob("docs/*/*.md"), ROOT / "docs" / "index.md", ROOT / "examples" / "README.md")
    if page.exists() and re.search("^```console|<!-- h200:", page.read_text("utf-8"), re.MULTILINE)
)


@dataclass(frozen=True)
class Command:
    line: str
    shown: list[str]  # the lines below it in the page
    live: bool


def commands(page: str) -> list[Command]:
    """The commands of a page in order."""
    found: list[Command] = []
    for block in BLOCK.finditer(page):
        for text in re.split(r"^\$ ", block[2], flags=re.MULTILINE)[1:]:
            line, *shown = text.splitlines()
            found.append(Command(line, shown, bool(block[1])))
    return found


def furnish(folder: Path) -> None:
    """Put what the pages name into a folder: recordings, and programs to record."""
    for path in (*(ROOT / "tests" / "fixtures").iterdir(), ROOT / "examples"):
        (folder / path.name).symlink_to(path)


@cache
def _ran(ours: str, folder: Path, live: bool) -> subprocess.CompletedProcess[str]:
    """A page asks several things of one answer."""
    program, *words = shlex.split(ours.partition("  #")[0])
    assert program == "kinetoscope", ours
    return (process if live else kinetoscope)(*words, cwd=folder, COLUMNS="100", KINETOSCOPE_CACHE="0")


def printed(command: Command, folder: Path) -> list[str]:
    """Run a command, and give the lines that it printed.

    Raises:
        AssertionError: it is not a command of ours, or failed without saying so in the page.
    """
    ours, _, filters = command.line.partition(" | ")
    done = _ran(ours, folder, command.live)
    assert done.returncode == 0 or f"exits with {done.returncode}" in command.line, done.stderr + done.stdout
    text = done.stdout + (done.stderr if command.live else "")
    if filters:
        text = subprocess.run(
            ["sh", "-c", filters], input=text, capture_output=True, text=True, check=True
        ).stdout
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def rewritten(page: str, folder: Path) -> str:
    """A page with what its commands print now."""

    def anew(block: re.Match[str]) -> str:
        if block[1]:
            return block[0]
        parts: list[str] = []
        for command in commands(block[0]):
            parts.append("\n".join([f"$ {command.line}", *printed(command, folder)]))
        return "```console\n" + "\n\n".join(parts) + "\n```"

    return BLOCK.sub(anew, page)


def missing(command: Command, lines: list[str]) -> Iterator[str]:
    """Lines that the page shows of a live command and that it did not print, in their order."""
    left = iter(lines)
    for shown in filter(str.strip, command.shown):
        pattern = re.compile(".*".join(map(re.escape, shown.strip().split("…"))))
        if not any(pattern.search(line) for line in left):
            yield shown


def of_a_gpu(page: str, folder: Path) -> str:
    """A page with the sections that were recorded on a GPU between its comments."""
    machine = (folder / "machine.txt").read_text("utf-8").strip()

    def filled(place: re.Match[str]) -> str:
        path = folder / f"{place[1]}.txt"
        if not path.exists():
            return place[0]
        said = "\n".join(line for line in path.read_text("utf-8").splitlines() if not line.startswith("# "))
        seen = f"Seen with `tests/gpu/prove_tutorials.py` ({machine}):\n\n```text\n{said.strip()}\n```\n"
        return f"<!-- h200:{place[1]} -->\n{seen}<!-- end -->"

    return re.sub(r"<!-- h200:(\w+) -->\n.*?<!-- end -->", filled, page, flags=re.DOTALL)


def main() -> None:
    for page in PAGES:
        with tempfile.TemporaryDirectory() as folder:
            furnish(Path(folder))
            text = page.read_text("utf-8")
            if sys.argv[1:]:
                text = of_a_gpu(text, Path(sys.argv[1]))
            page.write_text(rewritten(text, Path(folder)), "utf-8")
        print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
