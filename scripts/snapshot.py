"""Write every view of every recording at hand into a folder, so that two versions of the code can be
compared:

    python scripts/snapshot.py /tmp/before            # on the old commit
    python scripts/snapshot.py /tmp/after             # on the new one
    diff -r /tmp/before /tmp/after                    # no output: nothing that a user sees has changed
    python scripts/snapshot.py /tmp/after hotspot log  # only inputs with one of these in their paths

Recordings are the fixtures, the cases, the examples and, where they are there, the larger ones of
../shared/data.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ["tests/fixtures", "tests/cases", "examples/recordings", "../shared/data"]
KINDS = (".json.gz", ".log.gz", ".log")
PAGES = ("json", "md", "html", "txt")
VIEWS = {
    "report": ["report"],
    "findings": ["findings"],
    "findings.json": ["findings", "--json"],
    "graphs": ["graphs"],
    "graphs.json": ["graphs", "--json"],
    **{f"by-{by}": ["kernels", "--by", by] for by in ("kernel", "category", "op", "step", "module")},
    "kernels.json": ["kernels", "--json"],
}
LARGE = 8_000_000  # bytes from which a recording is only reported, not listed too


def main(target: Path, parts: list[str]) -> int:
    os.chdir(ROOT)
    target.mkdir(parents=True)
    wanted = [inputs for inputs in recordings() if not parts or any(part in inputs[0] for part in parts)]
    with ProcessPoolExecutor(2) as pool:
        for name in pool.map(write, wanted, [target.resolve()] * len(wanted)):
            print(name, file=sys.stderr)
    return 0


def recordings() -> list[list[str]]:
    """Inputs of one command each: a file or a recording folder, and the ranks of one run together."""
    files = sorted(
        path
        for folder in FOLDERS
        for path in Path(folder).rglob("*")
        if path.name.endswith(KINDS) and not {"bench", "trace"} & set(path.parts[len(Path(folder).parts) :])
    )
    folders = sorted(str(path.parent) for folder in FOLDERS for path in Path(folder).rglob("manifest.json"))
    ranks: dict[str, list[str]] = {}
    for path in files:
        ranks.setdefault(re.sub(r"rank_?\d+", "rank", str(path)), []).append(str(path))
    return [*ranks.values(), *([folder] for folder in folders)]


def write(inputs: list[str], target: Path) -> str:
    """All views of one input; what a view prints to stderr and its exit status are kept too."""
    name = inputs[0].strip("./").replace("/", "__")
    size = sum(Path(path).stat().st_size for path in inputs)
    for suffix in PAGES:
        (target / f"{name}.status.{suffix}").write_text(
            run(["report", *inputs, "-o", str(target / f"{name}.{suffix}")])
        )
    for view, (verb, *options) in VIEWS.items():
        if size < LARGE:
            (target / f"{name}.{view}").write_text(run([verb, *inputs, *options]))
    return name


def run(words: list[str]) -> str:
    from kinetoscope.cli import main as command

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status: object
        try:
            status = command(words)
        except SystemExit as left:
            status = left.code
    progress = re.compile(r"^(read|wrote) .*\n", re.MULTILINE)
    return f"{out.getvalue()}{progress.sub('', err.getvalue())}exit {status}\n"


if __name__ == "__main__":
    os.environ["COLUMNS"] = "120"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("target", type=Path, help="a folder that is not there yet")
    parser.add_argument("part", nargs="*", help="of the paths of the recordings that are wanted")
    options = parser.parse_args()
    sys.exit(main(options.target, options.part))
