"""Ranks of a host write one after the other, but wait for nobody for long."""

from __future__ import annotations

from pathlib import Path

from kinetoscope.capture.recorder.context import turn


def test_as_many_write_at_once_as_may_and_the_next_goes_ahead_when_its_patience_ends(tmp_path: Path) -> None:
    with turn(tmp_path, 2) as first, turn(tmp_path, 2) as second:
        assert (first, second) == (True, True)
        with turn(tmp_path, 2, patience_s=0.0) as third:
            assert not third
    with turn(tmp_path, 2, patience_s=0.0) as later:
        assert later


def test_where_no_file_can_be_made_nobody_waits(tmp_path: Path) -> None:
    with turn(tmp_path / "gone", 1) as own:
        assert not own
