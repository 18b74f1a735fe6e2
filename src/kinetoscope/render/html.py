"""The report as one HTML page that needs nothing else: no request to any host, no script but its own.

The document travels as data that nothing executes; the script that draws it is built from ``web/``.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from kinetoscope import document, numbers
from kinetoscope.document import RanksListing, Report
from kinetoscope.render import names
from kinetoscope.views import ranks as rank_lines
from kinetoscope.views.sentences import Sentences, sentences


class _Shown(NamedTuple):
    """What the script is given, as JSON."""

    report: Report
    sentences: Sentences


def render(report: Report, inputs: Sequence[str], *, served: bool = False) -> str:
    """The report of ``inputs`` (as they were typed: the next commands name them).

    Args:
        served: ``kinetoscope view`` serves it: the page may ask that server, and no other, for the trace.
    """
    return _page(report, sentences(report, inputs), served=served)


def render_ranks(listing: RanksListing) -> str:
    """The comparison of many ranks, of which nothing else was kept."""
    ranks = listing.ranks
    environment = document.Environment(device_names=list(listing.devices))
    report = Report(
        kinetoscope=listing.kinetoscope, environment=environment, sources=[], devices=[], categories=[],
        kernels=[], steps=[], ops=[], findings=[], health=document.Health(verdict="good", notes=[]), idle=[],
        ranks=ranks, unread=ranks.unread,
    )  # fmt: skip
    words = msgspec.structs.replace(
        sentences(report, [""]),
        title=rank_lines.title(listing),
        headline=numbers.together(rank_lines.verdict(ranks)),
        commands=[],
    )
    return _page(report, words)


def _page(report: Report, words: Sentences, *, served: bool = False) -> str:
    script, style = _text("page.js"), _text("page.css")
    return _template().render(
        title=names.plain(words.title[0]),
        headline=words.headline,
        verdict=words.verdict,
        data=Markup(base64.b64encode(packed(report, words)).decode()),
        style=Markup(style),
        style_hash=_integrity(style),
        connect="'self'" if served else "",
        script=Markup(script),
        script_hash=_integrity(script),
    )


def packed(report: Report, words: Sentences) -> bytes:
    """Gzip of the length of a JSON text (four bytes, the lowest first), the text, the timeline's columns."""
    data, page = [], report.page
    if page and page.timeline:
        columns = page.timeline.columns
        data = [column.data for column in columns]
        bare = [msgspec.structs.replace(column, data=b"") for column in columns]
        timeline = msgspec.structs.replace(page.timeline, columns=bare)
        report = msgspec.structs.replace(report, page=msgspec.structs.replace(page, timeline=timeline))
    text = _json(_Shown(report, words))
    return gzip.compress(len(text).to_bytes(4, "little") + text + b"".join(data), 6, mtime=0)


def _json(shown: _Shown) -> bytes:
    try:
        return msgspec.json.encode(shown)
    except UnicodeEncodeError:  # a path may hold bytes that are no text
        return json.dumps(msgspec.to_builtins(shown)).encode()


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("kinetoscope.render"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("page.html")


def _text(name: str) -> str:
    return (files("kinetoscope.render") / "templates" / name).read_text("utf-8")


def _integrity(text: str) -> str:
    """The hash by which the page's content security policy lets this script or style, and no other, work."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
