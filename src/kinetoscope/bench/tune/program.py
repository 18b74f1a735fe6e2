"""`kinetoscope tune`: the user's program under each setting, in processes of their own, round by round."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from kinetoscope import signals
from kinetoscope.bench.measure.device import import_torch
from kinetoscope.bench.request import environment
from kinetoscope.bench.torch_names import Tensor
from kinetoscope.bench.tune.inject import difference
from kinetoscope.bench.tune.results import Tuning, conclude
from kinetoscope.bench.tune.settings import Setting, with_program
from kinetoscope.bench.tune.trial import TrialRequest, TrialResult
from kinetoscope.errors import InputError, ProgramError, UsageError


class OutOfTimeError(Exception):
    """A trial was ended since its time was over."""


RunTrial = Callable[[TrialRequest, Sequence[str], Mapping[str, str]], TrialResult]


def run_trial(
    order: TrialRequest, words: Sequence[str], extra: Mapping[str, str], folder: Path | None = None
) -> TrialResult:
    """One trial in a process of its own, in a folder; what the program prints goes to stderr. Raises
    OutOfTimeError where it took longer than the request allows; it has been ended."""
    path = Path(order.folder, "order.json")
    path.write_bytes(msgspec.json.encode(order))
    order.result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "kinetoscope.bench.tune.trial", str(path), *words]
    status = _call(command, environment({**_bytecode(order.folder), **extra}), folder, order.limit_s)
    if not order.result.exists():
        return TrialResult(error=f"the process ended with status {status}")
    return msgspec.json.decode(order.result.read_bytes(), type=TrialResult)


def _bytecode(folder: str) -> dict[str, str]:
    """A folder for bytecode, where torch was installed without any and none can be written there: each run
    would compile anew all that it imports, which takes as long as the run itself."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.cached is None or os.path.exists(torch.cached):
        return {}
    home = Path(torch.cached).parent.parent
    if not sys.dont_write_bytecode and (sys.pycache_prefix is not None or os.access(home, os.W_OK)):
        return {}  # the first run writes it where it belongs
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(Path(folder, "bytecode"))}


def _call(
    command: Sequence[str], variables: Mapping[str, str], folder: Path | None, limit_s: float | None
) -> int:
    """The exit status of a command; beyond a limit all that it started is ended, and it with us."""
    with signals.as_exceptions():
        process = subprocess.Popen(
            command, env=variables, cwd=folder, stdout=sys.stderr, start_new_session=limit_s is not None
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired as late:
            raise OutOfTimeError(f"a run took longer than {late.timeout:.1f} s") from None
        finally:
            if limit_s is not None and hasattr(os, "killpg"):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
            elif process.poll() is None:
                process.kill()
            process.wait()


def check(words: Sequence[str], *, module: bool, batches: Sequence[str], tokens: int | None) -> None:
    """Refuse a program that cannot be tuned. Raises UsageError where there is nothing to run, the batches
    have nowhere to go, or ``tokens`` (of a sample) have no batches, and InputError where no script is."""
    if not words:
        raise UsageError("there is nothing to run", hint="kinetoscope tune [options] script.py [arguments]")
    if not module and not Path(words[0]).is_file():
        raise InputError("the script does not exist", where=words[0], hint="check the path")
    if batches and not any("{batch}" in word for word in words):
        raise UsageError(
            "--batch has nowhere to go", hint="write {batch} where the program takes its batch size"
        )
    if tokens is not None and not (batches and all(map(str.isdecimal, batches))):
        raise UsageError(
            "--tokens are of a sample", hint="give batch sizes: --batch 8,16, and {batch} where they go"
        )


def tune_program(
    settings: Sequence[Setting],
    # the script (or module) and its arguments; ``{batch}`` is replaced by the setting's batch
    words: Sequence[str],
    *,
    module: bool = False,
    rounds: int = 3,
    steps: int = 40,  # steps after which a run is ended; the first of them warm up
    seconds: float = 60.0,  # time after the first step after which a run is ended
    tokens_per_sample: int | None = None,  # only repeated in the result
    launch: RunTrial = run_trial,  # runs one trial (tests give their own)
    progress: Callable[[str], None] = lambda _: None,
) -> Tuning:
    """Run a program under each setting, ``rounds`` times each, in random order within a round.

    The first round starts with empty compiler caches, one for each setting; later rounds find them filled.
    Raises ProgramError where the program fails in eager mode, or has no steps, and MissingDependencyError
    where torch is not installed here.
    """
    import_torch()
    rounds, steps = max(1, rounds), max(4, steps)
    shuffled = random.Random(0)
    reports: dict[str, list[TrialResult]] = {}
    outputs: dict[str, Path] = {}
    with tempfile.TemporaryDirectory(prefix="kinetoscope-tune-") as folder:

        def trial(setting: Setting, number: int, compile_module: str | None) -> TrialResult:
            progress(f"round {number + 1}/{rounds}: {setting.label}")
            earlier = reports.setdefault(setting.label, [])
            home = Path(folder, str(list(reports).index(setting.label)))
            home.mkdir(exist_ok=True)
            order = TrialRequest(
                setting=setting,
                folder=str(home),
                steps=steps,
                seconds=seconds,
                module=module,
                compile_module=compile_module,
            )
            outputs[setting.label] = order.outputs
            caches = {"TORCHINDUCTOR_CACHE_DIR": f"{home}/inductor", "TRITON_CACHE_DIR": f"{home}/triton"}
            given = [word.replace("{batch}", setting.batch or "") for word in words]
            earlier.append(launch(order, given, caches))
            return earlier[-1]

        # Eager first: it says what the program compiles by itself.
        base = next(setting for setting in settings if setting.is_base)
        first = trial(base, 0, None)
        _usable(first, words)
        compile_module = None if first.compile_calls else first.module
        settings = with_program(settings, first.own)
        for number in range(rounds):
            queue = [setting for setting in settings if number or setting is not base]
            shuffled.shuffle(queue)
            for setting in queue:
                if not any(report.error for report in reports.get(setting.label, ())):
                    trial(setting, number, compile_module)
        differences = {setting.label: _difference(outputs, setting, settings) for setting in settings}
    tuning = conclude(settings, reports, differences, compile_module)
    return msgspec.structs.replace(
        tuning, command=(*(("-m",) if module else ()), *words), tokens_per_sample=tokens_per_sample
    )


def _usable(report: TrialResult, words: Sequence[str]) -> None:
    if report.error is not None:
        raise ProgramError(
            f"the program fails without any compiler: {report.error}",
            where=words[0],
            hint="its traceback is above; make it run by itself first",
        )
    if len(report.steps_s) < 3:
        raise ProgramError(
            "no steps were found, so there is nothing to compare",
            where=words[0],
            hint="a step is an optimizer's step(), a call of a module, or of what torch.compile returned; "
            "at least four must run",
        )
    if report.compile_calls == 0 and report.module is None:
        raise ProgramError(
            "the program compiles nothing and calls no module that could be compiled",
            where=words[0],
            hint="put torch.compile around the function that does the work",
        )


def _difference(outputs: Mapping[str, Path], setting: Setting, settings: Sequence[Setting]) -> float | None:
    """The difference of a setting's first outputs from eager's with the same batch; None where unknown."""
    base = next(other for other in settings if other.is_base and other.batch == setting.batch)
    own, eager = outputs[setting.label], outputs[base.label]
    if setting == base or not own.exists() or not eager.exists():
        return None
    import torch

    outputs_here: dict[str, list[Tensor]] = torch.load(own)
    expected: dict[str, list[Tensor]] = torch.load(eager)
    both = [name for name in expected if name in outputs_here]
    # What the program compiled is compared; where it compiles nothing, the modules it calls.
    chosen = [name for name in both if name.startswith("compiled")] or both
    return difference(
        [t for name in chosen for t in outputs_here[name]], [t for name in chosen for t in expected[name]]
    )
