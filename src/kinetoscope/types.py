"""The types of what the API gives, to annotate with: frozen structs whose fields are those of the JSON."""

from kinetoscope.comparison.gates import Judgement as Judgement
from kinetoscope.comparison.history import History as History
from kinetoscope.comparison.history import HistoryRow as HistoryRow
from kinetoscope.document import *
from kinetoscope.document.difference import Difference as Difference
