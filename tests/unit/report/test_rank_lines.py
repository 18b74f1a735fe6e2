"""What is said of many ranks in sentences and tables."""

from __future__ import annotations

import msgspec
import pytest

from kinetoscope.analysis.ranks.comparison import compare
from kinetoscope.document import IdealRow, Ranks
from kinetoscope.document.collect.ranks import compared
from kinetoscope.render.blocks import Table
from kinetoscope.views import ranks as rank_lines

NOTHING = compared(compare([]), every=True)
PIPELINE = IdealRow(
    recorded_us=2000.0, replayed_us=2000.0, error=0.0, ideal_us=1600.0, slowdown=1.25, without={},
    grain="passes", steps=4, by_stage={"0-1": 1.003, "2-3": 1.21},
    by_operation={"forward": 1.08, "backward": 1.15, "all-reduce": 1.0, "host": 1.01},
)  # fmt: skip


def ranks(**changes: object) -> Ranks:
    return msgspec.structs.replace(NOTHING, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"missing": "3", "expected": 8}, "Of 8 ranks, rank 3 is missing"),
        ({"missing": "0-2", "expected": 8}, "Of 8 ranks, ranks 0-2 are missing"),
        ({"damaged": "3"}, "The recording of rank 3 is damaged"),
        ({"incomparable": "1, 5"}, "No collective of ranks 1, 5 ends with another rank's"),
    ],
)
def test_missing_ranks_are_named(changes: dict[str, object], said: str) -> None:
    assert f"{said}: what was not recorded is not guessed." in rank_lines.lines(ranks(**changes))


def test_what_makes_a_pipeline_longer() -> None:
    found = ranks(ideal=PIPELINE)
    assert (
        "Stage 1 (rank 2-3) alone makes the pipeline 1.21 times as long; of operations, backward passes do "
        "most, 1.15 times." in rank_lines.lines(found)
    )
    blocks = list(rank_lines.tables(found))
    (at,) = [at for at, block in enumerate(blocks) if getattr(block, "title", "") == "Pipeline"]
    shown = blocks[at + 1]
    assert isinstance(shown, Table)
    assert shown.rows == [
        ("stage 0, rank 0-1", "1.003"),
        ("stage 1, rank 2-3", "1.210"),
        ("backward passes", "1.150"),
        ("forward passes", "1.080"),
        ("the host between passes", "1.010"),
        ("all-reduce", "1.000"),
    ]


def test_a_pipeline_that_nothing_makes_longer_and_one_of_which_it_is_not_known() -> None:
    alike = msgspec.structs.replace(PIPELINE, by_stage={"0": 1.01, "1": 0.99}, by_operation={"forward": 1.0})
    assert any("No stage" in line for line in rank_lines.lines(ranks(ideal=alike)))
    unknown = msgspec.structs.replace(PIPELINE, steps=None, by_stage={}, by_operation={}, why="it is a ring")
    assert "By stage and operation it is unknown: it is a ring." in rank_lines.lines(ranks(ideal=unknown))
    assert "Pipeline" not in str(list(rank_lines.tables(ranks(ideal=unknown))))


def test_where_nobody_stands_out_the_time_without_lateness_is_chance_too() -> None:
    even = msgspec.structs.replace(NOTHING.verdict, status="even")
    assert any("by chance either" in line for line in rank_lines.lines(ranks(verdict=even, ideal=PIPELINE)))
