"""The types of what the API gives, to annotate with: frozen structs whose fields are those of the JSON."""

from kinetoscope import document
from kinetoscope.comparison.gates import Judgement
from kinetoscope.comparison.history import History, HistoryRow
from kinetoscope.document import *  # noqa: F403
from kinetoscope.document.difference import Difference

__all__ = ["Difference", "History", "HistoryRow", "Judgement"]
__all__ += document.__all__
