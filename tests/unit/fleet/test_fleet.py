"""Many ranks: found wherever they stand, mapped by workers, kept as parts, compared without their traces."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from kinetoscope.analysis.ranks.parts import RankPart, part
from kinetoscope.cli import main
from kinetoscope.document import RanksListing
from kinetoscope.document.collect.ranks import ranges
from kinetoscope.errors import InputError
from kinetoscope.fleet import engine, store
from kinetoscope.fleet.gather import gather, one_a_rank
from kinetoscope.fleet.store import Spool, Store, decode, encode, packed
from kinetoscope.fleet.worker import mapped
from kinetoscope.sources.numbering import natural, rank_in
from kinetoscope.sources.paths import TraceFile, find
from kinetoscope.trace.cache import WORTH_KEEPING
from kinetoscope.trace.read import read
from page_data import page_data
from rank_sets import Fault, Job, Loss, recorded

SMALL = Job("small", 3, steps=3, fault=Fault(1, "host"))


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each host, with traces of three ranks."""
    folder = tmp_path_factory.mktemp("run")
    for rank, trace in recorded(SMALL):
        path = folder / f"host{rank % 2}" / "traces" / f"rank{rank}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(trace))
    return folder


def here(traces: Sequence[TraceFile]) -> Iterator[engine.Answer]:
    """An engine of this very process."""
    for trace in traces:
        yield trace, mapped(trace.url, trace.rank)


def never(traces: Sequence[TraceFile]) -> Iterator[engine.Answer]:
    raise AssertionError(f"mapped again: {traces}")


def same(one: RankPart, other: RankPart) -> None:
    assert one.facts == other.facts
    for table in ("collectives", "kernels", "steps"):
        assert_frame_equal(getattr(one, table), getattr(other, table))


def test_folders_of_folders_in_the_order_of_their_ranks(traces: Path, tmp_path: Path) -> None:
    assert [one.rank for one in find([traces]).traces] == [0, 1, 2]
    assert [one.rank for one in find([f"{traces}/*/traces/rank[12].json"]).traces] == [1, 2]
    with pytest.raises(InputError, match="nothing fits"):
        find([tmp_path / "rank*.json"])


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.json.gz", 3),
        ("worker12_step_3.pt.trace.json", 12),
        ("x_rank-07.json", 7),
        ("franks2.json", None),
    ],
)
def test_the_rank_that_a_name_says(name: str, rank: int | None) -> None:
    assert rank_in(name) == rank


def test_ranks_are_sorted_and_written_as_people_do() -> None:
    assert sorted(["rank10", "rank2", "rank1"], key=natural) == ["rank1", "rank2", "rank10"]
    assert ranges([7, 0, 1, 2, 12, 11]) == "0-2, 7, 11-12"
    assert ranges([]) == ""


def test_a_part_is_the_same_from_disk(traces: Path) -> None:
    made = part(read(traces / "host0" / "traces" / "rank0.json"))
    data = encode(made)
    same(decode(data, "here"), made)
    assert len(data) < 64 << 10
    for broken in (b"", data[:-9], data.replace(b"facts", b"stcaf"), msgspec.msgpack.encode({"format": 9})):
        with pytest.raises(InputError):
            decode(broken, "here")


def test_parts_laid_by_on_disk_are_read_again_in_any_order(traces: Path) -> None:
    first, last, *_ = sorted(traces.rglob("rank*.json"))
    made = [part(read(path)) for path in (first, last)]
    spool = Spool()
    laid = [spool.laid_by(packed(encode(one), "here")) for one in made]
    assert [one.packed for one in laid] == [b"", b""]
    for at in (1, 0, 1):
        same(laid[at].unpacked(), made[at])


def test_a_part_for_which_the_disk_has_no_room_stays_in_memory(
    traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = packed(encode(part(read(traces / "host0" / "traces" / "rank0.json"))), "here")
    spool = Spool()
    with open("/dev/full", "r+b", buffering=0) as full:
        monkeypatch.setattr(spool, "_file", full)
        assert spool.laid_by(made) is made
    same(made.unpacked(), part(read(traces / "host0" / "traces" / "rank0.json")))


def test_a_part_of_changed_bytes_is_a_part_or_refused(traces: Path) -> None:
    data = encode(part(read(traces / "host0" / "traces" / "rank0.json")))
    for seed in range(60):
        chance = random.Random(seed)
        changed = bytearray(data)
        for _ in range(chance.choice([1, 20])):
            changed[chance.randrange(len(data))] ^= chance.randrange(1, 256)
        with contextlib.suppress(InputError):
            decode(bytes(changed), "here")


def test_a_part_that_unpacks_to_more_than_any_would_is_refused(
    traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encode(part(read(traces / "host0" / "traces" / "rank0.json")))
    monkeypatch.setattr(store, "LARGEST", 100)
    with pytest.raises(InputError, match="not a part"):
        decode(data, "here")


def test_work_that_was_interrupted_goes_on_where_it_stopped(traces: Path, tmp_path: Path) -> None:
    found, store = find([traces]), Store(tmp_path)

    def stopped(traces: Sequence[TraceFile]) -> Iterator[engine.Answer]:
        yield from here(traces[:2])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gather(found, store, stopped)
    again: list[TraceFile] = []

    def rest(traces: Sequence[TraceFile]) -> Iterator[engine.Answer]:
        again.extend(traces)
        return here(traces)

    parts, left_out = gather(found, store, rest)
    assert [one.rank for one in again] == [2]
    assert ([one.facts.rank for one in parts], left_out) == ([0, 1, 2], [])
    # With all parts there, nothing is mapped; nor are the traces needed.
    for one, kept in zip(parts, gather(find([tmp_path]), Store(tmp_path / "other"), never)[0], strict=True):
        same(one.unpacked(), kept.unpacked())


def test_a_trace_that_changed_is_mapped_again(traces: Path, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    shutil.copy(traces / "host0" / "traces" / "rank0.json", path)
    store = Store(tmp_path / "parts")
    gather(find([path]), store, here)
    assert store.recall(find([path]).traces[0]) is not None
    os.utime(path, ns=(1, 1))
    assert store.recall(find([path]).traces[0]) is None


def test_processes_map_as_this_one_does_and_a_dead_one_is_replaced(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process is killed under its first trace, as the system kills for memory."""
    monkeypatch.setenv("KINETOSCOPE_WORKERS", "2")
    monkeypatch.setattr(engine, "SMALL", 0)  # however small they are
    found = find([traces])
    killed: list[int] = []

    class KillsFirst(engine.WorkerProcess):
        def ask(self, question: object) -> object:
            if not killed:
                killed.append(self._process.pid)
                self._process.kill()
            return super().ask(question)

    monkeypatch.setattr(engine, "WorkerProcess", KillsFirst)
    parts, left_out = gather(found, Store(tmp_path / "a"), engine.local)
    assert killed
    assert left_out == []
    for one, other in zip(parts, gather(found, Store(tmp_path / "b"), here)[0], strict=True):
        same(one.unpacked(), other.unpacked())


def test_few_small_traces_are_mapped_without_another_process(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One byte more than is small, and processes are started."""
    found = find([traces])
    size = sum(Path(trace.url).stat().st_size for trace in found.traces)
    monkeypatch.setattr(engine, "SMALL", size)
    monkeypatch.setattr(engine, "WorkerProcess", None)
    parts, left_out = gather(found, Store(tmp_path / "a"), engine.local)
    assert [part.facts.rank for part in parts] == [0, 1, 2]
    assert left_out == []
    monkeypatch.setattr(engine, "SMALL", size - 1)
    with pytest.raises(TypeError, match="not callable"):
        gather(found, Store(tmp_path / "b"), engine.local)


@pytest.mark.parametrize("small", [0, 1 << 30])
def test_mapping_keeps_no_tables(small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SMALL", small)
    (tmp_path / "rank0.json").write_text(json.dumps(dict(recorded(replace(SMALL, steps=400)))[0]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KINETOSCOPE_CACHE")
    ((_, answer),) = engine.local(find([tmp_path]).traces)
    assert isinstance(answer, bytes)
    assert decode(answer, "").facts.events > WORTH_KEEPING
    assert not (tmp_path / "cache").exists()


def test_a_small_trace_that_nothing_can_map_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_text('{"traceEvents": []}')
    found = find([tmp_path]).traces

    def mapped(url: str, rank: int | None) -> bytes:
        if url == found[0].url:
            raise ZeroDivisionError("a bug")
        return b"a part"

    monkeypatch.setattr(engine, "mapped", mapped)
    (_, first), (_, second) = engine.local(found)
    assert isinstance(first, InputError)
    assert "ZeroDivisionError: a bug" in str(first)
    assert second == b"a part"


def test_a_file_that_is_no_trace_is_left_out_and_said(traces: Path, tmp_path: Path) -> None:
    shutil.copytree(traces, tmp_path / "run")
    (tmp_path / "run" / "host1" / "notes.json").write_text('{"a": 1}')

    def answered(traces: Sequence[TraceFile]) -> Iterator[engine.Answer]:
        return ((trace, engine._answered(trace)) for trace in traces)

    parts, left_out = gather(find([tmp_path / "run"]), Store(tmp_path / "parts"), answered)
    assert len(parts) == 3
    assert len(left_out) == 1
    assert "notes.json" in left_out[0]


def moved(one: RankPart, steps: int, by_ns: int) -> RankPart:
    """The part of a later window."""
    names = [f"ProfilerStep#{steps + at}" for at in range(len(one.steps))]
    facts = msgspec.structs.replace(one.facts, start_ns=one.facts.start_ns + by_ns)
    return msgspec.structs.replace(one, facts=facts, steps=one.steps.with_columns(pl.Series("name", names)))


def test_of_several_windows_the_last_that_most_ranks_share_is_chosen(traces: Path) -> None:
    first = [part(read(path)) for path in sorted(traces.rglob("*.json"))]
    second = [moved(one, 100, 10**9) for one in first]
    third = [moved(one, 200, 2 * 10**9) for one in first[:1]]
    chosen, said = one_a_rank([*third, *second, *first])
    assert [one.steps["name"][0] for one in chosen] == ["ProfilerStep#100"] * 3
    assert said == [
        "4 traces of other windows were left out: the one that begins with ProfilerStep#100 is compared"
    ]


def test_a_repeated_rank_counts_once_and_one_that_says_none_takes_what_is_free(traces: Path) -> None:
    first = [part(read(path)) for path in sorted(traces.rglob("*.json"))]
    nameless = msgspec.structs.replace(
        first[0], facts=msgspec.structs.replace(first[0].facts, rank=0, numbered=False)
    )
    chosen, said = one_a_rank([nameless, *first[1:], first[1]])
    assert [one.facts.rank for one in chosen] == [0, 1, 2]
    assert set(chosen[0].collectives["rank"]) == {0}
    assert len(said) == 1
    assert "left out" in said[0]


def test_traces_in_a_bucket_are_found(traces: Path, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for path in traces.rglob("*.json"):
        memory.pipe_file(f"/bucket/run/{path.name}", path.read_bytes())
    try:
        assert [one.rank for one in find(["memory://bucket/run"]).traces] == [0, 1, 2]
        assert [one.rank for one in find(["memory://bucket/*/rank[02].json"]).traces] == [0, 2]
        parts, left_out = gather(find(["memory://bucket/run"]), Store(tmp_path), here)
    finally:
        memory.rm("/bucket", recursive=True)
    assert ([one.facts.rank for one in parts], left_out) == ([0, 1, 2], [])
    assert parts[0].facts.path.startswith("memory://")


def test_reports_from_traces_and_from_their_parts_are_the_same(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same report from traces and from the parts that they left."""
    monkeypatch.setattr(engine, "ENGINES", {"local": here})
    parts, outputs = tmp_path / "parts", [tmp_path / "one.json", tmp_path / "other.json"]
    assert main(["report", str(traces), "--parts", str(parts), "-o", str(outputs[0])]) == 0
    assert main(["report", str(parts), "-o", str(outputs[1])]) == 0
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
    listing = msgspec.json.decode(outputs[0].read_bytes(), type=RanksListing)
    assert (listing.ranks.verdict.rank, listing.ranks.verdict.cause) == (1, "host")
    assert [row.rank for row in listing.ranks.ranks] == [0, 1, 2]


def test_many_are_compared_unasked_on_a_page_too(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinetoscope.sources.paths.FEW", 2)
    monkeypatch.setattr(engine, "ENGINES", {"local": here})
    assert main(["report", str(traces), "-o", str(tmp_path / "a.json")]) == 0
    assert msgspec.json.decode((tmp_path / "a.json").read_bytes())["schema"] == "kinetoscope.ranks/1"
    assert main(["report", str(traces), "-o", str(tmp_path / "a.html")]) == 0
    ranks = page_data((tmp_path / "a.html").read_text()).report["ranks"]
    assert ranks == msgspec.json.decode((tmp_path / "a.json").read_bytes())["ranks"]
    assert main(["report", str(traces), "-o", str(tmp_path / "a.sarif")]) == 2


@pytest.mark.parametrize("suffix", [".md", ".txt"])
def test_what_is_written_does_not_grow_with_the_ranks(traces: Path, tmp_path: Path, suffix: str) -> None:
    parts = [part(read(path)) for path in sorted(traces.rglob("*.json"))]
    from kinetoscope.analysis.ranks.comparison import compare
    from kinetoscope.analysis.ranks.parts import renumbered
    from kinetoscope.document.collect.ranks import listing
    from kinetoscope.render.formats import FORMATS
    from kinetoscope.views.ranks import view

    texts = []
    for count in (30, 60):
        many = [renumbered(parts[rank % 3], rank) for rank in range(count)]
        texts.append(FORMATS[suffix](view(listing(compare(many), every=False, hangs=(), unread=()), str)))
    assert len(texts[0].splitlines()) == len(texts[1].splitlines())
    assert "Rank" in texts[0]


def test_dumps_alone_say_who_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = [
        {"collective_seq_id": 4, "profiling_name": "nccl:all_reduce", "state": "started", "process_group":
        ["0", "world"]}
    ]  # fmt: skip
    for rank in (0, 1):
        dump = {"entries": entries[rank:], "pg_config": {"0": {"name": "0", "ranks": "[0, 1]"}}}
        (tmp_path / f"nccl_trace_rank_{rank}").write_text(json.dumps(dump))
    assert main(["report", str(tmp_path), "--engine", "local"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Group 0 world stands in its collective 4" in said
    assert "rank 1 has not issued it" in said


def test_ray_maps_as_this_process_does_though_a_worker_is_killed(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers; the one that is given rank 1 first is killed under it."""
    ray = pytest.importorskip("ray")
    pids, answered = tmp_path / "pids", engine._answered
    pids.mkdir()

    def killed_once(trace: TraceFile) -> bytes | InputError:  # inside, so that it goes to workers by value
        is_first = not any(pids.glob("*-1"))
        (pids / f"{os.getpid()}-{trace.rank}").touch()
        if trace.rank == 1 and is_first:
            os.kill(os.getpid(), signal.SIGKILL)
        return answered(trace)

    monkeypatch.setattr(engine, "_answered", killed_once)
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    try:
        parts, left_out = gather(find([traces]), Store(tmp_path / "a"), engine.on_ray)
    finally:
        ray.shutdown()
    assert left_out == []
    assert len(list(pids.glob("*-1"))) == 2
    for one, other in zip(parts, gather(find([traces]), Store(tmp_path / "b"), here)[0], strict=True):
        same(one.unpacked(), other.unpacked())


def test_missing_ranks_are_said(tmp_path: Path) -> None:
    from kinetoscope.analysis.ranks.comparison import compare
    from kinetoscope.document.collect.ranks import compared

    parts = []
    for rank, trace in recorded(replace(SMALL, loss=Loss(missing=(2,)))):
        path = tmp_path / f"rank{rank}.json"
        path.write_text(json.dumps(trace))
        parts.append(part(read(path)))
    document = compared(compare(parts), every=True)
    assert (document.count, document.expected, document.missing) == (2, 3, "2")


def test_pipes_and_links_around_are_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "again").symlink_to(tmp_path)
    (tmp_path / "rank0.json").write_text("{}")
    assert [Path(one.url).name for one in find([tmp_path]).traces] == ["rank0.json"]
