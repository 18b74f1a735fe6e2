import json

import pytest
from msgspec.structs import replace

from kinetoscope.errors import InputError
from kinetoscope.recording import manifest
from kinetoscope.recording.manifest import Manifest, RankRecord
from kinetoscope.sources.numbering import distinct, last_written, latest_window
from kinetoscope.sources.run import load, spread

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1}


@pytest.fixture
def traces(trace_of):
    def make(*ranks):
        """One trace a rank; None for one that does not say."""
        return [
            trace_of(EVENT, rank=rank or 0, **({} if rank is None else {"distributedInfo": {"rank": rank}}))
            for rank in ranks
        ]

    return make


@pytest.mark.parametrize(
    ("said", "given"),
    [
        ((None,), (0,)),
        ((1, 0), (1, 0)),
        ((None, None, None), (0, 1, 2)),
        ((None, 0, None), (1, 0, 2)),
        ((5, None), (5, 0)),
    ],
)
def test_who_does_not_say_gets_what_is_free(traces, said, given):
    assert tuple(trace.rank for trace in distinct(traces(*said))) == given


def test_two_that_say_the_same_are_refused(traces):
    with pytest.raises(InputError, match="two traces are of rank 1") as refusal:
        distinct(traces(0, 1, 1))
    assert " and " in str(refusal.value)


def test_a_recording_says_its_ranks(traces):
    one, two = traces(None, None)
    with pytest.raises(InputError, match="rank 0"):
        distinct([one, two], [one, two])
    assert [trace.rank for trace in distinct([one, two], [two])] == [1, 0]


def test_names_of_files_say_the_ranks_of_those_that_do_not(traces):
    """The traces of a folder in which rank 2 is missing, and no trace says its rank."""
    found = traces(None, None, None)
    paths = ["a/rank1.json", "a/rank10.json", "a/rank3.json"]
    named = [
        replace(one, source=replace(one.source, path=path)) for one, path in zip(found, paths, strict=True)
    ]
    assert [trace.rank for trace in distinct(named)] == [1, 10, 3]
    # Two that say the same, or one that is taken: nothing is believed.
    twice = [*named[:2], replace(named[2], source=replace(named[2].source, path="b/rank1.json"))]
    assert [trace.rank for trace in distinct(twice)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("recorded", "window"),
    [
        ([(0, "a"), (1, "a"), (0, "b"), (1, "b")], "b"),
        ([(0, "a"), (1, "a"), (0, "b"), (1, "b"), (0, "c")], "b"),
        ([(0, "a"), (1, "a")], None),
        ([(0, "a"), (1, "b")], None),
        ([], None),
    ],
)
def test_the_last_window_that_most_ranks_have(recorded, window):
    assert latest_window(recorded) == window


@pytest.fixture
def nine(tmp_path, monkeypatch):
    """A folder of nine ranks, of which three may be read."""
    monkeypatch.setenv("KINETOSCOPE_RANKS", "3")
    for rank in range(9):
        content = {"traceEvents": [EVENT], "distributedInfo": {"rank": rank}}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(content))
    return tmp_path


def test_of_very_many_ranks_some_are_read_spread_over_all(nine):
    run = load(nine)
    assert [trace.rank for trace in run.traces] == [0, 3, 6]
    assert run.unread == ("6 more were not read: 3 are, spread over all; KINETOSCOPE_RANKS=N reads N",)
    assert len(load(*sorted(nine.iterdir())).traces) == 9  # those that are named


def test_a_file_that_is_no_trace_takes_no_ranks_place(nine):
    (nine / "rank3.json").write_text("{}")
    run = load(nine)
    assert [trace.rank for trace in run.traces] == [0, 1, 6]
    assert len(run.unread) == 2


def test_some_ranks_of_a_recording_stand_for_all(nine):
    ranks = tuple(RankRecord(rank=rank, trace=f"rank{rank}.json") for rank in range(9))
    manifest.write(nine, Manifest(ranks=ranks, exit="ok"))
    run = load(nine)
    assert [trace.rank for trace in run.traces] == [0, 3, 6]
    assert "6 more" in run.unread[0]


def test_a_few_ranks_are_all_read_in_their_order():
    assert spread(range(64)) == list(range(64))
    assert sorted(spread(range(1000))) == list(range(1000))


def test_a_copy_of_a_ranks_trace_is_left_out(tmp_path):
    for rank in (0, 1):
        document = {"distributedInfo": {"rank": rank}, "traceEvents": [EVENT, EVENT | {"ts": 5 + rank}]}
        for folder in ("a", "b") if rank else ("a",):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / f"rank{rank}.json").write_text(json.dumps(document))
    run = load(tmp_path)
    assert [trace.rank for trace in run.traces] == [0, 1]
    assert len(run.unread) == 1
    assert "is a copy of" in run.unread[0]


def test_a_bucket_is_refused_by_its_name():
    with pytest.raises(InputError, match="a bucket") as refusal:
        load("s3://bucket/run")
    assert refusal.value.where == "s3://bucket/run"


def written(worker: str, *times: int) -> list[str]:
    return [f"log/{worker}.{time}.pt.trace.json" for time in times]


BEHIND = ["log/b.json", *written("a_8", 1733779848522)]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        # one process with a schedule that repeats, in milliseconds (older releases) and nanoseconds
        (written("box_17", 1733769848514, 1733769849366), written("box_17", 1733769849366)),
        (written("box_17", 1733769848514071115, 1733769849366171800), written("box_17", 1733769849366171800)),
        # two ranks, each with two windows
        (
            [*written("a_1", 1733769848514, 1733769849514), *written("a_2", 1733769848520, 1733769849520)],
            [*written("a_1", 1733769849514), *written("a_2", 1733769849520)],
        ),
        # two ranks, one of which has lost its last window: which one is compared is decided by what they hold
        (
            [*written("a_1", 1733769848514, 1733769849514), *written("a_2", 1733769848520)],
            [*written("a_1", 1733769848514, 1733769849514), *written("a_2", 1733769848520)],
        ),
        # the same program run again, into the same folder
        (
            [*written("a_1", 1733769848514, 1733769849514), *written("a_7", 1733779848520, 1733779849520)],
            written("a_7", 1733779849520),
        ),
        # two ranks with one window each, next to an earlier run of two windows
        (
            [*written("a_1", 1733769848514, 1733769849514), *written("a_7", 1733779848520), *BEHIND],
            [*written("a_7", 1733779848520), *BEHIND],
        ),
        (["rank0.json", "rank1.json"], ["rank0.json", "rank1.json"]),
        (written("a_1", 1733769848514) + written("a_2", 1733769848514), None),
    ],
)
def test_of_what_a_process_wrote_the_last_window_is_a_rank(given, kept):
    """Seen in a public repository: 32 windows of one process were called 32 GPUs."""
    assert last_written(given) == (given if kept is None else kept)


def events(at_us: float, name: str = "aten::mm") -> list[dict[str, object]]:
    return [{**EVENT, "name": name, "ts": at_us + 10 * place, "dur": 5} for place in range(3)]


@pytest.mark.parametrize(
    ("files", "ranks", "left_out"),
    [
        # as a handler of one's own exports them: export_chrome_trace(f"trace_{step}.json")
        ({"trace_4.json": events(1000), "trace_8.json": events(9000)}, 1, 1),
        ({"trace_4.json": events(1000), "trace_8.json": events(1005)}, 2, 0),
        ({"rank0.json": events(1000), "rank1.json": events(9000)}, 2, 0),
        # clocks of hosts may differ: who communicates is a rank
        ({"a.json": events(1000, "c10d::allreduce_"), "b.json": events(9000)}, 2, 0),
        ({"box_7.1733769848514": events(1), "box_7.1733769849514": events(2)}, 1, 1),
    ],
)
def test_traces_of_other_times_are_no_ranks(tmp_path, files, ranks, left_out):
    for name, own in files.items():
        suffix = "" if name.endswith(".json") else ".pt.trace.json"
        (tmp_path / f"{name}{suffix}").write_text(json.dumps({"traceEvents": own}))
    run = load(tmp_path)
    assert len(run.traces) == ranks
    assert (
        len([one for one in run.unread if one.startswith(f"{left_out} trace of earlier times")]) == left_out
    )
    assert all(one.endswith(f"kinetoscope history {tmp_path} compares them") for one in run.unread)
