"""Limits on what a test's code does on the device and in the compiler: a marker and a fixture of pytest.

    @pytest.mark.kinetoscope(max_graph_breaks=0, max_syncs=0, max_peak_memory="2GB")
    def test_step(): …

    def test_warm_step(kinetoscope):
        step()  # compiles
        with kinetoscope(max_launches=40, max_recompilations=0) as profile:
            step()

    @pytest.mark.kinetoscope(against="perf")  # a folder of baselines, one a test,
    def test_step(): …                        # which `pytest --kinetoscope-update` writes

pytest loads this wherever kinetoscope is installed: it imports nothing until a test uses it.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kinetoscope import Run, profile

MARKER, OFF, UPDATE = "kinetoscope", "--no-kinetoscope", "--kinetoscope-update"
AGAINST = "against"  # a folder of baselines, among the limits
COUNTED, NOT_COUNTED = "kinetoscope", "kinetoscope: not counted"  # properties of a test's report
MARKER_HELP = (
    "kinetoscope(max_launches=N, max_graph_breaks=N, max_syncs=N, max_recompilations=N, "
    "no_pageable_copies=True, max_peak_memory='2GB', max_device_time='3 ms', …, against='perf'): "
    "fail the test if its code does more, or if what is counted exceeds its baseline in the folder `perf`"
)

Limited = Callable[..., "AbstractContextManager[profile]"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer the switch that turns all limits off, and the one that writes baselines."""
    group = parser.getgroup("kinetoscope")
    group.addoption(OFF, action="store_true", help="record no test, and let every limit of kinetoscope hold")
    group.addoption(
        UPDATE, action="store_true", help="write the baselines of tests that are marked `against`"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER_HELP)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Record the tests that are marked, and fail those that exceed their limits."""
    limits: dict[str, object] = {}
    for mark in reversed(list(item.iter_markers(MARKER))):  # the closest wins
        limits |= mark.kwargs
    if not limits or item.config.getoption(OFF):
        return (yield)
    factory: pytest.TempPathFactory = getattr(item.config, "_tmp_path_factory")  # noqa: B009 (it has no other)
    with _limited(item, factory.mktemp("kinetoscope") / "recording", limits, item.nodeid):
        return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List what was counted of each test, with its limits, and say which limits were not counted: they hold
    no more than they fail."""
    reports = [
        report
        for report in chain.from_iterable(terminalreporter.stats.values())
        if isinstance(report, pytest.TestReport) and report.when == "call"
    ]
    counted = [
        (report.nodeid, str(value))
        for report in reports
        for name, value in report.user_properties
        if name == COUNTED
    ]
    if counted:
        terminalreporter.section("kinetoscope: counted, of at most")
    width = max((len(test) for test, _ in counted), default=0)
    for test, amounts in sorted(counted):
        terminalreporter.write_line(f"{test:{width}}  {amounts}")
    said = Counter(
        str(value) for report in reports for name, value in report.user_properties if name == NOT_COUNTED
    )
    for limits, tests in said.items():
        of = "1 test" if tests == 1 else f"{tests} tests"
        terminalreporter.write_line(f"kinetoscope: not counted, since there is no GPU: {limits} (of {of})")


@pytest.fixture
def kinetoscope(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Limited:
    """``with kinetoscope(max_launches=40) as profile: …`` applies the limits to the block; ``profile.run`` is
    its recording then."""

    blocks = count(1)

    def limited(**limits: object) -> AbstractContextManager[profile]:
        limits = {} if request.config.getoption(OFF) else limits
        folder, name = tmp_path_factory.mktemp("kinetoscope"), f"{request.node.nodeid} {next(blocks)}"
        return _limited(request.node, folder / "recording", limits, name)

    return limited


@contextmanager
def _limited(item: pytest.Item, folder: Path, limits: dict[str, object], name: str) -> Generator[profile]:
    """Record of the block what its limits need, and fail the test that exceeds one, or its baseline."""
    from kinetoscope import profile
    from kinetoscope.comparison.limits import OF_DEVICES, OF_LINES, amounts, broken, checked_names, uncounted
    from kinetoscope.errors import KinetoscopeError

    against = limits.get(AGAINST)
    limits = {limit: most for limit, most in limits.items() if limit != AGAINST}
    try:
        names, wrong = {*checked_names(limits)}, ""
    except KinetoscopeError as error:
        names, wrong = set[str](), f"kinetoscope: {error}"
    if wrong:  # before the test runs
        pytest.fail(wrong, pytrace=False)
    if not _has_device():
        names -= OF_DEVICES
    log = logging.getLogger("torch.__trace")  # it belongs to the recording: a test that fails would show it
    propagates, log.propagate = log.propagate, False
    of_pytest = [handler for handler in log.handlers if type(handler).__module__ == "_pytest.logging"]
    for handler in of_pytest:
        log.removeHandler(handler)
    try:
        with profile(
            out=folder,
            name="test",
            whole=True,
            one_pass=True,
            lines=bool(names & OF_LINES) or against is not None,
            memory="peak_memory" in names,
        ) as recorded:
            yield recorded
    finally:
        log.propagate = propagates
        for handler in of_pytest:
            log.addHandler(handler)
    try:
        counted, left_out = amounts(recorded.run, limits), uncounted(recorded.run, limits)
        lines = [
            f"{one.limit}: {one.words}" + "".join(f"\n    {why}" for why in one.why)
            for one in broken(recorded.run, limits)
        ]
        if against is not None:
            lines += _exceeded(item, recorded.run, item.config.rootpath / str(against), name)
        failed = "\n".join(lines) + f"\nrecording: {folder}" if lines else ""
    except KinetoscopeError as error:
        counted, left_out, failed = [], [], str(error)
    if counted:
        item.user_properties.append((COUNTED, ", ".join(counted)))
    if left_out:
        item.user_properties.append((NOT_COUNTED, ", ".join(left_out)))
    if failed:
        pytest.fail(f"kinetoscope: {failed}", pytrace=False)


def _exceeded(item: pytest.Item, run: Run, folder: Path, name: str) -> list[str]:
    """How a test's counts exceed its baseline; with ``--kinetoscope-update`` that is written instead."""
    from kinetoscope.comparison import baseline
    from kinetoscope.comparison.limits import whole

    file, test = folder / (re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-") + ".json"), whole(run)
    if item.config.getoption(UPDATE):
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(baseline.render(baseline.of_counts(test)), encoding="utf-8")
        return []
    meant = f"if this is meant: pytest {UPDATE} '{item.nodeid}'"
    if not file.is_file():
        return [f"{folder.name}/{file.name} is no baseline yet; {meant}"]
    grown = baseline.grown_counts(test, baseline.read(file))
    lines = [one.words for one in grown]
    for place, one in enumerate(grown):
        source = f" ({one.source})" if one.source else ""
        lines[place] += f"\n    {one.culprit}{source}" if one.culprit else ""
    return [*lines, meant] if grown else []


def _has_device() -> bool:
    import torch

    return torch.cuda.is_available() or torch.xpu.is_available()
