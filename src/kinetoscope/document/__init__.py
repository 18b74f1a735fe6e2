"""Everything that a view shows, as typed rows: the JSON contract. Times are microseconds of the trace."""

from kinetoscope.document.compilation import Compilation as Compilation
from kinetoscope.document.devices import *
from kinetoscope.document.findings import *
from kinetoscope.document.kernels import *
from kinetoscope.document.memory import *
from kinetoscope.document.ranks import *
from kinetoscope.document.replay import *
from kinetoscope.document.report import Report as Report
from kinetoscope.document.sources import *
from kinetoscope.document.steps import *
