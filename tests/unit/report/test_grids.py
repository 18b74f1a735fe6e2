"""Kernels by the size of their grids: launches of fewer blocks than the device has multiprocessors."""

from __future__ import annotations

import msgspec

from cases.recorded import recorded
from kinetoscope.document.collect.kernels import kernels
from kinetoscope.render import markdown
from kinetoscope.views import overview
from report_sample import kernel, report


def test_launches_with_fewer_blocks_than_multiprocessors_are_counted() -> None:
    run = recorded("small-grid", "before")
    assert run is not None
    processors = run.traces[0].devices[0].multiprocessors
    assert processors == 132
    events = run.traces[0].device_events.filter(kind="kernel")
    shapes = [msgspec.json.decode(str(grid)) for grid in events["grid"].drop_nulls()]
    expected = sum(x * y * z < processors for x, y, z in shapes)
    assert sum(row.launches_below_device or 0 for row in kernels(run)) == expected > 0


def test_the_report_shows_them_beside_the_launches() -> None:
    row = msgspec.structs.replace(kernel("k"), launches_below_device=7)
    shown = markdown.render(overview.blocks(report(kernels=[row]), ["t"], "file"))
    (line,) = [line for line in shown.splitlines() if line.startswith("| `k`")]
    assert line.endswith("| 7 |")
