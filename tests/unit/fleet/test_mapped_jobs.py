"""``kinetoscope map``: parts kept by many tasks, of which a report is made; jobs that do not mix; buckets."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from kinetoscope.analysis.ranks.parts import RankPart, part
from kinetoscope.cli import main
from kinetoscope.errors import InputError, MissingDependencyError
from kinetoscope.fleet import engine
from kinetoscope.fleet.gather import one_a_rank
from kinetoscope.fleet.store import Store, content, decode
from kinetoscope.fleet.worker import mapped
from kinetoscope.sources.paths import TraceFile, find
from kinetoscope.trace.read import read
from rank_sets import Fault, Job, recorded

SMALL = Job("small", 3, steps=3, fault=Fault(1, "host"))
DAY_NS = 86_400 * 10**9


def here(traces: Sequence[TraceFile]) -> Iterator[engine.Answer]:
    """An engine of this very process."""
    return ((trace, engine._answered(trace)) for trace in traces)


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "ENGINES", {"local": here})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("traces")
    for rank, trace in recorded(SMALL):
        (made / f"rank{rank}.json").write_text(json.dumps(trace))
    return made


@pytest.fixture(scope="module")
def parts(folder: Path) -> list[RankPart]:
    return [part(read(path)) for path in sorted(folder.iterdir())]


def of_job(one: RankPart, **facts: object) -> RankPart:
    return replace(one, facts=msgspec.structs.replace(one.facts, **facts))


def test_each_trace_has_a_line_and_none_is_mapped_twice(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(3):  # a task a rank
        assert main(["map", str(folder / f"rank{rank}.json"), "--parts", str(tmp_path / "parts")]) == 0
    first = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[2].split(",")[0] for line in first] == ["rank 0", "rank 1", "rank 2"]
    assert main(["map", str(folder), "--parts", str(tmp_path / "parts"), "--job", "today"]) == 0
    assert all("was mapped before" in line for line in capsys.readouterr().out.splitlines())
    assert main(["report", str(tmp_path / "parts"), "-o", str(tmp_path / "ranks.json")]) == 0
    verdict = json.loads((tmp_path / "ranks.json").read_text())["ranks"]["verdict"]
    assert (verdict["rank"], verdict["cause"]) == (1, "host")
    kept = [decode(content(url), url) for url in find([tmp_path / "parts"]).parts]
    assert {one.facts.job for one in kept} == {"today"}


def test_a_trace_that_cannot_be_read_has_a_line_too(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rank7.json").write_text('{"a": 1}')
    words = ["map", str(folder), str(tmp_path / "rank7.json"), "--parts", str(tmp_path / "parts")]
    assert main(words) == 3
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert "rank7.json: left out: " in lines[-1]


@pytest.mark.parametrize("facts", [{"began_ns": 2 * DAY_NS}, {"job": "other"}, {"world": 16}])
def test_parts_of_another_job_are_left_out(parts: list[RankPart], facts: dict[str, object]) -> None:
    today = [of_job(one, began_ns=DAY_NS, job="", world=3) for one in parts]
    other = [of_job(one, **{"began_ns": DAY_NS, "world": 3, **facts}) for one in parts[1:]]
    chosen, said = one_a_rank([*other, *today])
    assert [one.facts for one in chosen] == [one.facts for one in today]
    assert len(said) == 1
    named = " (other)" if "job" in facts else ""
    assert said[0].startswith(f"2 traces of other jobs{named} were left out")


def test_ranks_whose_clocks_differ_or_that_have_no_header_are_of_one_job(parts: list[RankPart]) -> None:
    apart = [of_job(one, began_ns=DAY_NS + rank * 60 * 10**9) for rank, one in enumerate(parts)]
    apart[1] = of_job(apart[1], world=None)
    apart[2] = of_job(apart[2], began_ns=0)
    assert len(one_a_rank(apart)[0]) == 3


def test_parts_are_kept_in_a_bucket(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fsspec = pytest.importorskip("fsspec")
    try:
        assert main(["map", str(folder), "--parts", "memory://kept/parts"]) == 0
        assert main(["map", str(folder), "--parts", "memory://kept/parts"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert ["was mapped before" in line for line in lines] == [False] * 3 + [True] * 3
        assert main(["report", "memory://kept/parts", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["ranks"]["verdict"]["rank"] == 1
    finally:
        fsspec.filesystem("memory").rm("/kept", recursive=True)


@pytest.mark.parametrize(
    ("url", "driver", "hint"),
    [
        ("s3://bucket/parts", "s3fs", "pip install s3fs"),
        ("https://host/parts", "aiohttp", "pip install 'kinetoscope[remote]'"),
        ("hdfs://host/parts", "pyarrow.fs", None),  # what is said names it
    ],
)
def test_a_place_whose_driver_is_missing_names_it(
    url: str, driver: str, hint: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec")
    scheme = url.partition(":")[0]
    monkeypatch.delitem(sys.modules, "fsspec.implementations.http", raising=False)
    monkeypatch.setitem(sys.modules, driver, None)
    for use in (Store, lambda url: find([url])):
        with pytest.raises(MissingDependencyError, match=f"{scheme}:// needs a library") as error:
            use(url)
        assert error.value.hint == hint


def test_a_bucket_that_is_not_there_or_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    with pytest.raises(InputError) as error:
        find(["memory://nowhere/traces"])
    assert error.value.where == "memory://nowhere/traces"

    def refused(*_: object, **__: object) -> None:
        raise RuntimeError("no route to host")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "get_file", refused)
    with pytest.raises(InputError, match="no route to host") as error:
        mapped("memory://bucket/rank0.json", 0)
    assert error.value.where == "memory://bucket/rank0.json"


def test_what_is_no_trace_in_a_bucket_is_named_by_its_place_there() -> None:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.pipe_file("/bucket/rank0.json", b"junk")
    try:
        with pytest.raises(InputError) as error:
            mapped("memory://bucket/rank0.json", 0)
        assert error.value.where == "memory://bucket/rank0.json"
    finally:
        memory.rm("/bucket", recursive=True)


@pytest.mark.parametrize("typed", ["s3:/bucket/parts", "s3:bucket/parts"])
def test_no_folder_is_made_of_a_bucket_that_was_mistyped(typed: str, folder: Path) -> None:
    with pytest.raises(InputError) as error:
        Store(typed)
    assert error.value.hint == "--parts s3://bucket/parts"
    assert not Path("s3:").exists()


def test_many_ranks_have_the_findings_of_the_comparison_then_of_one_that_nobody_waits_for(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = str(tmp_path / "parts")
    assert main(["map", str(folder), "--parts", parts]) == 0
    capsys.readouterr()
    assert main(["report", parts, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["findings_rank"] in (0, 2)
    first, *others = found["findings"]["findings"]
    assert (first["rule"], first["ranks"], first["of_ranks"]) == ("straggler", [1], True)
    assert first["saving_us"] == found["ranks"]["verdict"]["cost_us"]
    assert others
    assert "straggler" not in [one["rule"] for one in others]
    assert main(["findings", parts, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == found["findings"]["findings"]
    for words in (["report", parts], ["findings", parts]):
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert "Rank 1 keeps the others waiting" in shown
        assert f"of rank {found['findings_rank']}" in shown
