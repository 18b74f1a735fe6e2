"""Pages of the site that are written from the code (a hook of mkdocs): command line, Python, gallery."""

from __future__ import annotations

import argparse
import inspect
import io
import re
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import kinetoscope
from kinetoscope.cli import VERBS, build_parser, main, parser_of

ROOT = Path(__file__).resolve().parents[1]
# Reports of the gallery, each a page of its own: file, recording, what it shows.
GALLERY = (
    ("llama-compiled", "h200/llama_train_compile.json.gz", "A small Llama trained with torch.compile"),
    (
        "densenet",
        "h200/densenet121_infer_bs1_compile.json.gz",
        "DenseNet, one picture at a time: the GPU waits for the host",
    ),
    ("mixnet", "h200/mixnet_l_train_bs128_compile.json.gz", "mixnet_l of timm, trained with torch.compile"),
    ("straggler", "h200-dist/ddp_straggler_rank*.json.gz", "Two ranks, one of them late by 20 ms a step"),
    ("breaks", "h200_breaks/breaks.*.gz", "A program that torch.compile cuts in pieces"),
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is generated to the files of the site."""
    files.append(File.generated(config, "reference/cli.md", content="\n".join(command_line())))
    files.append(File.generated(config, "reference/python.md", content="\n".join(python())))
    files.append(File.generated(config, "gallery/index.md", content="\n".join(gallery())))
    for name, page in reports().items():
        files.append(File.generated(config, f"gallery/{name}.html", content=page))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that leave docs lead to files that the site does not have: their text stays."""
    return re.sub(
        r"\[([^\]]*)\]\((?:\.\./)+(?:README|CONTRIBUTING|CHANGELOG|SECURITY|examples/|skills/)[^)]*\)",
        r"\1",
        markdown,
    )


def command_line() -> Iterator[str]:
    """The help of every verb, as it prints."""
    yield "# The command line\n\nWhat `--help` prints, in the order of `kinetoscope --help`.\n"
    with patch.dict("os.environ", {"COLUMNS": "100"}):
        yield _fenced(build_parser())
        for verb in VERBS:
            yield f"## {verb}\n"
            yield _fenced(parser_of(verb))


def _fenced(parser: argparse.ArgumentParser) -> str:
    return f"```text\n{parser.format_help().rstrip()}\n```\n"


def python() -> Iterator[str]:
    """Signatures and docstrings of what ``import kinetoscope`` offers."""
    yield "# Python\n\nEverything that `import kinetoscope` offers; [how it is used](../guide/api.md).\n"
    for name in kinetoscope.__all__:
        found = getattr(kinetoscope, name)
        if inspect.isfunction(found):
            yield from _function(found, name, "##")
        elif inspect.isclass(found):
            yield f"## {name}\n\n{_prose(found)}\n"
            for own, method in vars(found).items():
                if inspect.isfunction(method) and not own.startswith("_"):
                    yield from _function(method, f"{name}.{own}", "###")
    yield "## types\n\nThe rows that reports and methods consist of; times are microseconds.\n"
    yield "| type | |\n|---|---|"
    for name, row in sorted(vars(kinetoscope.types).items()):
        if inspect.isclass(row) and row.__module__.startswith("kinetoscope"):
            says = " ".join(_prose(row).split("\n\n")[0].split()).replace("|", "\\|")
            yield f"| `{name}` | {says} |"


def _function(function: object, name: str, heading: str) -> Iterator[str]:
    signature = re.sub(r"kinetoscope\.[\w.]*\.", "", str(inspect.signature(function)))  # type: ignore[arg-type]
    yield f"{heading} {name}\n\n```python\n{name}{signature}\n```\n\n{_prose(function)}\n"


def _prose(documented: object) -> str:
    """A docstring as Markdown: its Raises are a list."""
    text = inspect.getdoc(documented) or ""
    text = re.sub(r"^(Raises|Args|Returns|Yields):$", r"**\1**\n", text, flags=re.MULTILINE)
    return re.sub(r"^    (\w+): ", r"- `\1`: ", text, flags=re.MULTILINE).replace("``", "`")


def gallery() -> Iterator[str]:
    yield "# Gallery\n\nFive reports as `kinetoscope report REC -o report.html` writes them, of recordings of"
    yield "H200s in the repository. Nothing in them is shortened, and they ask no host for anything.\n"
    yield "| report | command |\n|---|---|"
    for name, path, shows in GALLERY:
        command = f"kinetoscope report tests/fixtures/{path} -o {name}.html"
        yield f'| <a href="{name}.html">{shows}</a> | `{command}` |'


def reports() -> dict[str, str]:
    """The gallery's reports by name, written by the command that the gallery names."""
    written: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, pattern, _ in GALLERY:
            paths = sorted(map(str, (ROOT / "tests" / "fixtures").glob(pattern)))
            out = Path(folder) / f"{name}.html"
            said = io.StringIO()
            with redirect_stdout(said), redirect_stderr(said):
                status = main(["report", *paths, "-o", str(out)])
            if status:
                raise RuntimeError(said.getvalue())
            written[name] = out.read_text("utf-8")
    return written
