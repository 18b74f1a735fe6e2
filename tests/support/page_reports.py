"""Reports with what a page shows in addition."""

from __future__ import annotations

from kinetoscope.document import Report
from kinetoscope.document.collect.page import with_page
from kinetoscope.document.collect.report import build
from kinetoscope.sources.run import LoadedRun


def page_report(run: LoadedRun) -> Report:
    return with_page(run, build(run))
