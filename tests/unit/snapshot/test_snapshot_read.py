"""Snapshots as torch writes them, read as Python's own unpickler reads them, and nothing run."""

from __future__ import annotations

import contextlib
import gzip
import os
import pickle
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.errors import InputError
from kinetoscope.snapshot.model import ACTIONS, STATES, Snapshot
from kinetoscope.snapshot.read import read
from kinetoscope.snapshot.recognise import is_snapshot
from snapshots import Allocator, dump, frames, snapshot

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


NATIVE = (
    ("torch::unwind::unwind()", "??"),
    ("PyMethod_New", ""),
    ("do_call_core", "/usr/local/src/conda/python-3.10.13/Python/ceval.c"),
    ("std::function<void ()>::operator()", "/usr/include/c++/11/bits/std_function.h"),
    ("CUDAAllocator::malloc", "CUDACachingAllocator.cpp"),
    ("__GI___clone3", "./misc/../sysdeps/unix/sysv/linux/x86_64/clone3.S"),
    ("main", "/usr/lib/libc.so.6"),
)


def busy(seed: int, calls: int) -> Allocator:
    """An allocator that was called so often, from lines that repeat."""
    random, allocator, live = Random(seed), Allocator(), list[int]()
    lines = [frames(*(f"model.py:{random.randrange(400)}:f" for _ in range(9))) for _ in range(30)]
    for _ in range(calls):
        if live and random.random() < 0.5:
            allocator.free(live.pop(random.randrange(len(live))))
        else:
            size = random.choice([1, 512, 70_000, 1 << 20, 3 << 20, 300_000_000])
            pool = random.choice([(0, 0), (0, 1)])
            live.append(allocator.alloc(size, random.choice([None, *lines]), pool=pool))
        if random.random() < 0.02:
            allocator.empty_cache()
            allocator.fail(1 << 40, lines[0])
    return allocator


def same(found: Snapshot, expected: dict) -> None:  # type: ignore[type-arg]
    """What was read is what the pickle holds."""

    def stack(one: dict) -> tuple:  # type: ignore[type-arg]
        return tuple((f["name"], f["filename"], f["line"]) for f in one.get("frames", ()))

    numbers = {one: number for number, one in enumerate(found.stacks)}
    compiling = {one: "" if one in (None, "N/A") else one for one in (None, "N/A", "0/0", "1/2")}
    entries = [(device, e) for device, trace in enumerate(expected["device_traces"]) for e in trace]
    assert found.entries.rows() == [
        (
            device,
            ACTIONS.index(e["action"]),
            e.get("addr", e.get("device_free")),
            e["size"],
            e["stream"],
            e["time_us"],
            numbers[stack(e)],
            found.pools.index(e.get("pool_id", (0, 0))),
            found.contexts.index((e.get("user_metadata", ""), compiling.get(e.get("compile_context"), ""))),
        )
        for device, e in entries
    ]
    blocks = [(number, b) for number, s in enumerate(expected["segments"]) for b in s["blocks"]]
    assert found.blocks.select("segment", "address", "bytes", "state", "stack").rows() == [
        (number, b["address"], b["size"], STATES.index(b["state"]), numbers[stack(b)]) for number, b in blocks
    ]
    assert found.segments["bytes"].to_list() == [s["total_size"] for s in expected["segments"]]


def test_cpp_frames_which_torch_writes_by_default_are_nobody_s_own_code(tmp_path: Path) -> None:
    """Snapshots of ``stacks="all"`` say the same as those of Python's frames alone."""
    own = frames("/home/u/model.py:3:forward", "/usr/bin/torchrun:8:<module>")
    windows = [{"name": "f", "filename": "D:\\u\\model.py", "line": 3}]
    native = [{"name": name, "filename": file, "line": 0} for name, file in NATIVE]
    both, alone = Allocator(), Allocator()
    for _ in range(3):
        both.alloc(1 << 20, [*native, own[0], native[0], own[1], *native])
        alone.alloc(1 << 20, own)
    both.alloc(512, native)  # autograd's thread: no Python runs in it
    alone.alloc(512, [])
    both.alloc(512, windows)
    alone.alloc(512, [{"name": "f", "filename": "D:/u/model.py", "line": 3}])
    found, expected = (
        read(dump(tmp_path / f"{number}.pickle", one)) for number, one in enumerate((both, alone))
    )
    assert found.stacks == expected.stacks
    assert len(found.stacks) == 3
    assert found.entries.equals(expected.entries)
    assert found.blocks.equals(expected.blocks)


def test_stacks_that_differ_between_their_ends_are_distinguished(tmp_path: Path) -> None:
    allocator = Allocator()
    for number in range(6):
        lines = (1, number % 3, 2, 3, 4)
        allocator.alloc(512, frames(*(f"model.py:{line}:f" for line in lines)))
    found = read(dump(tmp_path / "x.pickle", allocator))
    same(found, snapshot(allocator))
    assert len(found.stacks) == 1 + 3


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_snapshot_of_any_protocol_is_read_as_it_is(tmp_path: Path, protocol: int):
    one, two = busy(1, 1500), Allocator(1)
    two.alloc(5, None)
    path = dump(tmp_path / "x.pickle", one, two, protocol=protocol)
    same(read(path), snapshot(one, two))
    packed = tmp_path / "x.pickle.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert is_snapshot(path)
    assert is_snapshot(packed)
    same(read(packed), snapshot(one, two))


@pytest.mark.parametrize("name", ["compiled", "full-failed", "generate"])
def test_what_torch_wrote_is_read_as_python_reads_it(name: str):
    path = FIXTURES / "h200_memory" / f"{name}.pickle.gz"
    same(read(path), pickle.loads(gzip.decompress(path.read_bytes())))


class Harm:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("echo harm > harmed",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_pickle_that_would_run_something_is_refused(
    tmp_path: Path, protocol: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps({"segments": [Harm()], "device_traces": []}, protocol=protocol))
    with pytest.raises(InputError, match=r"more than plain data|damaged"):
        read(path)
    assert not (tmp_path / "harmed").exists()


WHOLE = pickle.dumps(snapshot(busy(3, 60)), protocol=4)


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_a_damaged_file_is_an_input_error_or_some_snapshot(data: st.DataObject):
    import tempfile

    damaged = bytearray(WHOLE[: data.draw(st.integers(0, len(WHOLE)))])
    for place, value in data.draw(
        st.lists(st.tuples(st.integers(0, len(WHOLE)), st.integers(0, 255)), max_size=4)
    ):
        if place < len(damaged):
            damaged[place] = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.pickle"
        path.write_bytes(bytes(damaged))
        with contextlib.suppress(InputError):
            assert len(read(path).stacks) >= 1


BEGIN = b"\x80\x04"
EMPTY_TRACES = b"X\x0d\x00\x00\x00device_traces]su."
LAUGHS = b"K\x01\x85" + b"".join(b"q%c(h%ch%ct" % (n, n, n) for n in range(60))  # each twice the one before
BOMBS = {
    "a text of 4 GB": BEGIN + b"X\xff\xff\xff\xffabc.",
    "a frame without end": BEGIN + b"\x95" + b"\xff" * 8 + WHOLE[11:600],
    "a number that is cut off": BEGIN + b"\x8a\xff\x01.",
    "deep lists": BEGIN + b"]" * 200_000 + b"a" * 199_999 + b".",
    "deep tuples": BEGIN + b")" + b"\x85" * 200_000 + b".",
    "a key that takes forever to hash": BEGIN + b"}" + LAUGHS + b"K\x01s.",
    "a file name that does": BEGIN + b"}(\x8c\x08filename" + LAUGHS + b"\x8c\x04lineK\x01u.",
    "the memo's last number": BEGIN + b"Nr\xff\xff\xff\xffj\xfe\xff\xff\xff.",
    "a list in itself": BEGIN + b"]\x94h\x00a.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_few_bytes_that_claim_to_be_much_are_refused(tmp_path: Path, name: str):
    path = tmp_path / "x.pickle"
    path.write_bytes(BOMBS[name])
    with pytest.raises(InputError, match=r"damaged|no snapshot"):
        read(path)


def test_objects_that_a_small_pickle_repeats_without_end_are_refused(tmp_path: Path):
    """4,000 times 4,000 blocks, and 4,000 times one history, in a few kilobytes."""
    whole = snapshot(busy(4, 20))
    path = tmp_path / "x.pickle"
    segment = whole["segments"][0]  # type: ignore[index]
    blocks = segment["blocks"][:1] * 4000
    for part in (
        {"segments": [segment | {"blocks": blocks}] * 4000},
        {"device_traces": whole["device_traces"] * 4000},
    ):  # type: ignore[operator]
        path.write_bytes(pickle.dumps(whole | part, protocol=4))
        with pytest.raises(InputError, match="no snapshot"):
            read(path)


@settings(deadline=None, max_examples=20)
@given(st.data())
def test_entries_of_any_kind_are_read_as_python_reads_them(data: st.DataObject):
    """Numbers of all widths, stacks and pools that are there or not, in any order."""
    import tempfile

    numbers = st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300)
    stacks = st.sampled_from([frames(*(f"m.py:{n}:f" for n in range(size))) for size in (0, 1, 2, 30)])
    entry = st.fixed_dictionaries(
        {"action": st.sampled_from(ACTIONS), "addr": numbers, "size": numbers, "stream": numbers,
         "time_us": numbers},
        optional={"frames": stacks.map(list) | stacks, "user_metadata": st.sampled_from(["", "step 1"]),
                  "compile_context": st.sampled_from(["N/A", "0/0", "1/2"]),
                  "pool_id": st.tuples(st.integers(0, 3), st.just(1))},
    )  # fmt: skip
    trace = data.draw(st.lists(entry, max_size=40))
    expected = {"segments": [], "device_traces": [trace * data.draw(st.integers(1, 20))]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.pickle"
        path.write_bytes(
            pickle.dumps(expected | {"device_traces": [[{**e} for e in expected["device_traces"][0]]]})
        )
        same(read(path), expected)


def test_what_is_no_snapshot_is_said_so(tmp_path: Path):
    path = tmp_path / "x.pickle"
    for content in ({"weights": [1.0]}, [1, 2], "text", {"segments": [{"address": "here"}]}):
        path.write_bytes(pickle.dumps(content))
        with pytest.raises(InputError, match="no snapshot"):
            read(path)


def test_a_file_that_unpacks_without_end_is_refused(tmp_path: Path):
    path = tmp_path / "x.pickle.gz"
    path.write_bytes(gzip.compress(gzip.compress(b"\x80" + bytes(40 << 20), 9), 9))
    with gzip.open(path) as inner:
        path.write_bytes(inner.read())
    with pytest.raises(InputError, match="unpacks to more than"):
        read(path)
