import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.views import overview
from report_sample import device, report

TIME = st.integers(min_value=0, max_value=10**9)


@given(compute=TIME, exposed=TIME, copies=TIME, idle=TIME, outside=TIME)
def test_the_segments_of_a_bar_add_up(compute, exposed, copies, idle, outside):
    busy = compute + exposed + copies
    inside = max(busy - outside, 0)
    window = inside + idle
    row = device(
        window_us=window,
        busy_us=busy,
        busy_fraction=inside / window if window else 0.0,
        compute_us=compute,
        exposed_communication_us=exposed,
    )
    (bar,) = overview.device_bars(report(devices=[row]))
    assert sum(segment.share for segment in bar.segments) == pytest.approx(1)
    assert all(0 <= segment.share <= 1 + 1e-9 for segment in bar.segments)
    assert bar.busy == pytest.approx(1 - bar.segments[-1].share)


def test_copies_are_what_neither_compute_nor_communication_covers():
    (bar,) = overview.device_bars(report())
    assert {segment.use: pytest.approx(segment.share * 30_000) for segment in bar.segments} == {
        "compute": 9_000,
        "communication": 2_000,
        "copy": 1_000,
        "idle": 18_000,
    }


def test_a_step_of_a_rank_with_two_devices_is_busy_for_the_time_of_both():
    two = report(devices=[device(), device(device=1)])
    assert [bar.busy for bar in overview.step_bars(report())] == [0.4] * 3
    assert [bar.busy for bar in overview.step_bars(two)] == [0.2] * 3
