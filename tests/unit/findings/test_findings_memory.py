"""What rules on memory say of loops whose memory is known, and what they would free of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

import traces
from kinetoscope.findings.model import Finding
from kinetoscope.findings.registry import find
from kinetoscope.recording.memory import DeviceMemory, Held
from kinetoscope.sources.run import LoadedRun, MemoryFiles, load
from snapshots import CALL, MAIN, MIB, OF_OPTIMIZER, SITE, Allocator, dump, frames

LAYERS = 6


@dataclass
class Loop:
    """Three recorded steps of so many layers, each of three saved tensors; and what goes wrong in them."""

    saved: int = 10 * MIB
    logits: int = 0
    float32: bool = False
    keeps_gradients: bool = False
    optimizer_temporaries: int = 0
    temporary: int = 0
    leak: int = 0
    allocator: Allocator = field(default_factory=Allocator)
    boundaries: list[int] = field(default_factory=list[int])

    def __post_init__(self) -> None:
        a = self.allocator
        a.alloc(64 * MIB, frames(*MAIN))
        gradients = [a.alloc(32 * MIB) for _ in range(2)]
        a.begin()
        for _ in range(3):
            self._boundary()
            gradients = self._step(gradients)
        self._boundary()

    def _layer(self, part: int) -> list[dict[str, object]]:
        inner = f"{SITE}nn/modules/linear.py:{part}:forward"
        return frames(inner, CALL, f"/home/u/model.py:{part}:forward", CALL, *MAIN)

    def _step(self, gradients: list[int]) -> list[int]:
        a = self.allocator
        if not self.keeps_gradients:
            for one in gradients:
                a.free(one)
        layers = [[a.alloc(self.saved, self._layer(part)) for part in range(3)] for _ in range(LAYERS)]
        if self.temporary:
            a.free(a.alloc(self.temporary, frames(*MAIN)))
        made: list[int] = []
        if self.logits:
            made.append(a.alloc(self.logits, self._layer(9)))
            size = self.logits * (2 if self.float32 else 1)
            count = 2 if self.float32 else 1
            made += [
                a.alloc(size, frames(f"{SITE}nn/functional.py:3:cross_entropy", *MAIN)) for _ in range(count)
            ]
        if self.leak:
            a.alloc(self.leak, frames("/home/u/train.py:55:log", *MAIN))
        grown = a.alloc(max(self.logits, 512) * (2 if self.float32 else 1))
        for one in made:
            a.free(one)
        a.free(grown)
        for layer in reversed(layers):
            passing = a.alloc(self.saved)
            for one in reversed(layer):
                a.free(one)
            a.free(passing)
        if not self.keeps_gradients:
            gradients = [a.alloc(32 * MIB) for _ in range(2)]
        if self.optimizer_temporaries:
            a.free(a.alloc(self.optimizer_temporaries, frames(*OF_OPTIMIZER)))
        return gradients

    def _boundary(self) -> None:
        self.allocator.now += 10
        self.boundaries.append(self.allocator.now * 1000)

    def findings(self, folder: Path, *, silent: bool = False, **tensors: object) -> dict[str, Finding]:
        """By rule; those that free nothing are left out unless ``silent``."""
        path = dump(folder / "x.pickle", self.allocator)
        held = folder / "x.json"
        held.write_bytes(msgspec.json.encode(Held(boundaries_ns=tuple(self.boundaries), **tensors)))  # type: ignore[arg-type]
        run = LoadedRun((traces.trace(traces.step(1, 0, 100)),), snapshots=(MemoryFiles(0, path, held),))
        return {one.rule: one for one in find(run) if one.saving_bytes or silent}

    @property
    def peak(self) -> int:
        return self.allocator.peaks["requested"]


def test_a_loop_in_which_nothing_is_wrong_has_its_activations_named_alone(tmp_path: Path):
    assert set(Loop().findings(tmp_path)) == {"activation-memory"}
    assert set(Loop(saved=MIB).findings(tmp_path)) <= {"activation-memory"}


CHANGES: list[tuple[str, Callable[[], Loop], Callable[[], Loop]]] = [
    (
        "float32-logits",
        lambda: Loop(logits=80 * MIB, float32=True),
        lambda: Loop(logits=80 * MIB),
    ),
    ("optimizer-memory", lambda: Loop(optimizer_temporaries=400 * MIB), lambda: Loop()),
    ("one-temporary", lambda: Loop(temporary=300 * MIB), lambda: Loop()),
]


@pytest.mark.parametrize(("rule", "before", "after"), CHANGES, ids=[rule for rule, *_ in CHANGES])
def test_what_a_change_would_free_is_what_it_frees(
    rule: str, before: Callable[[], Loop], after: Callable[[], Loop], tmp_path: Path
):
    wrong, right = before(), after()
    found = wrong.findings(tmp_path)[rule]
    assert found.saving_bytes == pytest.approx(wrong.peak - right.peak, rel=0.1)
    assert rule not in right.findings(tmp_path)


class Failing(Allocator):
    """Has no room for the third of autograd's allocations that are as large as logits."""

    large = 0

    def alloc(self, size: int, at: object = None, *given: object, **named: object) -> int:
        self.large += at is None and size >= 80 * MIB
        if self.large == 3:
            self.fail(size)
            raise MemoryError
        return super().alloc(size, at, *given, **named)  # type: ignore[arg-type]


class Failed(Loop):
    def __post_init__(self) -> None:
        with suppress(MemoryError):
            super().__post_init__()


def test_what_a_change_would_free_when_an_allocation_fails_the_changed_program_does_not_hold_then(
    tmp_path: Path,
):
    wrong, right = (Failed(logits=80 * MIB, float32=large, allocator=Failing()) for large in (True, False))
    found = wrong.findings(tmp_path, failed_bytes=160 * MIB, has_optimizer=True)["float32-logits"]
    then = [loop.allocator.counts()["requested"] for loop in (wrong, right)]
    assert found.evidence[0].text.startswith("when the allocation failed")
    assert found.saving_bytes == pytest.approx(then[0] - then[1], rel=0.1)


def test_checkpointed_layers_hold_their_inputs_and_one_layer_s_tensors(tmp_path: Path):
    loop = Loop()
    found = loop.findings(tmp_path)["activation-memory"]
    # The inputs of the layers before the last, all of that one (its input is of it), and what runs backward.
    kept = 64 * MIB + (LAYERS - 1) * loop.saved + 3 * loop.saved + loop.saved
    assert found.saving_bytes == loop.peak - kept


def test_a_leak_is_named_with_its_line(tmp_path: Path):
    found = Loop(leak=2 * MIB).findings(tmp_path)["memory-leak"]
    assert found.source == "train.py:55"
    assert "2.10 MB more are kept with every step" in found.title
    assert found.severity == "medium"


def test_gradients_that_are_zeroed_are_held_beside_the_activations(tmp_path: Path):
    loop = Loop(keeps_gradients=True)
    addresses = [
        block.address for segment in loop.allocator.segments for block in segment.blocks if not block.free
    ]
    tensors = tuple(
        {"role": "gradient", "name": f"g{n}", "device": 0, "address": address, "bytes": 32 * MIB}
        for n, address in enumerate(addresses[1:])
    )
    found = loop.findings(tmp_path, tensors=tensors)["gradients-kept"]
    assert found.saving_bytes == loop.peak - Loop().peak
    assert "gradients-kept" not in Loop().findings(tmp_path)


def test_steps_that_have_room_only_once_the_cache_is_given_back_are_named(tmp_path: Path):
    def loop(room: int) -> dict[str, Finding]:
        steps = Loop(allocator=Allocator(room=room))
        for size in (100, 200, 300):
            steps.allocator.free(steps.allocator.alloc(size * MIB, frames("/home/u/train.py:60:loss", *MAIN)))
            steps._boundary()
        return steps.findings(tmp_path, silent=True)

    found = loop(800 * MIB)["allocator-retries"]
    assert "1 recorded step " in found.title
    assert (found.source, found.severity) == ("train.py:60", "medium")
    assert "allocator-retries" not in loop(1 << 40)


def holes() -> Loop:
    """Half of what is there lies between what is given back, where what is asked for next does not fit."""
    loop = Loop(temporary=300 * MIB)
    allocator = loop.allocator
    held = [allocator.alloc(9 * MIB, frames(*MAIN)) for _ in range(60)]
    for one in held[::2]:
        allocator.free(one)
    allocator.alloc(600 * MIB, frames(*MAIN))
    loop.boundaries = [loop.boundaries[-1], (allocator.now + 1) * 1000]
    return loop


def test_holes_are_named_where_they_are_much_of_what_is_reserved(tmp_path: Path):
    loop = holes()
    used, reserved = loop.allocator.peaks["allocated"], loop.allocator.counts()["reserved"]
    found = loop.findings(tmp_path)["memory-fragmentation"]
    assert found.saving_bytes == int(reserved - 1.05 * used)
    assert found.saving_bytes_at_most  # before the history there may have been more
    assert "memory-fragmentation" not in Loop().findings(tmp_path)


def test_what_expandable_segments_free_is_of_the_most_that_was_needed_or_of_the_moment_that_failed(
    tmp_path: Path,
):
    loop = holes()
    most, reserved = loop.allocator.peaks["requested"], loop.allocator.counts()["reserved"]
    peak = most + 9 * MIB
    counted = (DeviceMemory(device=0, peak_requested_bytes=peak, peak_allocated_bytes=peak),)
    known = loop.findings(tmp_path, devices=counted)["memory-fragmentation"]
    assert (known.saving_bytes, known.saving_bytes_at_most) == (int(reserved - 1.05 * peak), False)
    # What was cached was just given back: what is reserved beyond the blocks of that moment are holes.
    counted = (DeviceMemory(device=0, peak_requested_bytes=reserved, peak_allocated_bytes=reserved),)
    failed = loop.findings(tmp_path, devices=counted, failed_bytes=5 << 30)["memory-fragmentation"]
    now = loop.allocator.counts()["allocated"]
    assert (failed.saving_bytes, failed.saving_bytes_at_most) == (int(reserved - 1.05 * now), False)


def test_what_makes_a_program_fit_stands_before_what_makes_it_fast(tmp_path: Path):
    recording = load(Path(__file__).parents[2] / "fixtures" / "h200" / "mm_64_cold_eager.json.gz")
    loop = Loop(logits=80 * MIB, float32=True)
    path, held = dump(tmp_path / "x.pickle", loop.allocator), tmp_path / "x.json"
    held.write_bytes(msgspec.json.encode(Held(failed_bytes=1 << 30)))
    fits, fails = (find(replace(recording, snapshots=(MemoryFiles(0, path, how),))) for how in (None, held))
    assert any(one.saving_bytes for one in fits)
    assert not fits[0].saving_bytes
    assert fails[0].saving_bytes == max(one.saving_bytes for one in fails) > 0


@pytest.mark.parametrize(("is_alone", "severity"), [(True, "medium"), (False, "low")])
def test_what_would_free_most_of_the_memory_matters_to_who_recorded_nothing_else(
    tmp_path: Path, is_alone: bool, severity: str
):
    loop = Loop(temporary=2000 * MIB)
    path, held = dump(tmp_path / "x.pickle", loop.allocator), tmp_path / "x.json"
    held.write_bytes(msgspec.json.encode(Held(boundaries_ns=tuple(loop.boundaries))))
    run = replace(load(path), snapshots=(MemoryFiles(0, path, held),))
    if not is_alone:
        run = replace(run, traces=(traces.trace(traces.step(1, 0, 100)),))
    (found,) = (one for one in find(run) if one.rule == "one-temporary")
    assert found.severity == severity
