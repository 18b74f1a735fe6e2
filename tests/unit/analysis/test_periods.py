"""Steps by the device's clock: they tile the window whoever is ahead."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.analysis.time.window import periods
from traces import Event, call, host, kernel, step, trace


def run(host_us: list[float], device_us: list[float], launches: int, *, synced: bool) -> list[Event]:
    """Steps in which the host takes so long and the device so long; each work starts when launched and when
    the one before has ended."""
    events: list[Event] = []
    now, free, correlation = 100.0, 0.0, 0
    for number, (host_time, device_time) in enumerate(zip(host_us, device_us, strict=True)):
        begin = now
        for _ in range(launches):
            now += host_time / launches
            correlation += 1
            events.append(call("cudaLaunchKernel", now - 1, 1, correlation))
            free = max(free, now + 5)
            events.append(kernel("k", free, device_time / launches, correlation))
            free += device_time / launches
        if synced and number == len(host_us) - 1:
            events.append(call("cudaDeviceSynchronize", now, max(1.0, free - now), 0))
            now = max(now + 1, free)
        events.append(step(number, begin, now - begin))
    return events


def lengths(events: list[Event]) -> list[float]:
    table = periods(trace(*events))
    assert table["start_ns"].to_list()[1:] == table["end_ns"].to_list()[:-1]
    return [ns / 1000 for ns in table["end_ns"] - table["start_ns"]]


def test_a_device_that_lags_has_steps_of_its_own_length() -> None:
    # The host is through after 4 x 20 µs and then waits; every step takes the device 100 µs.
    found = lengths(run([20.0] * 4, [100.0] * 4, 4, synced=True))
    assert found[:-1] == [100.0] * 3
    assert abs(found[-1] - 100.0) < 3
    marks = periods(trace(*run([20.0] * 4, [100.0] * 4, 4, synced=True)))
    assert (marks["host_end_ns"] - marks["host_start_ns"]).to_list()[0] == 20_000


def test_a_device_that_waits_has_steps_as_long_as_the_hosts() -> None:
    for synced in (False, True):
        found = lengths(run([100.0] * 4, [10.0] * 4, 4, synced=synced))
        assert all(abs(length - 100.0) <= 3 for length in found), found


def test_steps_that_do_not_follow_each_other_are_not_stretched() -> None:
    events = [
        *(step(0, 0, 10), call("cudaLaunchKernel", 1, 1, 1), kernel("k", 3, 4, 1)),
        *(step(1, 100, 10), call("cudaLaunchKernel", 101, 1, 2), kernel("k", 103, 4, 2)),
    ]
    table = periods(trace(*events))
    assert table["start_ns"].to_list() == [3_000, 103_000]
    assert table["end_ns"].to_list()[0] == 10_000


def test_the_next_steps_first_work_ends_the_last() -> None:
    events = [
        *(step(0, 0, 10), call("cudaLaunchKernel", 1, 1, 1), kernel("k", 3, 20, 1)),
        *(call("cudaLaunchKernel", 11, 1, 2), kernel("k", 25, 4, 2)),
    ]
    assert periods(trace(*events))["end_ns"].to_list() == [25_000]


def test_without_a_device_both_clocks_are_the_hosts() -> None:
    table = periods(trace(step(0, 0, 10), step(1, 10, 20), host("aten::mm", 1, 2)))
    assert (table["end_ns"] - table["start_ns"]).to_list() == [10_000, 20_000]
    assert periods(trace(host("aten::mm", 1, 2))).is_empty()


def test_a_step_without_work_begins_as_late_as_the_one_before_it() -> None:
    events = [
        *(step(0, 0, 10), call("cudaLaunchKernel", 1, 1, 1), kernel("k", 3, 4, 1)),
        *(step(1, 10, 10), step(2, 20, 10), call("cudaLaunchKernel", 21, 1, 2), kernel("k", 24, 2, 2)),
    ]
    assert periods(trace(*events))["start_ns"].to_list() == [3_000, 13_000, 24_000]


@settings(deadline=None, max_examples=30)  # it writes files
@given(
    st.lists(st.tuples(st.integers(8, 300), st.integers(4, 300)), min_size=1, max_size=6),
    st.integers(1, 5),
    st.booleans(),
)
def test_steps_tile_whatever_the_pace(paces: list[tuple[int, int]], launches: int, synced: bool) -> None:
    host_us, device_us = [float(h) for h, _ in paces], [float(d) for _, d in paces]
    assert all(length >= 0 for length in lengths(run(host_us, device_us, launches, synced=synced)))
