"""Which ranks of a launched program are recorded."""

from __future__ import annotations

import pytest

from kinetoscope.capture.process.ranks import (
    is_recorded,
    job,
    leader,
    listed,
    on_several_hosts,
    recorded_count,
)
from kinetoscope.cli.run import add_arguments

# Rank and its place on its host: two hosts of four.
PLACES = [(rank, {"LOCAL_RANK": str(rank % 4), "LOCAL_WORLD_SIZE": "4"}) for rank in range(8)]


@pytest.mark.parametrize(
    ("which", "ranks"),
    [("all", [0, 1, 2, 3, 4, 5, 6, 7]), ("first", [0]), ("hosts", [0, 4]), ("3,5-6", [3, 5, 6]), ("9", [])],
)
def test_an_option_says_which_ranks_are_recorded(which: str, ranks: list[int]) -> None:
    assert [rank for rank, variables in PLACES if is_recorded(which, rank, variables)] == ranks
    assert recorded_count(which, 8, PLACES[0][1]) == len(ranks)
    if ranks:
        assert leader(which) == ranks[0]


@pytest.mark.parametrize(
    ("words", "several"),
    [
        ("torchrun --nnodes 2 train.py", True),
        ("torchrun --nnodes=1:4 train.py", True),
        ("accelerate launch --num_machines 2 train.py", True),
        ("torchrun --nnodes 1 --nproc-per-node 8 train.py --nnodes 2", False),
        ("torchrun --nproc-per-node 8 train.py", False),
    ],
)
def test_a_launcher_that_is_one_of_several(words: str, several: bool) -> None:
    assert on_several_hosts(words.split(), {}) == several
    assert on_several_hosts(words.split(), {"PET_NNODES": "2"})


@pytest.mark.parametrize(
    ("words", "variables", "name"),
    [
        ("torchrun --nnodes 2 --rdzv-id=run7 train.py --rdzv-id 8", {"SLURM_JOB_ID": "9"}, "run7"),
        ("torchrun --nnodes 2 --rdzv_id none train.py", {"SLURM_JOB_ID": "9"}, "9"),
        ("torchrun --nnodes 2 train.py", {"PET_RDZV_ID": "none"}, ""),
    ],
)
def test_what_all_hosts_call_a_job(words: str, variables: dict[str, str], name: str) -> None:
    assert job(words.split(), variables) == name


def test_hosts_without_a_place_on_them_is_the_first_rank() -> None:
    assert [rank for rank in range(4) if is_recorded("hosts", rank, {})] == [0]


@pytest.mark.parametrize("text", ["", "x", "3-", "5-3", "1,,2", "-1"])
def test_ranks_that_are_no_list_of_numbers_are_refused(text: str) -> None:
    import argparse

    with pytest.raises(ValueError):
        listed(text)
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    with pytest.raises((argparse.ArgumentError, SystemExit)):
        parser.parse_args([f"--ranks={text}"])
