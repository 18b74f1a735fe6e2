"""The types of what the API gives, to annotate with: frozen structs whose fields are those of the JSON."""

from kinetoscope.report import document
from kinetoscope.report.document import *  # noqa: F403
from kinetoscope.report.document.difference import Difference, GateRow
from kinetoscope.report.document.history import History, HistoryRow

__all__ = ["Difference", "GateRow", "History", "HistoryRow"]
__all__ += document.__all__
