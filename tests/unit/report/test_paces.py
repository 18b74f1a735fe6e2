"""Steps rank by rank, against a walk over the collectives; bounded for many ranks and many steps."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

from kinetoscope.analysis.ranks import step_times
from kinetoscope.analysis.ranks.comparison import RankComparison, compare
from kinetoscope.analysis.ranks.parts import RankPart, part, placed, renumbered
from kinetoscope.document.collect.ranks import compared
from kinetoscope.trace.read import read
from kinetoscope.views import ranks as rank_lines
from rank_sets import DATA, TENSORS, Fault, Job, recorded

JOB = Job("late", ranks=4, tensor=2, steps=5, fault=Fault(3, "kernel"))


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[RankPart]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    parts = []
    for rank, document in recorded(JOB):
        path = folder / f"rank{rank}.json"
        path.write_text(json.dumps(document))
        parts.append(part(read(path)))
    return parts


@pytest.fixture(scope="module")
def found(parts: list[RankPart]) -> RankComparison:
    return compare(parts)


def _walked(found: RankComparison) -> dict[tuple[int, str], tuple[float, float]]:
    """(whole, own) µs of each rank's steps."""
    waited: dict[tuple[int, str], int] = {}
    for rank, step, exposed in found.table.select("rank", "step", "exposed_waiting_ns").iter_rows():
        waited[rank, step] = waited.get((rank, step), 0) + exposed
    return {
        (one.facts.rank, name): (
            (end - start) / 1000,
            (end - start - waited.get((one.facts.rank, name), 0)) / 1000,
        )
        for one in found.parts
        for name, start, end in one.steps.iter_rows()
    }


def test_a_row_a_rank_and_a_column_a_step(found: RankComparison) -> None:
    table, walked = compared(found, every=True).paces, _walked(found)
    assert [row.ranks for row in table.rows] == ["0", "1", "2", "3"]
    for column, step in enumerate(table.steps):
        own = [walked[rank, step] for rank in range(4)]
        assert [row.took_us[column] for row in table.rows] == pytest.approx([took for took, _ in own])
        assert [row.own_us[column] for row in table.rows] == pytest.approx([one for _, one in own])
        assert table.took_us[column] == pytest.approx(median(took for took, _ in own))
        assert table.own_us[column] == pytest.approx(median(one for _, one in own))
        slow = table.rows[3].own_us[column]
        assert slow is not None
        assert slow > 1.1 * (table.own_us[column] or 0)
    costs = found.attributed.filter(found.attributed["culprit"] == 3)["waited_ns"].sum()
    assert sum(table.rows[3].blamed_us) == pytest.approx(costs / 1000)


def test_alike_ranks_are_one_row_and_the_worst_have_their_own(found: RankComparison) -> None:
    table = compared(found, every=False).paces
    walked = _walked(found)
    assert [(row.ranks, row.count) for row in table.rows] == [("3", 1), ("0-2", 3)]
    for column, step in enumerate(table.steps):
        own = {rank: walked[rank, step][1] for rank in range(3)}
        row = table.rows[1]
        assert row.own_us[column] == pytest.approx(median(own.values()))
        assert row.slowest_us[column] == pytest.approx(max(own.values()))
        assert own[row.slowest[column] or 0] == pytest.approx(max(own.values()))


def test_many_steps_are_few_columns(found: RankComparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_times, "COLUMNS", 2)
    table, walked = compared(found, every=True).paces, _walked(found)
    names = [f"ProfilerStep#{number}" for number in range(5)]
    assert table.steps == [f"{names[0]} to {names[2]}", f"{names[3]} to {names[4]}"]
    for row in table.rows:
        took = [walked[int(row.ranks), name][0] for name in names]
        assert row.took_us == pytest.approx([sum(took[:3]) / 3, sum(took[3:]) / 2])


def test_rows_do_not_grow_with_the_ranks(parts: list[RankPart]) -> None:
    many = compare([renumbered(parts[rank % 3], rank) for rank in range(60)])
    assert len(compared(many, every=False).paces.rows) <= 12 + 8 + 1


def test_groups_beyond_the_most_are_one() -> None:
    assert step_times.set_apart([[0, 1, 2], [3, 4], [5]], [4, 1], 2) == [(4,), (1,), [0, 2], [3], [5]]
    assert step_times.set_apart([[0, 1], [2], [3]], [], 1) == [[0, 1], [2, 3]]


def test_each_sort_of_collective_has_the_meeting_that_was_waited_in_most(found: RankComparison) -> None:
    document = compared(found, every=True)
    sorts = {(one.kind, one.bytes, len(one.ranks)) for one in document.meetings}
    assert document.longest == document.meetings[0]
    assert len(sorts) == len(document.meetings) > 1
    for one in document.meetings:
        assert min(one.arrived_us) == 0
        for arrived, left, waited in zip(one.arrived_us, one.left_us, one.waiting_us, strict=True):
            assert arrived + waited <= left + 1e-6


def test_ranks_by_host_and_by_their_place_in_groups(parts: list[RankPart]) -> None:
    """Rank 3, which is late, is in one place of each sort; the slowest place comes first."""
    hosts = [placed(one, f"node{one.facts.rank // 2}") for one in parts]
    paces = compared(compare(hosts), every=True).paces
    assert paces.places["host"][0].place == "node1"
    assert {sort: sorted(row.ranks for row in rows) for sort, rows in paces.places.items()} == {
        "host": ["0-1", "2-3"], TENSORS: ["0, 2", "1, 3"], DATA: ["0-1", "2-3"],
    }  # fmt: skip
    for rows in paces.places.values():
        assert "3" in rows[0].ranks
        assert rows[0].longer(paces.own_us) > 0.02
    shown = str(list(rank_lines.tables(compared(compare(hosts), every=True))))
    assert "Ranks by place" in shown
    assert "node1" in shown
