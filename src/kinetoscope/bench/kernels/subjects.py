"""The kernels of a recording, each with its source, its facts and the arguments that it is measured on."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from kinetoscope.bench.kernels import captured, follow, generated, replica
from kinetoscope.bench.kernels.captured import Values
from kinetoscope.bench.kernels.generated import (
    Argument,
    KernelCall,
    KernelFacts,
    KernelSource,
    ModuleSource,
    ReplayError,
    TensorArgument,
    facts,
    least_bytes,
    moved_bytes,
)
from kinetoscope.bench.measure.timers import Call
from kinetoscope.bench.torch_names import Tensor
from kinetoscope.errors import InputError


class Subject(NamedTuple):
    """A kernel as one module calls it: the arguments of the call that moves most, of all its calls."""

    kernel: KernelSource
    module: ModuleSource
    facts: KernelFacts
    arguments: tuple[Argument, ...]
    bytes: int
    launches: int
    """In one run of the module; of a hand-written kernel, in the step that was watched."""
    values: Values | None = None
    """The program's own integers, where the recording holds them."""

    @property
    def device(self) -> str:
        """``cuda``, ``cpu``, …: where the kernel runs."""
        devices = [a.device for a in self.arguments if isinstance(a, TensorArgument)]
        return next((device for device in devices if device != "cpu"), "cpu")


def find(path: Path, pattern: str = "*", graph: str = "") -> tuple[list[Subject], list[str]]:
    """The kernels of a recording that match, and what could not be followed.

    Args:
        pattern: a glob over full kernel names.
        graph: only modules whose hash or AOT id begins with this.

    Raises:
        InputError: no module there.
    """
    values, _, _ = captured.read(path)
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
    for found in captured.user_kernels(path):
        if isinstance(found, str):
            problems.append(found)
            continue
        kernel, module, arguments, launches, values = found
        if fnmatchcase(kernel.name, pattern):
            known = KernelFacts("user Triton", kernel.signature, (), None, None)
            moved = moved_bytes(kernel.signature, arguments)
            subjects.append(Subject(kernel, module, known, arguments, moved, launches, values))
    return subjects, problems


def _generated(module: ModuleSource, calls: Sequence[KernelCall], pattern: str) -> list[Subject]:
    found: list[Subject] = []
    for name, kernel in module.kernels.items():
        own = [call for call in calls if call.kernel == name]
        if not own or not fnmatchcase(name, pattern):
            continue
        known = facts(kernel)
        largest = max(own, key=lambda call: least_bytes(known, call.arguments))
        moved = least_bytes(known, largest.arguments)
        found.append(Subject(kernel, module, known, largest.arguments, moved, len(own)))
    return found


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
