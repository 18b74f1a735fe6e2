"""Which configuration of a Triton kernel is fastest: all are tried, then coordinate descent from the best."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from kinetoscope.bench import torch_names
from kinetoscope.bench.kernels import replica
from kinetoscope.bench.kernels.generated import Configuration
from kinetoscope.bench.kernels.subjects import Subject, arguments, launches
from kinetoscope.bench.measure.device import Bench
from kinetoscope.bench.measure.harness import measure
from kinetoscope.bench.measure.results import Gain, MeasurementSet, RatioToBase
from kinetoscope.bench.measure.timers import Call
from kinetoscope.bench.torch_names import Tensor
from kinetoscope.errors import InputError, UsageError
from kinetoscope.recording import plain_file

# What coordinate descent changes, by halving and doubling, and how far.
LIMITS = {"num_warps": (1, 32), "num_stages": (1, 6)}
LARGEST_BLOCK = 8192
SETS = 4  # sets of buffers for each configuration: many configurations share the device's memory
# A neighbour must be this much faster in its trial for the descent to move there; a final A/B decides.
STEP_GAIN = 0.005
MOST_MOVES = 20


class TriedConfiguration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    configuration: dict[str, int]
    origin: str  # default | max-autotune | given | coordinate descent
    median_ns: float | None = None
    registers: int | None = None
    spills: int | None = None
    shared_memory_bytes: int | None = None
    error: str | None = None
    """Why it has no time: it does not compile, or its results differ from the default's."""


class Tuned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All trials of one kernel, and the winner against the default, measured by themselves."""

    name: str
    module: str
    launches_per_run: int
    trials: tuple[TriedConfiguration, ...]
    default: dict[str, int]
    winner: dict[str, int]
    lookup_key: str | None = None  # Inductor's own key for this kernel (see `apply`)
    final: MeasurementSet | None = None

    @property
    def comparison(self) -> RatioToBase | None:
        """The winner against the default; None if the default won."""
        return self.final.comparison("winner") if self.final is not None else None

    @property
    def is_faster(self) -> bool:
        return self.comparison is not None and self.comparison.verdict == "faster"

    @property
    def gain(self) -> Gain:
        """The winner's saving in a run of its graph: of the default's cold median, times its launches."""
        if self.final is None or self.comparison is None or not self.is_faster:
            return Gain(0.0, 0.0, 0.0)
        return self.comparison.gain(self.final["default"].median_ns * self.launches_per_run)


def parse_configuration(text: str) -> dict[str, int]:
    """``XBLOCK=128,num_warps=8`` (or with spaces) as a configuration. Raises UsageError for other text."""
    configuration: dict[str, int] = {"num_warps": 4, "num_stages": 1}
    for part in re.split(r"[,\s]+", text.strip()):
        name, equals, value = part.partition("=")
        if not equals or not name.isidentifier() or not value.isdecimal():
            raise UsageError(
                f"not a configuration: {text!r}", hint="for example XBLOCK=128,num_warps=8,num_stages=2"
            )
        configuration[name] = int(value)
    return configuration


def read_configurations(path: Path) -> list[dict[str, int]]:
    """One configuration a line; empty lines and comments (``#``) are skipped. Raises InputError where the
    file cannot be read, UsageError where a line is no configuration."""
    try:
        lines = [line.strip() for line in plain_file.content(path).decode(errors="replace").splitlines()]
    except OSError as error:
        raise InputError(f"cannot read the configurations: {error.strerror}", where=str(path)) from error
    return [parse_configuration(line) for line in lines if line and not line.startswith("#")]


def max_autotune_source(source: str) -> str:
    """The kernel's source as Inductor writes it under max-autotune: the same code, with everything to try."""
    return re.sub(r"'(max_autotune|max_autotune_pointwise)': False", r"'\1': True", source)


def neighbours(configuration: Configuration) -> list[dict[str, int]]:
    """The configurations one halving or doubling away (``num_stages``: one less or more)."""
    around: list[dict[str, int]] = []
    for name, value in configuration.items():
        if not tunable(name):
            continue
        low, high = LIMITS.get(name, (1, LARGEST_BLOCK))
        steps = (value - 1, value + 1) if name == "num_stages" else (value // 2, value * 2)
        around += [{**configuration, name: step} for step in steps if low <= step <= high]
    return around


def tunable(name: str) -> bool:
    """Blocks, warps and stages. The wrapper relies on other entries (``RSPLIT_SIZE``), which stay."""
    return name.endswith("BLOCK") or name in LIMITS


def descend(start: dict[str, int], cost: Callable[[list[dict[str, int]]], Sequence[float]]) -> dict[str, int]:
    """Coordinate descent: move to the best neighbour as long as one is faster. ``cost`` times configurations
    side by side; it is infinite for one that cannot run."""
    here = start
    for _ in range(MOST_MOVES):
        around = neighbours(here)
        first, *others = cost([here, *around])
        best = min(range(len(others)), key=others.__getitem__)
        if not others[best] < first * (1 - STEP_GAIN):
            break
        here = around[best]
    return here


class Tuner:
    """Tries configurations of one kernel, each checked against the default's results before it is timed."""

    def __init__(self, subject: Subject, bench: Bench, *, seconds: float) -> None:
        self._subject, self._bench, self._seconds = subject, bench, seconds
        self._default = replica.Replica(subject.kernel)
        self._expected = replica.fresh(self._arguments, self._default)
        launcher = self._default.launcher()
        assert launcher is not None, "only Triton kernels are tuned"
        self.default = launcher.configuration
        self._calls: dict[str, list[Call] | None] = {}
        self.trials: dict[str, TriedConfiguration] = {}

    def _arguments(self) -> list[Tensor]:
        return arguments(self._subject, self._bench.device)

    def candidates(self) -> list[dict[str, int]]:
        """The configurations that Inductor itself would try under max-autotune."""
        source = max_autotune_source(self._subject.kernel.source)
        autotuner = getattr(replica.load_source(source), self._subject.kernel.name)
        return [torch_names.configuration(config) for config in autotuner.configs]

    def times(self, wanted: Iterable[Configuration], origin: str) -> list[float]:
        """The median of each configuration, timed side by side; infinity for one that cannot be used."""
        keys = [self._prepare(configuration, origin) for configuration in wanted]
        ready = {key: calls for key in dict.fromkeys(keys) if (calls := self._calls[key])}
        if ready:
            measured = measure(
                ready,
                timer=self._bench.timer,
                mode="cold",
                clocks=self._bench.clocks,
                seconds=self._seconds,
                warmup_seconds=0.05,
                precision=0.002,
            )
            for key in ready:
                self.trials[key] = msgspec.structs.replace(
                    self.trials[key], median_ns=measured[key].median_ns
                )
        return [self.trials[key].median_ns or float("inf") for key in keys]

    def _prepare(self, configuration: Configuration, origin: str) -> str:
        key = ", ".join(f"{name}={value}" for name, value in configuration.items())
        if key in self.trials:
            return key
        self._calls[key], error = None, None
        resources: dict[str, int | None] = {}
        try:
            built = replica.Replica(self._subject.kernel, configuration)
            result = replica.fresh(self._arguments, built)
            launcher = built.launcher()
            assert launcher is not None
            resources = {name: getattr(launcher, name) for name in launcher._fields[1:]}
            if replica.agree(result, self._expected):
                self._calls[key] = launches(self._subject, built, self._bench.device, SETS)
            else:
                error = "its results differ from the default's"
        except Exception as failure:  # too many resources, a compiler's refusal: this configuration is out
            error = f"{type(failure).__name__}: {failure}"[:300]
        self.trials[key] = TriedConfiguration(
            configuration=dict(configuration), origin=origin, error=error, **resources
        )
        return key

    def final(self, winner: Configuration, *, seconds: float) -> MeasurementSet:
        """The winner against the default, interleaved, with a twin of the default for the noise floor."""
        return measure(
            {
                "default": self._calls[self._prepare(self.default, "default")] or (),
                "winner": self._calls[self._prepare(winner, "given")] or (),
            },
            timer=self._bench.timer,
            mode="cold",
            base="default",
            clocks=self._bench.clocks,
            seconds=seconds,
        )


def tune_kernel(
    subject: Subject, bench: Bench, *, given: Sequence[Configuration] = (), seconds: float = 1.0
) -> Tuned:
    """Try every configuration of a kernel and measure the winner against the default. Raises ReplayError
    where the kernel cannot be rebuilt here."""
    tuner = Tuner(subject, bench, seconds=seconds)
    tuner.times([tuner.default], "default")
    tuner.times([tuner.default, *tuner.candidates()], "max-autotune")
    tuner.times([tuner.default, *given], "given")
    best = min(tuner.trials.values(), key=lambda trial: trial.median_ns or float("inf")).configuration
    winner = descend(best, lambda wanted: tuner.times(wanted, "coordinate descent"))
    return Tuned(
        name=subject.kernel.name,
        module=subject.module.hash,
        launches_per_run=subject.launches,
        trials=tuple(tuner.trials.values()),
        default=tuner.default,
        winner=winner,
        # The table has no place for entries that are not blocks, warps or stages.
        lookup_key=torch_names.lookup_key(
            getattr(replica.load_source(subject.kernel.source), subject.kernel.name)
        )
        if all(map(tunable, winner))
        else None,
        final=None if winner == tuner.default else tuner.final(winner, seconds=max(2.0, seconds)),
    )
