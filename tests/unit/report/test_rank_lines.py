"""What is said of many ranks in sentences and tables."""

from __future__ import annotations

import msgspec
import pytest

from kinetoscope.analysis.ranks.comparison import compare
from kinetoscope.document import IdealRow, Ranks, RanksListing
from kinetoscope.document.collect.ranks import compared
from kinetoscope.render.blocks import Commands, Table
from kinetoscope.render.terminal import text
from kinetoscope.views import headline, overview
from kinetoscope.views import ranks as rank_lines
from report_sample import report

NOTHING = compared(compare([]), every=True)
PIPELINE = IdealRow(
    recorded_us=2000.0, replayed_us=2000.0, error=0.0, slowdown=1.25, without={},
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
        "Stage 1 (ranks 2-3) alone makes the pipeline 1.21 times as long; of operations, backward passes do "
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


def straggler(**changes: object) -> Ranks:
    facts = {"status": "straggler", "rank": 3, "ranks": [3], "listed": "3", "scope": "rank",
             "cause": "clocks", "hosts": ["node2"], "devices": [1], "stage": 1,
             "cost_us": 900.0, "cost_share": 0.18, "steps": 4,
             "path": "runs/rank3.json", "peer_path": "runs/rank2.json", **changes}  # fmt: skip
    return ranks(verdict=msgspec.structs.replace(NOTHING.verdict, **facts), ideal=PIPELINE)


def test_the_first_sentence_names_host_device_and_rank_and_the_cost_is_said_once() -> None:
    first, *others = rank_lines.lines(straggler())
    assert first.startswith("Rank 3 (GPU 1 of host node2) makes each step 900 µs longer, 18.0 % of it: ")
    assert any("whose own time is off by 0 %" in line for line in others)
    assert not any("If no rank were ever late" in line for line in others)
    assert any("20.0 % less" in line for line in rank_lines.lines(straggler(cost_share=0.1)))


def test_a_report_of_few_ranks_says_who_is_slow_before_all_else_or_that_nobody_is() -> None:
    waited = [msgspec.structs.replace(report().idle[0], busy_inside_collectives_us=4_000.0)]
    slow, even = (
        headline.headline(report(idle=waited, ranks=one))
        for one in (
            straggler(),
            ranks(verdict=msgspec.structs.replace(NOTHING.verdict, status="even", why="none stands out")),
        )
    )
    assert slow.startswith("Rank 3 (GPU 1 of host node2) makes each step 900 µs longer")
    assert slow.count("Rank 3") == 1
    assert even.endswith("waiting for another rank. Ranks wait for each other, but none stands out.")


def test_what_to_type_next_begins_with_a_slow_rank_and_one_like_it() -> None:
    first, second, *_ = overview.next_commands(report(ranks=straggler()), ["runs"])
    assert first[0] == "kinetoscope diff runs/rank2.json runs/rank3.json"
    assert second[0] == "kinetoscope findings runs"


def test_what_a_stage_costs_whose_rank_is_named_is_not_said_a_second_time() -> None:
    def said(stage: int | None) -> bool:
        return any("alone makes the pipeline" in one for one in rank_lines.lines(straggler(stage=stage)))

    assert (said(1), said(None)) == (False, True)


def test_a_time_without_stragglers_is_on_the_scale_of_the_recorded_time_or_unknown() -> None:
    off = msgspec.structs.replace(PIPELINE, replayed_us=2060.0, error=0.03, slowdown=2060.0 / 1600.0)
    assert any(
        "2.00 ms between the first pass and the last would be 1.55 ms, 22.3 % less" in line
        for line in rank_lines.lines(ranks(ideal=off))
    )
    wrong = msgspec.structs.replace(PIPELINE, replayed_us=2432.0, error=0.216, slowdown=1.27)
    said = " ".join(rank_lines.lines(ranks(ideal=wrong)))
    assert "not known well" in said
    assert "off by +21.6 %" in said
    assert "less" not in said


def test_what_to_do_next_names_both_traces_the_counters_and_the_host() -> None:
    (items,) = [block.items for block in rank_lines.advice(straggler()) if isinstance(block, Commands)]
    words = [command for command, _ in items]
    assert words[:3] == [
        "kinetoscope diff runs/rank2.json runs/rank3.json",
        "kinetoscope report runs/rank3.json",
        "kinetoscope report runs/rank2.json",
    ]
    assert any(word.startswith("dcgmi dmon -i 1 ") for word in words)
    assert words[-1].startswith("scontrol update nodename=node2 ")
    assert not list(rank_lines.advice(ranks()))


def test_what_was_left_out_is_bounded_and_comes_first() -> None:
    several = [f"trace {at} was left out" for at in range(40)]
    document = RanksListing(kinetoscope="0", events=1, bytes=1, devices={}, ranks=ranks(unread=several))
    said = text(rank_lines.blocks(document), 100)
    assert said.index("trace 0 was") < said.index("37 more were left out") < said.index("Who is waited for")
    assert "trace 4 " not in said
