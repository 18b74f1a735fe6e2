"""A program, its device, its profiler and what it waits for, all of which do as they are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kinetoscope.capture.options import Options
from kinetoscope.capture.recorder.profiler import GivenToModels
from kinetoscope.capture.recorder.recorder import Recorder
from kinetoscope.capture.steps.ledgers import Prefetch, Waited
from kinetoscope.recording.manifest import BatchPadding


class FakeSession:
    def __init__(self, device: FakeDevice, name: str) -> None:
        self.device, self.log, self.name = device, device.log, name
        self.running: tuple[int, int] | None = None

    def prepare(self) -> None:
        self.log.append(f"{self.name} prepare")
        self.device.paused()

    def start(self) -> None:
        self.log.append(f"{self.name} start")

    def mark(self, step: int | None) -> None:
        self.log.append(f"{self.name} mark {step}")

    def part(self, name: str) -> None:
        self.log.append(f"{self.name} part {name}")

    def ends_here(self) -> bool:
        return self.device.ends_here

    def given(self) -> GivenToModels:
        return GivenToModels()

    def stop(self) -> None:
        self.log.append(f"{self.name} stop")
        self.device.stopping(self)

    def export(self, path: Path) -> None:
        self.device.export(self, path)
        self.device.paused()


class FakeDevice:
    """A device; with a ``clock`` (seconds) it marks places in its order of work."""

    def __init__(self, *, light: bool = False) -> None:
        self.log: list[str] = []
        self.sessions = 0
        self.light = light
        self.capturing: str | None = None  # a graph: "here", whose part a mark would become, or "elsewhere"
        self.marks = True  # whether it can mark a place now
        self.clock: Callable[[], float] | None = None
        self.paused: Callable[[], None] = lambda: None
        self.hindrance: str | None = None  # why Python's functions cannot be recorded
        self.releases = True  # whether nothing of a session stays
        self.ends_here = True  # whether this thread can end a session
        self.stopping: Callable[[FakeSession], None] = lambda session: None
        self.export: Callable[[FakeSession, Path], None] = lambda session, path: self.log.append(
            f"{session.name} export {path}"
        )

    def session(self, *, kind: str, any_thread: bool) -> FakeSession:
        self.sessions += 1
        return FakeSession(self, f"{'whole' if any_thread else kind}{self.sessions}")

    def python_hindrance(self) -> str | None:
        return self.hindrance

    def has_light_pass(self) -> bool:
        return self.light

    def occupied(self) -> str | None:
        return self.capturing

    def release(self) -> bool:
        self.log.append("release")
        return self.releases

    def synchronize(self) -> None:
        self.log.append("synchronize")

    def has_clock(self) -> bool:
        return self.clock is not None

    def mark(self) -> float | None:
        return None if self.clock is None or self.capturing or not self.marks else self.clock()

    def elapsed_s(self, marks: Sequence[tuple[float, float]]) -> list[float]:
        self.log.append("elapsed")
        return [ended - began for began, ended in marks]


class FakeLedgers:
    """Ledgers into which the program writes what it waits for."""

    def __init__(self) -> None:
        self.installed = False
        self.prefetch = Prefetch()
        self.padding: BatchPadding | None = None
        self.collects_at: str | None = None
        self.waited = Waited(0, 0, 0)

    def install(self) -> None:
        self.installed = True

    def remove(self) -> None:
        self.installed = False

    def read(self) -> Waited:
        return self.waited

    def wait(self, data_s: float = 0.0, sync_s: float = 0.0, gc_s: float = 0.0) -> None:
        more = (round(seconds * 1e9) for seconds in (data_s, sync_s, gc_s))
        self.waited = Waited(*(before + now for before, now in zip(self.waited[:3], more, strict=True)))


class Program:
    """A loop whose steps take the seconds it is given."""

    def __init__(
        self, options: Options | None = None, device: FakeDevice | None = None, **arguments: object
    ) -> None:
        self.now, self.compiled, self.finished, self.made = 100.0, 0, 0, 0
        self.device, self.ledgers = device or FakeDevice(), FakeLedgers()
        self.recorder = Recorder(
            options or Options(lines=False),
            self.device,
            Path("trace.json"),
            ledgers=self.ledgers,
            clock=lambda: self.now,
            compilations=lambda: self.compiled,
            saved=self.finish,
            **arguments,  # type: ignore[arg-type]
        )
        self.recorder.begin()

    def finish(self) -> None:
        self.finished += self.recorder.done

    def step(
        self, seconds: float = 0.125, kind: str = "optimizer", key: int = 1, compiles: bool = False
    ) -> None:
        self.now += seconds
        self.made += kind == "optimizer"
        self.compiled += compiles
        self.recorder.tick(kind, key, "AdamW")

    def steps(self, count: int, seconds: float = 0.125, **source: object) -> None:
        for _ in range(count):
            self.step(seconds, **source)  # type: ignore[arg-type]

    def until(self, phase: type, seconds: float = 0.125, **source: object) -> None:
        """Steps until the recorder is in that phase."""
        for _ in range(1000):
            if isinstance(self.recorder.phase, phase):
                return
            self.step(seconds, **source)  # type: ignore[arg-type]
        raise AssertionError(f"never in {phase.__name__}")
