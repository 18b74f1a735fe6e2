"""A finding's advice tried: a copy of the program with it runs in turn with a copy as it is."""

from __future__ import annotations

import ast
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from kinetoscope.agents.answers import CannotAnswer, FullAnswer, Row
from kinetoscope.agents.questions import rounded
from kinetoscope.bench.tune.settings import Setting
from kinetoscope.bench.versions import campaign
from kinetoscope.bench.versions.campaign import AS_WRITTEN, RunVersion, VersionsCompared
from kinetoscope.bench.versions.worktree import Version
from kinetoscope.errors import ProgramError, UsageError
from kinetoscope.findings import registry
from kinetoscope.findings.commands import program
from kinetoscope.findings.model import Finding
from kinetoscope.recording.manifest import FILE
from kinetoscope.sources import identity
from kinetoscope.sources.run import LoadedRun

MOST_FILES = 20_000
LARGE = 1 << 20  # bytes: larger files are data, which the copies have links to
# But for those written since the recording began, as checkpoints: the program would write over them through
# the link. So many bytes of them are copied.
MOST_WRITTEN = 1 << 30
LEFT_OUT = (".git", ".venv", "venv", "node_modules", "__pycache__")
# Modules whose calls may be put at a program's start, as they are: a snippet with other names is of its code.
AT_THE_START = ("torch", "gc")
VERDICTS = {"faster": "proved", "slower": "refuted", "same": "refuted", "cannot tell": "cannot tell"}


class Trial(msgspec.Struct, frozen=True):
    """The change that is tried: a patch, new first lines of the script, or a setting to run it under."""

    by: str
    patch: str = ""
    first_lines: str = ""
    setting: Setting = AS_WRITTEN


def prove(
    run: LoadedRun,
    place: int,  # of the finding among all of the run
    roots: Sequence[Path],  # the folders that may be copied from
    *,
    # a unified diff, seen from the working folder; empty: the finding's own setting or snippet
    patch: str = "",
    budget_s: float = 120.0,
    launch: RunVersion = campaign.run_version,  # makes one run (tests give their own)
) -> FullAnswer:
    """Run the program as it is and with the advice of one finding in turn, and compare their steps. Raises
    UsageError where the patch does not apply, or the program is not among what the user gave, and
    ProgramError where a version of the program fails."""
    finding = registry.find(run)[place]
    words = program(run.manifest) if run.manifest else None
    if words is None:
        return _cannot("the recording does not say which Python program made it", "kinetoscope run SCRIPT")
    trial = Trial("patch", patch=patch) if patch else _own(finding)
    if trial is None:
        names = "there is none" if not finding.snippet else "it names things of the program's own"
        return _cannot(
            f"the finding's snippet cannot be applied as it is: {names}", "give `patch`, a unified diff"
        )
    here = Path.cwd().resolve()
    if not identity.inside(here, roots):
        raise UsageError("the working folder is not among those that the user gave", where=str(here))
    module = words[0] == "-m"
    words = (_module(here, *words[1:2]), *words[2:]) if module else (_seen_from(here, words[0]), *words[1:])
    with _copies(here, _began(run)) as (base, new):
        changed = _apply(trial, new.folder, None if module else words[0])

        def run_one(version: Version, order: campaign.TrialRequest, said: Sequence[str]):
            setting = trial.setting if version is new else AS_WRITTEN
            return launch(version, msgspec.structs.replace(order, setting=setting), said)

        try:
            found = campaign.compare_versions(
                base, new, words, module=module, budget_s=budget_s, launch=run_one
            )
        except ProgramError as error:
            well = f"it has to make steps well within budget_s ({budget_s:g} s)"
            hint = f"run it by itself, changed, with {sys.executable}: {well}"
            raise ProgramError(error.what, hint=hint) from error
    return FullAnswer(
        rows=[_row(finding, trial, changed, found)],
        shares_of={"share_of_step_saved": {"step_before_us": rounded(found.base.step_s * 1e6)}},
        cannot_answer=_open(found, budget_s) if found.verdict == "cannot tell" else None,
    )


def _open(found: VersionsCompared, budget_s: float) -> CannotAnswer:
    lacking = found.pairs < campaign.FEWEST_PAIRS
    needed = math.ceil(campaign.PAIRS * found.seconds / found.pairs) if lacking else 2 * budget_s
    return CannotAnswer(
        reason=f"{found.pairs} of the {campaign.FEWEST_PAIRS} pairs of runs that a verdict needs fitted into "
        f"budget_s, {budget_s:g}"
        if lacking
        else f"the interval of {found.pairs} pairs of runs contains a step that is as long as before",
        what_to_record=f"budget_s of {needed:g}, with nothing else running on the machine",
    )


def _row(finding: Finding, trial: Trial, changed: Sequence[str], found: VersionsCompared) -> Row:
    before_us = found.base.step_s * 1e6
    saved, low, high = (before_us * (1 - ratio) for ratio in (found.ratio, found.high, found.low))
    predicted = finding.saving.us
    is_known = math.isfinite(low) and math.isfinite(high)
    return {
        "about": "proof",
        "verdict": VERDICTS[found.verdict],
        "step_before_us": rounded(before_us),
        "step_after_us": rounded(found.new.step_s * 1e6),
        "saving_us": rounded(saved),
        "saving_interval_us": (rounded(low), rounded(high)) if is_known else None,
        "interval": "95 %, from pairs of runs",
        "share_of_step_saved": rounded(1 - found.ratio),
        "predicted_saving_us": rounded(predicted),
        "prediction_in_interval": low <= predicted <= high if is_known else None,
        "predicted_over_measured": rounded(predicted / saved) if saved > 0 else None,
        "pairs": found.pairs,
        "stopped": found.stopped,
        "device": found.device,
        "seconds": rounded(found.seconds),
        "changed_by": trial.by,
        "changed_files": changed,
        "not_checked": "whether the program's results are still right",
    }


def _own(finding: Finding) -> Trial | None:
    """The finding's own change, where it needs no edit of the program's code."""
    proof = finding.proof
    if proof is not None and proof.kernel is None and (proof.mode or proof.matmul_precision):
        setting = Setting(
            mode=proof.mode, as_written=proof.mode is None, matmul_precision=proof.matmul_precision
        )
        return Trial(f"setting: {setting.name}", setting=setting)
    if finding.snippet and _stands_alone(finding.snippet):
        return Trial("snippet at the script's start", first_lines=finding.snippet)
    return None


def _stands_alone(snippet: str) -> bool:
    """Whether it is calls and assignments of torch's own settings, which need nothing of the program."""
    try:
        tree = ast.parse(snippet)
    except SyntaxError:
        return False
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    settings = all(
        (isinstance(line, ast.Expr) and isinstance(line.value, ast.Call))
        or (isinstance(line, ast.Assign) and all(isinstance(to, ast.Attribute) for to in line.targets))
        for line in tree.body
    )
    return bool(tree.body) and settings and names <= set(AT_THE_START)


def _apply(trial: Trial, folder: Path, script: str | None) -> list[str]:
    """Change the copy; the files that differ then. Raises UsageError where the patch does not apply, or
    changes nothing."""
    if trial.patch:
        return _patched(trial.patch, folder)
    if trial.first_lines:
        if script is None:
            raise UsageError("a module has no first lines that a snippet could stand in", hint="give a patch")
        path = folder / script
        path.write_text(with_first_lines(path.read_text("utf-8"), trial.first_lines), "utf-8")
        return [script]
    return []


def with_first_lines(source: str, snippet: str) -> str:
    """The program with a snippet behind its docstring and what it imports from the future."""
    last = 0
    for line in ast.parse(source).body:
        is_text = isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
        if not is_text and not (isinstance(line, ast.ImportFrom) and line.module == "__future__"):
            break
        last = line.end_lineno or last
    lines = source.splitlines()
    imports = f"import {', '.join(AT_THE_START)}"
    return "\n".join([*lines[:last], imports, *snippet.splitlines(), *lines[last:], ""])


def _patched(patch: str, folder: Path) -> list[str]:
    """Apply a unified diff; git refuses paths that lead out of the folder."""
    text = (patch if patch.endswith("\n") else patch + "\n").encode()
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}

    def git(*words: str) -> subprocess.CompletedProcess[bytes]:
        # Patches that are written by hand count their lines wrongly, and have no lines around them.
        tolerant = ("--whitespace=nowarn", "--recount", "--unidiff-zero")
        command = ("git", "apply", *tolerant, *words, "-")
        return subprocess.run(
            command, input=text, capture_output=True, cwd=folder, env=environment, check=False
        )

    try:
        listed, done = git("--numstat"), git()
    except FileNotFoundError as error:
        raise UsageError("a patch needs git, which is not installed here") from error
    changed = [line.split("\t")[-1] for line in listed.stdout.decode("utf-8", "replace").splitlines()]
    if done.returncode or not changed:
        why = (done.stderr or listed.stderr).decode("utf-8", "replace").strip()[:300]
        raise UsageError(
            f"the patch does not apply: {why or 'it changes nothing'}",
            hint="a unified diff with paths as seen from the working folder: --- a/train.py, +++ b/train.py",
        )
    return changed


def _began(run: LoadedRun) -> float:
    try:
        return datetime.fromisoformat(run.manifest.created if run.manifest else "").timestamp()
    except ValueError:
        return math.inf


@contextmanager
def _copies(here: Path, began: float) -> Generator[tuple[Version, Version]]:
    """The working folder twice: what a program writes goes into the copies."""
    with tempfile.TemporaryDirectory(prefix="kinetoscope-prove-") as home:
        folders = [Path(home).resolve() / name / here.name for name in ("as-it-is", "changed")]
        for folder in folders:
            _copy(here, folder, began)
        base, new = (
            Version(label, folder, folder, here)
            for label, folder in zip(("as it is", "changed"), folders, strict=True)
        )
        yield base, new


def _copy(here: Path, target: Path, began: float) -> None:
    """Copy a folder; large files from before the recording, and what links lead to, are linked."""
    count, room = 0, MOST_WRITTEN
    for folder, inside, files in os.walk(here):
        inside[:] = [
            name
            for name in inside
            if name not in LEFT_OUT and not (Path(folder) / name / FILE).is_file()  # recordings
        ]
        to = target / Path(folder).relative_to(here)
        to.mkdir(parents=True, exist_ok=True)
        for name in [*files, *(name for name in inside if (Path(folder) / name).is_symlink())]:
            path, count = Path(folder) / name, count + 1
            if count > MOST_FILES:
                raise UsageError(
                    f"the working folder has more than {MOST_FILES:,} files, which is too many to copy",
                    where=str(here),
                    hint="start kinetoscope mcp in the program's own folder",
                )
            if not path.is_symlink() and not path.is_file():
                continue
            found = path.lstat()
            is_large = found.st_size > LARGE
            if path.is_symlink() or (is_large and (found.st_mtime < began or found.st_size > room)):
                (to / name).symlink_to(path.resolve())
            else:
                room -= found.st_size if is_large else 0
                shutil.copy2(path, to / name)


def _seen_from(here: Path, script: str) -> str:
    """The script as seen from the working folder, which has its copy. Raises UsageError where it lies
    elsewhere, or is not here."""
    path = (here / script).resolve()
    if not path.is_relative_to(here) or not path.is_file():
        raise UsageError(
            "the recorded script is not in the working folder",
            where=script,
            hint="start kinetoscope mcp in the folder of the program",
        )
    return str(path.relative_to(here))


def _module(here: Path, name: str = "") -> str:
    """A module of the working folder: a recording may name any, as one that runs its arguments. Raises
    UsageError where it lies elsewhere."""
    path = here.joinpath(*name.split("."))
    if not name.replace(".", "_").isidentifier() or not any(
        place.is_file() for place in (path.with_suffix(".py"), path / "__main__.py")
    ):
        raise UsageError(
            "the recorded module is not in the working folder",
            where=name,
            hint="start kinetoscope mcp in the folder of the program",
        )
    return name


def _cannot(reason: str, how: str) -> FullAnswer:
    return FullAnswer(cannot_answer=CannotAnswer(reason=reason, what_to_record=how))
