"""The kernels of a recording, each with its source, its facts and the arguments that it is measured on."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import msgspec

from kinetoscope.bench.kernels import follow, generated, replica
from kinetoscope.bench.kernels.generated import (
    Argument,
    KernelCall,
    KernelSource,
    Launch,
    ModuleSource,
    ReplayError,
    ScalarArgument,
    TensorArgument,
    least_bytes,
    moved_bytes,
)
from kinetoscope.bench.kernels.replica import Values
from kinetoscope.bench.measure.timers import Call
from kinetoscope.bench.torch_names import Tensor
from kinetoscope.compilation.generated.module import KernelFacts, facts
from kinetoscope.errors import InputError
from kinetoscope.recording import plain_file
from kinetoscope.recording.inputs import Inputs, UserKernel


class Subject(NamedTuple):
    """A kernel as one module calls it: the arguments of the call that moves most, of all its calls."""

    kernel: KernelSource
    module: ModuleSource
    facts: KernelFacts
    arguments: tuple[Argument, ...]
    bytes: int
    launches: int  # in one run of the module; of a hand-written kernel, in the step that was watched
    values: Values | None = None  # the program's own integers, where the recording holds them

    @property
    def device(self) -> str:
        """``cuda``, ``cpu``, …: where the kernel runs."""
        devices = [a.device for a in self.arguments if isinstance(a, TensorArgument)]
        return next((device for device in devices if device != "cpu"), "cpu")


def find(path: Path, pattern: str = "*", graph: str = "") -> tuple[list[Subject], list[str]]:
    """The kernels of a recording that match, and what could not be followed. ``pattern``: a glob over full
    kernel names. ``graph``: only modules whose hash or AOT id begins with this. Raises InputError where no
    module is."""
    values, _, _ = read_inputs(path)
    subjects, problems = ([], []) if graph else find_by_hand(path, pattern)
    try:
        modules = generated.find(path, graph)
    except InputError:
        if subjects:
            return subjects, problems
        raise
    for module in modules:
        if not any(fnmatchcase(name, pattern) for name in module.kernels):
            continue
        try:
            calls = follow.calls(module)
        except ReplayError as error:
            problems.append(str(error))
            continue
        subjects += (s._replace(values=values.get(s.kernel.name)) for s in _generated(module, calls, pattern))
    return subjects, problems


def find_by_hand(path: Path, pattern: str) -> tuple[list[Subject], list[str]]:
    """The hand-written kernels of a recording that match, and those that cannot be rebuilt."""
    subjects: list[Subject] = []
    problems: list[str] = []
    _, kernels, data = read_inputs(path)
    for user in kernels:
        where = f"{user.kernel} ({Path(user.file).name}:{user.line}) cannot be rebuilt"
        if user.unusable is not None:
            problems.append(f"{where}: {user.unusable}")
        elif user.missing:
            missing = ", ".join(user.missing)
            problems.append(f"{where} from its source alone: it needs {missing} of its module")
        elif fnmatchcase(user.kernel, pattern):
            subjects.append(_by_hand(user, data))
    return subjects, problems


def _by_hand(user: UserKernel, data: Path) -> Subject:
    constants = {p.name: p.triton_dtype or p.value for p in user.parameters if p.shape is None and p.constant}
    dtypes = frozenset(p.name for p in user.parameters if p.triton_dtype)
    passed = [p for p in user.parameters if p.name not in constants]
    position = {p.name: i for i, p in enumerate(passed)}
    launch = Launch(user.grid, constants, dtypes, user.options)
    kernel = KernelSource(user.kernel, user.source, "user", tuple(position), "", launch)
    arguments = tuple(
        ScalarArgument(p.value)
        if p.shape is None
        else TensorArgument(p.shape, p.stride, p.dtype, p.device, p.storage, p.offset)
        for p in passed
    )
    tensors = tuple(
        msgspec.structs.replace(saved, position=position[name])
        for saved in user.arguments
        if (name := user.parameters[saved.position].name) in position
    )
    return Subject(
        kernel,
        ModuleSource(Path(user.file), user.source, "", {kernel.name: kernel}),
        KernelFacts("user Triton", kernel.signature, (), None, None),
        arguments,
        moved_bytes(kernel.signature, arguments),
        user.launches,
        Values(data, tensors),
    )


def read_inputs(recording: Path) -> tuple[dict[str, Values], list[UserKernel], Path]:
    """Kernel name → recorded values; the hand-written kernels; the file of values. Empty without any. Raises
    InputError where the index is damaged."""
    index, data = recording / "inputs" / "rank0.json", recording / "inputs" / "rank0.bin"
    if not index.is_file() or not data.is_file():
        return {}, [], data
    try:
        inputs = msgspec.json.decode(plain_file.content(index), type=Inputs)
    except msgspec.MsgspecError as error:
        raise InputError(f"the kernels' inputs are damaged: {error}", where=str(index)) from error
    size = data.stat().st_size
    values = {
        kernel.kernel: Values(data, tuple(saved for saved in kernel.arguments if 0 <= saved.at <= size))
        for kernel in inputs.generated
    }
    return values, list(inputs.user), data


def _generated(module: ModuleSource, calls: Sequence[KernelCall], pattern: str) -> list[Subject]:
    subjects: list[Subject] = []
    for name, kernel in module.kernels.items():
        its_calls = [call for call in calls if call.kernel == name]
        if not its_calls or not fnmatchcase(name, pattern):
            continue
        known = facts(kernel.name, kernel.kind, kernel.source)
        largest = max(its_calls, key=lambda call: least_bytes(known, call.arguments))
        moved = least_bytes(known, largest.arguments)
        subjects.append(Subject(kernel, module, known, largest.arguments, moved, len(its_calls)))
    return subjects


def arguments(subject: Subject, device: str, seed: int = 0) -> list[Tensor]:
    return replica.arguments(subject.arguments, device, seed, subject.facts.index_bound, subject.values)


def launches(
    subject: Subject, built: replica.Replica, device: str, most: int = replica.MOST_SETS
) -> list[Call]:
    """The kernel bound to as many sets of buffers as are rotated."""
    return [
        built.bind(arguments(subject, device, seed))
        for seed in range(replica.sets(subject.bytes, device, most))
    ]
