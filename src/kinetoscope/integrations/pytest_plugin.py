"""Limits on what a test's code does on the device and in the compiler: a marker and a fixture of pytest.

    @pytest.mark.kinetoscope(max_graph_breaks=0, max_syncs=0, max_peak_memory="2GB")
    def test_step(): …

    def test_warm_step(kinetoscope):
        step()  # compiles
        with kinetoscope(max_launches=40, max_recompilations=0) as profile:
            step()

pytest loads this wherever kinetoscope is installed: it imports nothing until a test uses it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kinetoscope import profile

MARKER = "kinetoscope"
MARKER_HELP = (
    "kinetoscope(max_launches=N, max_graph_breaks=N, max_syncs=N, max_recompilations=N, "
    "no_pageable_copies=True, max_peak_memory='2GB', max_device_time='3 ms', …): "
    "fail the test if its code does more"
)

Limited = Callable[..., "AbstractContextManager[profile]"]


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", MARKER_HELP)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Record the tests that are marked, and fail those that exceed their limits."""
    limits: dict[str, object] = {}
    for mark in reversed(list(item.iter_markers(MARKER))):  # the closest wins
        limits |= mark.kwargs
    if not limits:
        return (yield)
    factory: pytest.TempPathFactory = getattr(item.config, "_tmp_path_factory")  # noqa: B009 (it has no other)
    with _limited(factory.mktemp("kinetoscope") / "recording", limits):
        return (yield)


@pytest.fixture
def kinetoscope(tmp_path_factory: pytest.TempPathFactory) -> Limited:
    """``with kinetoscope(max_launches=40) as profile: …`` applies the limits to the block; ``profile.run`` is
    its recording then."""

    def limited(**limits: object) -> AbstractContextManager[profile]:
        return _limited(tmp_path_factory.mktemp("kinetoscope") / "recording", limits)

    return limited


@contextmanager
def _limited(folder: Path, limits: dict[str, object]) -> Generator[profile]:
    """Record the block whole, with stacks so that lines are known, and fail the test that exceeds a limit."""
    from kinetoscope import profile

    memory = "max_peak_memory" in limits
    log = logging.getLogger("torch.__trace")  # it belongs to the recording: a test that fails would show it
    propagates, log.propagate = log.propagate, False
    of_pytest = [handler for handler in log.handlers if type(handler).__module__ == "_pytest.logging"]
    for handler in of_pytest:
        log.removeHandler(handler)
    try:
        with profile(
            out=folder, name="test", whole=True, one_pass=True, stacks=True, memory=memory
        ) as recorded:
            yield recorded
    finally:
        log.propagate = propagates
        for handler in of_pytest:
            log.addHandler(handler)
    from kinetoscope.comparison.limits import broken
    from kinetoscope.errors import KinetoscopeError

    try:
        lines = [
            f"{one.limit}: {one.words}" + "".join(f"\n    {why}" for why in one.why)
            for one in broken(recorded.run, limits)
        ]
        failed = "\n".join(lines) + f"\nrecording: {folder}" if lines else ""
    except KinetoscopeError as error:
        failed = str(error)
    if failed:
        pytest.fail(f"kinetoscope: {failed}", pytrace=False)
