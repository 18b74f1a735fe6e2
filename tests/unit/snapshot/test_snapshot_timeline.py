"""Memory timelines as torch's profiler exports them, and their peak."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kinetoscope.cli import main
from kinetoscope.errors import InputError
from kinetoscope.snapshot.recognise import is_timeline
from kinetoscope.snapshot.timeline import read

CREATE, DESTROY, VERSION, BEFORE = 2, 4, 3, 1
PARAMETER, TEMPORARY, ACTIVATION, DETAIL, NONE = 0, 3, 4, 6, 7
# What torch would write of a program: time (ns), action, bytes, category.
CHANGES = [
    (-1, BEFORE, 100, PARAMETER),
    (5_000, CREATE, 30, NONE),
    (7_000, CREATE, 40, TEMPORARY),
    (7_100, VERSION, -40, TEMPORARY),
    (7_100, VERSION, 40, ACTIVATION),
    (9_000, CREATE, 8, DETAIL),
    (9_500, DESTROY, -30, NONE),
    (11_000, DESTROY, -40, ACTIVATION),
]


def summed() -> list[object]:
    """As ``_coalesce_timeline`` has it: moments in µs, and after each a 0 and every category's bytes."""
    times, sizes = list[int](), list[list[int]]()
    for time, _, size, category in CHANGES:
        time = 5 if time < 0 else time // 1000
        if not times or time != times[-1]:
            times.append(time)
            sizes.append([*sizes[-1]] if sizes else [0] * 9)
        sizes[-1][1 + category] += size
    return [times, sizes]


def test_both_kinds_have_the_same_bytes_at_the_same_times(tmp_path: Path):
    (tmp_path / "a.json").write_text(json.dumps(summed()))
    (tmp_path / "b.raw.json.gz").write_bytes(gzip.compress(json.dumps(CHANGES).encode()))
    assert is_timeline(tmp_path / "a.json")
    assert is_timeline(tmp_path / "b.raw.json.gz")
    columns = ["time_us", "parameter", "temporary", "activation", "unknown"]
    assert read(tmp_path / "a.json").table.select(columns).rows() == [
        (5.0, 100, 0, 0, 30), (7.0, 100, 0, 40, 30), (9.0, 100, 8, 40, 0), (11.0, 100, 8, 0, 0),
    ]  # fmt: skip
    assert read(tmp_path / "b.raw.json.gz").table.select(columns).rows() == [
        (5.0, 100, 0, 0, 30), (7.0, 100, 40, 0, 30), (7.1, 100, 0, 40, 30), (9.0, 100, 8, 40, 30),
        (9.5, 100, 8, 40, 0), (11.0, 100, 8, 0, 0),
    ]  # fmt: skip


def test_the_peak_of_a_timeline_is_split_by_its_categories(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "b.raw.json").write_text(json.dumps(CHANGES))
    assert main(["memory", str(tmp_path / "b.raw.json"), "--json"]) == 0
    (peak,) = json.loads(capsys.readouterr().out)["peaks"]
    assert {part["part"]: part["bytes"] for part in peak["parts"]} == {
        "parameter": 100, "temporary": 8, "activation": 40, "unknown": 30,
    }  # fmt: skip
    assert peak["requested_bytes"] == peak["reserved_bytes"] == 178
    assert (peak["peak_us"], peak["history_us"]) == (4.0, 6.0)
    assert main(["memory", str(tmp_path / "b.raw.json")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "178 B allocated at the peak of the memory timeline" in shown
    assert "says neither whose its memory was" in shown


@pytest.mark.parametrize(
    "content", ["[[1, 2], [3]]", "[[", '[["a"]]', "[[1],[[0]]]", "[[], []]", "[[1,2,3,4e99]]"]
)
def test_other_lists_are_an_input_error(tmp_path: Path, content: str):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(InputError, match="memory timeline"):
        read(tmp_path / "x.json")
