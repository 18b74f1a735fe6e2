"""The protocol of examples/ask.py: POST {"prompt": […], "tokens": N}, answered with two lines: an empty one
at the first token, and the list of tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def serve(port: int, answer: Callable[[list[int], int, Callable[[], object]], list[int]]) -> None:
    """Serve until the process is ended; prints the port once it does.

    Args:
        answer: makes tokens for a prompt, and calls its last argument with the first of them.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()
            tokens = answer(asked["prompt"], asked["tokens"], lambda: self.wfile.write(b"\n"))
            self.wfile.write(json.dumps(tokens).encode() + b"\n")

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
