"""A page that needs nothing else: no request to any host, no script but its own.

Its document travels as data that nothing executes; the script that draws it is built from ``web/``.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterable
from functools import cache
from html import escape
from importlib.resources import files

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

HEIGHT = 720  # pixels of a frame


def page(*, title: str, headline: str, verdict: str, data: bytes, served: bool = False) -> str:
    """The page. ``data``: what its script draws, as ``packed`` makes it. ``served``: ``kinetoscope view``
    serves it: the page may ask that server, and no other, for the trace."""
    script, style = _text("page.js"), _text("page.css")
    return _template("page.html").render(
        title=title,
        headline=headline,
        verdict=verdict,
        data=Markup(base64.b64encode(data).decode()),
        style=Markup(style),
        style_hash=integrity(style),
        connect="'self'" if served else "",
        script=Markup(script),
        script_hash=integrity(script),
    )


def packed(document: object, columns: Iterable[bytes] = ()) -> bytes:
    """Gzip of the length of a JSON text (four bytes, the lowest first), the text, then columns of numbers."""
    try:
        text = msgspec.json.encode(document)
    except UnicodeEncodeError:  # a path may hold bytes that are no text
        text = json.dumps(msgspec.to_builtins(document)).encode()
    return gzip.compress(len(text).to_bytes(4, "little") + text + b"".join(columns), 6, mtime=0)


def framed(page: str) -> str:
    """A page inside another one, such as a notebook's: in a frame without an origin, so that neither cookies
    nor the notebook are within its reach."""
    style = f"width: 100%; height: {HEIGHT}px; border: 1px solid #8884; border-radius: 6px"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(page)}"></iframe>'


@cache
def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("kinetoscope.render"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template(name)


def _text(name: str) -> str:
    return (files("kinetoscope.render") / "templates" / name).read_text("utf-8")


def integrity(text: str) -> str:
    """The hash by which a page's content security policy lets this script or style, and no other, work."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
