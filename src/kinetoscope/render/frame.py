"""A page inside another one, such as a notebook's: in a frame of its own that can touch nothing around it."""

from __future__ import annotations

from html import escape

HEIGHT = 720  # pixels


def framed(page: str, *, scripts: bool, height: int = HEIGHT) -> str:
    """The page in a frame without an origin: neither cookies nor the notebook are within its reach."""
    sandbox = "allow-scripts" if scripts else ""
    style = f"width: 100%; height: {height}px; border: 1px solid #8884; border-radius: 6px"
    return f'<iframe sandbox="{sandbox}" style="{style}" srcdoc="{escape(page)}"></iframe>'
