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
    """One device's; time goes on by 10 µs with each call. ``peaks`` are the most of ``counts`` so far."""

    def __init__(self, device: int = 0) -> None:
        self.device, self.now, self.next = device, WHEN_US, 0x7F00_0000_0000 + (device << 40)
        self.segments: list[Segment] = []
        self.entries: list[dict[str, object]] = []
        self.recording = True
        self.peaks = {"requested": 0, "allocated": 0, "reserved": 0}

    def begin(self) -> None:
        """Keep the history from here on, anew."""
        self.recording, self.entries = True, []

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
        self.peaks = {name: max(count, self.peaks[name]) for name, count in self.counts().items()}
        return block.address

    def free(self, address: int) -> None:
        segment, block = next(
            (s, b) for s in self.segments for b in s.blocks if b.address == address and not b.free
        )
        for action in ("free_requested", "free_completed"):
            self._entry(action, address, block.requested, segment.stream, segment.pool, block.frames)
        block.free, block.frames = True, None
        merged: list[Block] = []
        for one in segment.blocks:
            if merged and merged[-1].free and one.free:
                merged[-1].size += one.size
            else:
                merged.append(one)
        segment.blocks = merged

    def empty_cache(self) -> None:
        for segment in [s for s in self.segments if all(block.free for block in s.blocks)]:
            self.segments.remove(segment)
            self._entry(
                "segment_free", segment.address, segment.size, segment.stream, segment.pool, segment.frames
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
            entry |= {"size": size, "stream": stream, "time_us": self.now, "compile_context": "N/A"}
            entry |= {"user_metadata": "", "pool_id": (pool[0] + 0, pool[1] + 0)}
            self.entries.append(entry | ({} if at is None else {"frames": at}))


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
