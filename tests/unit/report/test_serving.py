"""Who has the address is served; everybody else finds nothing."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from kinetoscope.errors import InputError
from kinetoscope.render import serving
from kinetoscope.render.serving import LOOPBACK, Content, Server, opened


@pytest.fixture
def made() -> list[str]:
    return []


@pytest.fixture
def server(made: list[str]) -> Iterator[Server]:
    def trace() -> bytes:
        made.append("trace")
        return b"\x00trace"

    contents = {"": Content("text/html; charset=utf-8", lambda: b"<p>page"), "trace": Content("a/b", trace)}
    with Server(contents) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


def asked(server: Server, path: str, host: str | None = None, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=5)
    connection.request(method, path, headers={"Host": host or server.host})
    answer = connection.getresponse()
    body = answer.read()
    if answer.status == 200:
        assert answer.getheader("Cache-Control") == "no-store"
        assert answer.getheader("X-Content-Type-Options") == "nosniff"
        assert answer.getheader("Access-Control-Allow-Origin") is None
    connection.close()
    return answer.status, body


def test_the_address_leads_to_the_page_and_the_trace(server: Server, made: list[str]) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.url.startswith(f"http://127.0.0.1:{server.server_port}/")
    assert asked(server, server.prefix) == (200, b"<p>page")
    assert made == []
    assert asked(server, server.prefix + "trace") == (200, b"\x00trace")
    assert asked(server, server.prefix + "trace?x=1") == (200, b"\x00trace")
    assert made == ["trace"]


def test_requests_without_the_token_are_not_found(server: Server) -> None:
    token = server.prefix.strip("/")
    assert len(token) >= 32
    wrong = f"/{token[:-1]}{'A' if token[-1] != 'A' else 'B'}/"
    for path in (
        "/",
        "/trace",
        "//trace",
        wrong,
        wrong + "trace",
        server.prefix + "other",
        server.prefix + "../etc/passwd",
    ):
        assert asked(server, path)[0] == 404, path
    for host in ("evil.example", f"evil.example:{server.server_port}", f"localhost:{server.server_port}"):
        assert asked(server, server.prefix, host)[0] == 404, host
    assert asked(server, server.prefix, method="POST")[0] == 501


def test_what_cannot_be_read_any_more_is_said_and_runs_nowhere() -> None:
    def trace() -> bytes:
        raise InputError("it is gone", where="<script>.json")

    with Server({"trace": Content("a/b", trace)}) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        status, body = asked(server, server.prefix + "trace")
        server.shutdown()
    assert status == 500
    assert b"it is gone" in body
    assert b"<script>" not in body


def test_two_servers_have_two_tokens() -> None:
    with Server({}) as one, Server({}) as two:
        assert one.prefix != two.prefix


def test_a_client_that_goes_away_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    with Server({"": Content("text/html", lambda: b"x" * (1 << 24))}) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for _ in range(5):
            with socket.create_connection((LOOPBACK, server.server_port)) as client:
                client.sendall(f"GET {server.prefix} HTTP/1.0\r\nHost: {server.host}\r\n\r\n".encode())
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with urlopen(server.url) as answer:
            assert len(answer.read()) == 1 << 24
        server.shutdown()
    assert "Traceback" not in capfd.readouterr().err


def test_a_client_that_asks_for_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving._Handler, "timeout", 0.1)
    with Server({}) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with socket.create_connection((LOOPBACK, server.server_port), timeout=60) as client:
            assert client.recv(1) == b""
        server.shutdown()


def test_a_browser_is_not_given_the_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []
    monkeypatch.setattr("webbrowser.open", asked.append)
    with opened("http://127.0.0.1:1/secret/", tmp_path / "cache"):
        assert "secret" not in asked[0]
        page = Path(asked[0].removeprefix("file://"))
        assert "secret" in page.read_text()
        assert page.stat().st_mode & 0o077 == 0
        assert page.parent.stat().st_mode & 0o077 == 0
    assert not page.exists()
