"""The page, served on this machine alone, to whoever has its address; and the trace for other viewers.

The address holds a token that cannot be guessed: other programs and pages of this machine find nothing.
Requests that name another host than ours (a name that was made to lead here) are refused.
"""

from __future__ import annotations

import html
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from kinetoscope.errors import InputError

LOOPBACK = "127.0.0.1"

IDLE_S = 20.0  # after which a client that asks for nothing, or takes nothing, is dropped


class Content(NamedTuple):
    kind: str
    make: Callable[[], bytes]


class Server(ThreadingHTTPServer):
    """Serves each content under its name, below the token; the one without a name is the page.

    Contents are made when they are first requested.
    """

    daemon_threads = True

    def __init__(self, contents: Mapping[str, Content], port: int = 0) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self.contents = {name: Content(kind, cache(make)) for name, (kind, make) in contents.items()}
        self.prefix = f"/{secrets.token_urlsafe(24)}/"
        self.host = f"{LOOPBACK}:{self.server_port}"
        self.url = f"http://{self.host}{self.prefix}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error; anything else is shown as ever."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


@contextmanager
def opened(url: str, folder: Path) -> Generator[None]:
    """Have the user's browser show an address, by way of a file that only this user can read: other users see
    what a browser is started with. The file lies in ``folder`` where that can be written to."""
    import webbrowser

    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix="view-", dir=folder if os.access(folder, os.W_OK) else None
    ) as home:
        page = Path(home) / "open.html"
        page.touch(0o600)
        page.write_text(_LEADS.format(url=html.escape(url)))
        webbrowser.open(page.as_uri())
        yield


_LEADS = """\
<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={url}"><title>kinetoscope</title><a href="{url}">the report</a>
"""


class _Handler(BaseHTTPRequestHandler):
    timeout = IDLE_S
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]  # only it uses this handler

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        content = self.server.contents.get(path.removeprefix(self.server.prefix))
        has_token = secrets.compare_digest(
            path[: len(self.server.prefix)].encode(), self.server.prefix.encode()
        )
        if content is None or not has_token or self.headers.get("Host") != self.server.host:
            self.send_error(404)
            return
        try:
            body = content.make()
        except InputError as error:  # what is read for it only now has gone
            self.send_error(500, explain=str(error))
            return
        self.send_response(200)
        for name, value in (
            ("Content-Type", content.kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", "frame-ancestors 'none'"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the address is a secret."""
