"""How tests go about in a page that is open in a browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Open = Callable[[str], Any]
"""Opens the text of a page; pages are playwright's, which may not be installed."""


def go(page: Any, place: str) -> None:
    """To a place of the page; it is drawn when this returns. Pages behind others draw once a second."""
    page.bring_to_front()
    page.evaluate("place => new Promise(done => { location.hash = place; setTimeout(done, 60) })", place)


def ready(page: Any) -> None:
    """Returns once the page's script has drawn it.

    Playwright's own waiting evaluates its text again in the page, which the content security policy forbids.
    """
    page.evaluate(
        """() => new Promise(done => {
            const look = () => window.kinetoscope ? done() : setTimeout(look, 10);
            look();
        })"""
    )
