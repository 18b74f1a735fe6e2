"""A caching allocator as torch's, small, and the snapshots that it would dump; it counts for itself.

Best fit, split and merge, 512-byte rounding, small and large pools, as c10's CUDACachingAllocator has them;
the dictionaries are those of torch/csrc/cuda/Module.cpp.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from pathlib import Path

Frames = list[dict[str, object]]
MIB = 1 << 20
WHEN_US = 1_763_760_000_000_000


def frames(*lines: str) -> Frames:
    """``train.py:12:step`` and the like, the innermost first."""
    found: Frames = []
    for line in lines:
        file, number, name = line.split(":")
        found.append({"name": name, "filename": file, "line": int(number)})
    return found


@dataclass
class Block:
    address: int
    size: int
    requested: int = 0
    free: bool = True
    frames: Frames | None = None


@dataclass
class Segment:
    address: int
    size: int
    small: bool
    stream: int
    pool: tuple[int, int]
    frames: Frames | None
    blocks: list[Block] = field(default_factory=list[Block])


class Allocator:
    """One device's; time goes on by 10 µs with each call. ``peaks`` are the ``counts`` when most was held,
    ``counted`` those after each entry of the history. The device has ``room`` bytes; ``retries`` of
    allocations had some only once what is cached was given back."""

    def __init__(self, device: int = 0, room: int = 1 << 60) -> None:
        self.room, self.retries = room, 0
        self.device, self.now, self.next = device, WHEN_US, 0x7F00_0000_0000 + (device << 40)
        self.segments: list[Segment] = []
        self.entries: list[dict[str, object]] = []
        self.counted: list[dict[str, int]] = []
        self.recording = True
        self.metadata, self.compiled = "", "N/A"  # what is noted of each entry
        self.peaks = {"requested": 0, "allocated": 0, "reserved": 0}

    def begin(self) -> None:
        """Keep the history from here on, anew."""
        self.recording, self.entries, self.counted = True, [], []

    def counts(self) -> dict[str, int]:
        blocks = [block for segment in self.segments for block in segment.blocks if not block.free]
        return {
            "requested": sum(block.requested for block in blocks),
            "allocated": sum(block.size for block in blocks),
            "reserved": sum(segment.size for segment in self.segments),
        }

    def alloc(
        self, size: int, at: Frames | None = None, *, stream: int = 0, pool: tuple[int, int] = (0, 0)
    ) -> int:
        rounded = max(512, -(-size // 512) * 512)
        small = rounded <= MIB
        home = [s for s in self.segments if (s.small, s.stream, s.pool) == (small, stream, pool)]
        fits = [(b.size, b.address, s, b) for s in home for b in s.blocks if b.free and b.size >= rounded]
        if fits:
            _, _, segment, block = min(fits, key=lambda fit: fit[:2])
        else:
            taken = (
                2 * MIB if small else 20 * MIB if rounded < 10 * MIB else -(-rounded // (2 * MIB)) * 2 * MIB
            )
            if self.counts()["reserved"] + taken > self.room:
                self.retries += 1
                self._give_back(at)
            block = Block(self.next, taken)
            segment = Segment(self.next, taken, small, stream, pool, at, [block])
            self.next += taken + 64 * MIB
            self.segments.append(segment)
            self._entry("segment_alloc", segment.address, taken, stream, pool, at)
        left = block.size - rounded
        if left >= 512 if small else left > MIB:
            place = segment.blocks.index(block)
            segment.blocks.insert(place + 1, Block(block.address + rounded, left))
            block.size = rounded
        block.free, block.requested = False, size
        block.frames = at if self.recording else None
        self._entry("alloc", block.address, size, stream, pool, at)
        self.peaks = max(self.peaks, self.counts(), key=lambda counts: counts["requested"])
        return block.address

    def free(self, address: int) -> None:
        segment, block = next(
            (s, b) for s in self.segments for b in s.blocks if b.address == address and not b.free
        )
        for action in ("free_requested", "free_completed"):
            block.free = action == "free_completed"
            self._entry(action, address, block.requested, segment.stream, segment.pool, block.frames)
        block.frames = None
        merged: list[Block] = []
        for one in segment.blocks:
            if merged and merged[-1].free and one.free:
                merged[-1].size += one.size
            else:
                merged.append(one)
        segment.blocks = merged

    def empty_cache(self, at: Frames | None = None) -> None:
        """With the stack of the call where the history has those of releases."""
        self._give_back(at)

    def _give_back(self, at: Frames | None) -> None:
        for segment in [s for s in self.segments if all(block.free for block in s.blocks)]:
            self.segments.remove(segment)
            self._entry(
                "segment_free",
                segment.address,
                segment.size,
                segment.stream,
                segment.pool,
                at or segment.frames,
            )

    def fail(self, size: int, at: Frames | None = None) -> None:
        self._entry("oom", 12345, size, 0, (0, 0), at)

    def _entry(
        self, action: str, address: int, size: int, stream: int, pool: tuple[int, int], at: Frames | None
    ) -> None:
        self.now += 10
        if self.recording:
            entry: dict[str, object] = {
                "action": action,
                "device_free" if action == "oom" else "addr": address,
            }
            context = "".join([*self.compiled])  # torch makes a new text for every entry
            entry |= {"size": size, "stream": stream, "time_us": self.now, "compile_context": context}
            entry |= {"user_metadata": self.metadata, "pool_id": (pool[0] + 0, pool[1] + 0)}
            self.entries.append(entry | ({} if at is None else {"frames": at}))
            self.counted.append(self.counts())


def snapshot(*allocators: Allocator, ring: int | None = None) -> dict[str, object]:
    """As ``torch.cuda.memory._snapshot()`` gives it; of the history the last ``ring`` entries."""
    segments: list[dict[str, object]] = []
    for allocator in allocators:
        for one in sorted(allocator.segments, key=lambda segment: segment.address):
            blocks: list[dict[str, object]] = []
            for block in one.blocks:
                state = "inactive" if block.free else "active_allocated"
                row: dict[str, object] = {"address": block.address, "size": block.size}
                row |= {"requested_size": block.requested, "state": state, "frames": block.frames or []}
                blocks.append(row)
            live = [block for block in one.blocks if not block.free]
            segments.append(
                {
                    "device": allocator.device,
                    "address": one.address,
                    "total_size": one.size,
                    "allocated_size": sum(block.size for block in live),
                    "active_size": sum(block.size for block in live),
                    "requested_size": sum(block.requested for block in live),
                    "stream": one.stream,
                    "segment_type": "small" if one.small else "large",
                    "segment_pool_id": one.pool,
                    "is_expandable": False,
                    "frames": one.frames or [],
                    "blocks": blocks,
                }
            )
    traces = [allocator.entries[-ring:] if ring else allocator.entries for allocator in allocators]
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False}
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": settings,
        "external_annotations": [],
    }


def dump(path: Path, *allocators: Allocator, protocol: int = 4, ring: int | None = None) -> Path:
    path.write_bytes(pickle.dumps(snapshot(*allocators, ring=ring), protocol=protocol))
    return path


SITE = "/env/lib/python3.12/site-packages/torch/"
MAIN = ("/home/u/train.py:90:main", "/home/u/train.py:99:<module>")
CALL = SITE + "nn/modules/module.py:1784:_call_impl"
OF_LAYER = (SITE + "nn/modules/linear.py:125:forward", CALL, "/home/u/model.py:33:forward", CALL, *MAIN)
OF_BATCH, OF_LOSS = MAIN, (SITE + "nn/functional.py:3458:cross_entropy", *MAIN)
OF_OPTIMIZER = (SITE + "optim/adam.py:140:_init_group", SITE + "optim/optimizer.py:500:wrapper", *MAIN)


@dataclass
class Training:
    """Three recorded steps of training after one that was not; ``roles`` are those of every allocation of the
    recorded steps, in order, and ``tensors`` what the program says at the end."""

    leaks: int = 0
    allocator: Allocator = field(default_factory=Allocator)
    roles: list[str] = field(default_factory=list[str])
    boundaries: list[int] = field(default_factory=list[int])
    tensors: list[dict[str, object]] = field(default_factory=list[dict[str, object]])

    def __post_init__(self) -> None:
        a = self.allocator
        weights = [(size, a.alloc(size, frames(*MAIN))) for size in (4 * MIB, 300_000)]
        state = [(size, a.alloc(size, frames(*OF_OPTIMIZER))) for size, _ in weights]
        batch = a.alloc(40_000, frames(*OF_BATCH))
        gradients = [a.alloc(size) for size, _ in weights]
        a.begin()
        for _ in range(3):
            self._boundary()
            batch, gradients = self._step(batch, weights, gradients)
        self._boundary()
        named = [("parameter", one) for one in weights] + [("optimizer state", one) for one in state]
        named += [("gradient", (size, at)) for (size, _), at in zip(weights, gradients, strict=True)]
        self.tensors += [
            {"role": role, "name": f"m.{number}", "device": 0, "address": at, "bytes": size}
            for number, (role, (size, at)) in enumerate(named)
        ]

    def _step(
        self, batch: int, weights: list[tuple[int, int]], gradients: list[int]
    ) -> tuple[int, list[int]]:
        new = self._take("input", 40_000, OF_BATCH)
        self.allocator.free(batch)
        saved = [self._take("activation", 2 * MIB, OF_LAYER) for _ in range(3)]
        self.allocator.free(self._take("temporary", 9 * MIB, OF_LAYER))
        saved.append(self._take("activation", 5 * MIB, OF_LOSS))
        if self.leaks:
            self._take("kept", self.leaks, OF_LOSS)
        for one in gradients:
            self.allocator.free(one)
        for one in reversed(saved):
            passing = self._take("temporary", MIB, None)
            self.allocator.free(one)
            self.allocator.free(passing)
        made = [self._take("gradient", size, None) for size, _ in weights]
        self.allocator.free(self._take("temporary", 3 * MIB, OF_OPTIMIZER))
        return new, made

    def _take(self, role: str, size: int, lines: tuple[str, ...] | None) -> int:
        self.roles.append(role)
        return self.allocator.alloc(size, [] if lines is None else frames(*lines))

    def _boundary(self) -> None:
        self.allocator.now += 10
        self.boundaries.append(self.allocator.now * 1000)
