"""What SQL found: what ``kinetoscope query`` shows."""

from __future__ import annotations

import msgspec
from rich.console import Console
from rich.text import Text

from kinetoscope.report.document import Answer
from kinetoscope.report.pages.table import Name, columns, heads
from kinetoscope.report.words import names

LONGEST = 72  # characters of one cell


def render_json(answer: Answer) -> str:
    """One list of objects."""
    return msgspec.json.encode([dict(zip(answer.columns, row, strict=True)) for row in answer.rows]).decode()


def print_answer(answer: Answer, console: Console) -> None:
    """The rows under the columns' names; numbers align to the right, missing values show as ``–``."""
    table = columns(*("right" if number else "left*" for number in answer.numeric))
    heads(table, *(names.shorten(name, LONGEST) for name in answer.columns))
    for row in answer.rows:
        table.add_row(
            *(
                Text(_cell(value)) if number else Name(_cell(value))
                for value, number in zip(row, answer.numeric, strict=True)
            )
        )
    console.print(table)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.1f}"
    return names.shorten(str(value), LONGEST)
