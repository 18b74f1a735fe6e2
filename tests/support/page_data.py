"""What a page is given to draw: its data block, read as its script reads it, by other means."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from typing import Any, NamedTuple


class PageData(NamedTuple):
    report: dict[str, Any]
    sentences: dict[str, Any]
    columns: dict[str, list[int]]


def page_data(page: str) -> PageData:
    (block,) = re.findall(r'<script id="data" type="application/octet-stream">([^<]*)</script>', page)
    whole = gzip.decompress(base64.b64decode(html.unescape(block)))
    at = 4 + int.from_bytes(whole[:4], "little")
    report, sentences = json.loads(whole[4:at])
    columns: dict[str, list[int]] = {}
    for column in ((report.get("page") or {}).get("timeline") or {}).get("columns", []):
        length, planes = column["length"], column["planes"]
        stored = [
            int.from_bytes(whole[at + row : at + length * planes : length], "little") for row in range(length)
        ]
        at += length * planes
        columns[column["name"]] = _summed(stored) if column["deltas"] else stored
    assert at == len(whole)
    return PageData(report, sentences, columns)


def words(page: str) -> str:
    """All that the page is given, as text: what a reader may find in it."""
    data = page_data(page)
    text = json.dumps([data.report, data.sentences], ensure_ascii=False)
    return " ".join(text.replace("\N{NO-BREAK SPACE}", " ").split())


def _summed(stored: list[int]) -> list[int]:
    total, values = 0, []
    for number in stored:
        total += -(number + 1) // 2 if number % 2 else number // 2
        values.append(total)
    return values
