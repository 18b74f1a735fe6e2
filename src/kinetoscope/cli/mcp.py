"""``kinetoscope mcp``: small answers for agents, by a server or one at a time."""

from __future__ import annotations

import argparse

from kinetoscope.cli import _options

EPILOG = """\
examples:
  kinetoscope mcp                                    serve recordings of this folder on stdin and stdout
  kinetoscope mcp --root RUNS --root OTHER           serve those of these folders
  kinetoscope mcp overview recording=RUN             print one answer, as the server gives it
  kinetoscope mcp findings recording=RUN
  kinetoscope mcp evidence recording=RUN finding=launch-gap
  kinetoscope mcp query recording=RUN sql="SELECT name, COUNT(*) FROM device_events GROUP BY name"
  kinetoscope mcp diff base=RUN new=OTHER
  kinetoscope mcp --allow-run prove recording=RUN finding=launch-gap patch=@fix.patch

The server needs the extra: pip install "kinetoscope[mcp]". It opens nothing outside of its roots, and no
network. prove runs the recorded program, and exists under --allow-run alone.
"""
VALUES = {
    "overview": ("recording",),
    "findings": ("recording", "rule"),
    "evidence": ("recording", "finding"),
    "query": ("recording", "sql", "limit"),
    "diff": ("base", "new"),
    "prove": ("recording", "finding", "patch", "budget_s"),
}
OPTIONAL = ("rule", "limit", "patch", "budget_s", "cursor")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tool", nargs="?", choices=tuple(VALUES), metavar="TOOL", help="print one answer")
    parser.add_argument("values", nargs="*", metavar="NAME=VALUE", help="what the tool takes")
    root = "a folder whose recordings may be read (default: this one; may be given several times)"
    parser.add_argument("--root", action="append", default=[], metavar="DIR", help=root)
    _options.flag(parser, "--allow-run", "offer prove, which runs the recorded program")


def main(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from kinetoscope.agents.library import Library

    roots = [Path(root) for root in arguments.root or ["."]]
    library = Library(roots, allow_run=arguments.allow_run)
    if arguments.tool is not None:
        print(library.answer(arguments.tool, _values(arguments.tool, arguments.values)))
        return 0
    from kinetoscope.agents.server import server

    server(library).run("stdio")
    return 0


def _values(tool: str, words: list[str]) -> dict[str, object]:
    """The values of a call; ``@FILE`` is the content of a file. Raises UsageError where a name is not one of
    the tool's, or one is missing."""
    from pathlib import Path

    from kinetoscope.errors import UsageError, meant

    known = (*VALUES[tool], "cursor")
    values: dict[str, object] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in known:
            raise UsageError(f"{tool} takes no {name!r}", where=word, hint=meant(name, known))
        values[name] = Path(value[1:]).read_text() if name == "patch" and value.startswith("@") else value
    missing = [name for name in known if name not in (*values, *OPTIONAL)]
    if missing:
        raise UsageError(f"{tool} needs {', '.join(missing)}", hint=f"kinetoscope mcp {tool} {missing[0]}=…")
    return values
