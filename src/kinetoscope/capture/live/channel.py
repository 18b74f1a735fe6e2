"""The way from `kinetoscope record` to a process that waits for it: a Unix-domain socket without a file.

Its name is one of Linux's abstract ones, ``kinetoscope/PID/FOLDER/RANDOM``: it is gone with the process,
needs no folder that can be written to, and is open to no network. The kernel says to each end which user and
which process the other one is: another user's is not listened to.

A message is one line of JSON. A ``LiveRequest`` is answered by one ``Greeting``, or, where it is to record,
by lines of ``Progress``, the last of which is ``over``.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

_NAME = re.compile(r"@kinetoscope/(\d{1,10})/([0-9a-f]{16})/[0-9a-f]{16}")
LONGEST = 1 << 16  # bytes of a message
PATIENCE_S = 5.0  # for a message that is due at once
MOST_STEPS, LONGEST_S = 100_000, 3600.0


class LiveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    record: int = 0  # the number of the recording to make in the process's folder; 0: say who you are
    rank: int = 0  # under which the process is to record itself
    steps: int = 1  # to record
    seconds: float = 1.0  # after which it ends at the latest

    def checked(self) -> LiveRequest:
        """The request itself. Raises ValueError where a number in it is out of bounds."""
        numbers = 0 <= self.record < 1_000_000 and 0 <= self.rank < 1_000_000
        if not (numbers and 1 <= self.steps <= MOST_STEPS and 0 < self.seconds <= LONGEST_S):
            raise ValueError("a number is out of bounds")
        return self


class Greeting(msgspec.Struct, frozen=True):
    pid: int
    folder: bytes  # of its recordings, as the bytes of a path
    command: tuple[str, ...]  # its command line
    device: bool  # it uses a GPU
    busy: bool  # it is being recorded


class Progress(msgspec.Struct, frozen=True):
    """One line of an answer."""

    text: str  # for the user
    steps: bool = False  # of the process are known
    over: bool = False  # nothing follows
    recorded: bool = False  # the recording is on disk
    hint: str = ""  # for the user, where it is not


class Listening(NamedTuple):
    """A process that waits: its number, the mark of its folder, and the name of its socket."""

    pid: int
    mark: str
    name: bytes


def mark(folder: Path) -> str:
    """Stands for a folder in the names of sockets, which every user can list."""
    return hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]


def bound(folder: Path) -> socket.socket:
    """A socket at which this process can be asked. Raises OSError where the system has no such sockets."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"\0kinetoscope/{os.getpid()}/{mark(folder)}/{secrets.token_hex(8)}")
        listener.listen(8)
    except BaseException:
        listener.close()
        raise
    return listener


def listening(table: Path = Path("/proc/net/unix")) -> list[Listening]:
    """The processes of this machine that wait, of whichever user."""
    found: dict[bytes, Listening] = {}
    with suppress(OSError):
        for line in table.read_text("utf-8", "replace").splitlines():
            if (name := _NAME.fullmatch(line.rpartition(" ")[2])) is not None:
                address = b"\0" + name[0][1:].encode()
                found[address] = Listening(int(name[1]), name[2], address)
    return list(found.values())


def connected(process: Listening) -> socket.socket | None:
    """A connection to a process of this user's; None where it is another's, or gone."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(PATIENCE_S)
        connection.connect(process.name)
        pid, user = peer(connection)
        if pid == process.pid and user == os.getuid():
            return connection
    except OSError:
        pass
    connection.close()
    return None


def peer(connection: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end, by the kernel's account."""
    size = struct.calcsize("3i")
    pid, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, user


def send(connection: socket.socket, message: LiveRequest | Greeting | Progress) -> None:
    connection.sendall(msgspec.json.encode(message) + b"\n")


def lines(connection: socket.socket) -> Iterator[bytes]:
    """Messages as they come, until the other end closes or sends one that is too long."""
    kept = b""
    while len(kept) <= LONGEST:
        piece = connection.recv(4096)
        if not piece:
            return
        *whole, kept = (kept + piece).split(b"\n")
        yield from whole
