"""Surroundings by chance: signals, descriptors, locales, folders, warnings, and where results are written."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
from pathlib import Path

from attack.inputs import LOG, SCHEMA, TRACE
from attack.trial import Trial

VIEWS = (
    "report {IN}", "report {IN} -o {OUT}/o.html", "report {IN} -o {OUT}/o.json", "kernels {IN}",
    "diff {IN} {IN} -o {OUT}/d.md",
    "export {IN} --to perfetto -o {OUT}/t.json",
    "export {IN} --to parquet -o {OUT}", "findings {IN} --json",
    "query {IN} 'SELECT*FROM(steps)'",
)  # fmt: skip


def _view(chance: random.Random) -> list[str | bytes]:
    return [word.strip("'") for word in chance.choice(VIEWS).split()]


def _whole(out: Path, _: str) -> str:
    """What was written is whole: nothing half, and no file of the writer's own."""
    left = [path for path in out.iterdir() if path.name.startswith(".")]
    if left:
        return f"left behind: {left}"
    for path in out.glob("*.json"):
        json.loads(path.read_text())
    for path in out.glob("*.html"):
        if not path.read_text().rstrip().endswith(("</html>", "</script>", "</div>", "</body>")):
            return f"half a file: {path.name}"
    return ""


def signals(chance: random.Random, folder: Path) -> Trial:
    """Ended at some moment: the output is whole, or not there."""
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    sent = tuple((chance.uniform(0.05, 2.5), chance.choice(numbers)) for _ in range(chance.randint(1, 2)))
    allowed = (0, 130)
    said = chance.choice(
        [
            "report {IN} -o {OUT}/o.html",
            "report {IN} -o {OUT}/o.json",
            "export {IN} --to perfetto -o {OUT}/t.json",
        ]
    )

    def look(out: Path, _: str) -> str:
        for path in out.glob("[!.]*.json"):
            json.loads(path.read_text())
        return ""

    return Trial([*said.split()], TRACE, allowed, signals=tuple(sorted(sent)), fresh=True, look=look)


def descriptors(chance: random.Random, folder: Path) -> Trial:
    """Standard streams that are closed, or that take nothing."""
    closed = chance.sample([0, 1, 2], chance.randint(1, 3))
    full = chance.random() < 0.3

    def prepare() -> None:
        for number in closed:
            if full:
                os.dup2(os.open("/dev/full", os.O_RDWR), number)
            else:
                os.close(number)

    return Trial(_view(chance), TRACE, (0, 3, 120), prepare=prepare, fresh=True)


def locales(chance: random.Random, folder: Path) -> Trial:
    """Locales and encodings, and a name that is not ASCII."""
    name = chance.choice(["träce.json.gz", "トレース.json.gz", "a b'c.json.gz"])
    path = folder / name
    if chance.random() < 0.3:
        path = Path(os.fsdecode(os.fsencode(folder) + b"/x\xff.json.gz"))
    path.write_bytes(TRACE.read_bytes())
    environment = {
        "LC_ALL": chance.choice(["C", "POSIX", "C.UTF-8", "xx_YY", ""]),
        "PYTHONUTF8": chance.choice(["0", "1"]),
        "PYTHONCOERCECLOCALE": chance.choice(["0", "1"]),
        "PYTHONIOENCODING": chance.choice(["", "ascii", "latin-1", "utf-8"]),
    }
    return Trial(_view(chance), path, (0,), environment, fresh=True, look=_whole)


def directories(chance: random.Random, folder: Path) -> Trial:
    """Working directories that are gone or cannot be written to."""
    here = folder / "here"
    here.mkdir()
    gone = chance.random() < 0.5

    def prepare() -> None:
        os.chdir(here)
        if gone:
            here.rmdir()
        else:
            here.chmod(0o500)

    return Trial(_view(chance), TRACE, (0,), prepare=prepare, fresh=chance.random() < 0.5, look=_whole)


def warned(chance: random.Random, folder: Path) -> Trial:
    """Every warning an error."""
    action = chance.choice(
        ["error", "error::DeprecationWarning", "error::ResourceWarning", "error::UserWarning"]
    )
    said = chance.choice([*VIEWS, f"graphs {LOG}", f"whatif {TRACE} --host 0.5"])
    words: list[str | bytes] = [word.strip("'") for word in said.split()]
    return Trial(
        words,
        TRACE,
        (0,),
        {"PYTHONWARNINGS": action, "PYTHONDEVMODE": chance.choice(["", "1"])},
        fresh=True,
        look=_whole,
    )


def outputs(chance: random.Random, folder: Path) -> Trial:
    """Results written where inputs lie, by one of their names: refused, and everything stays as it was."""
    inputs = folder / "recording"
    (inputs / "trace").mkdir(parents=True)
    (inputs / "trace" / "rank0.json").write_bytes(gzip.decompress(TRACE.read_bytes()))
    ranks = [{"rank": 0, "trace": "trace/rank0.json"}]
    (inputs / "manifest.json").write_text(
        json.dumps({"schema": SCHEMA, "exit": "ok", "status": 0, "ranks": ranks})
    )
    target = chance.choice([inputs / "manifest.json", inputs / "trace" / "rank0.json"])
    way = chance.choice(["itself", "link", "hard", "dots", "folder link"])
    named = {
        "itself": target,
        "link": folder / "link.json",
        "hard": folder / "hard.json",
        "dots": inputs / "trace" / ".." / target.relative_to(inputs),
        "folder link": folder / "other" / target.relative_to(inputs),
    }[way]
    (folder / "link.json").symlink_to(target)
    os.link(target, folder / "hard.json")
    (folder / "other").symlink_to(inputs)
    given = chance.choice(["{IN}", str(inputs / "trace"), str(folder / "other")])
    given = "{IN}" if target.name == "manifest.json" else given
    said = chance.choice(
        [
            f"report {given} -o {named}", f"report {given} --engine local -o {named}",
            f"diff {given} {TRACE} -o {named}",
            f"diff {TRACE} {given} -o {named}", f"export {given} --to perfetto -o {named}",
            f"export {given} --to speedscope -o {named}", f"check {given} --against {named} --update",
        ]
    )  # fmt: skip
    return Trial([*said.split()], inputs, (2,))
