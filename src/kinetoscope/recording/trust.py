"""Whether the code in a recording is known: made by this user, or agreed to once, and not changed since.

`bench` runs Python out of a recording. Next to that code is a signature of it, an HMAC-SHA256 under a random
key that stays in the user's own folder (``$XDG_CONFIG_HOME/kinetoscope/key``, 0600): no other user can make
one, and it moves with the recording. Without the key, or a signature, code is a stranger's. So are answers
that were kept next to a recording (``sources.kept``): each begins with a seal under the same key.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from kinetoscope.recording import plain_file
from kinetoscope.recording.manifest import write_whole

FILE = "signature"
GENERATED = "generated"
KEY_BYTES = SEAL_BYTES = 32
_BLOCK = 1 << 20


def code(path: Path) -> list[Path]:
    """Python that may be run: the file itself, or the ``.py`` and ``.py.gz`` of a folder's ``generated/``
    (of all of it, where it has none)."""
    if path.is_file():
        return [path]
    root = path / GENERATED if (path / GENERATED).is_dir() else path
    found = (file for pattern in ("*.py", "*.py.gz") for file in root.rglob(pattern))
    return sorted(file for file in found if file.is_file())  # no pipe, which would be waited for


def inputs(path: Path) -> list[Path]:
    """The arguments of kernels, and the sources of those written by hand."""
    return [file for name in ("rank0.json", "rank0.bin") if (file := path / "inputs" / name).is_file()]


def is_known(recording: Path) -> bool:
    """Whether the code in a recording is signed by this user, as it is now."""
    signature = recording / FILE
    try:
        if (key := _key()) is None or not signature.is_file():
            return False
        with plain_file.opened(signature) as file:
            return hmac.compare_digest(file.read(_BLOCK).strip(), _signature(recording, key))
    except OSError:
        return False


def sign(recording: Path) -> None:
    """Make the code in a recording known from now on, where it and the user's folder can be written to."""
    with suppress(OSError):
        if (key := _key() or _new_key()) is not None:
            write_whole(recording / FILE, _signature(recording, key) + b"\n")


def seal(name: str, content: bytes) -> bytes:
    """Make what this user alone can make of a content that is kept under a name. Raises OSError where the
    user's folder cannot be read or written, or there is no user to speak of."""
    key = _key() or _new_key()
    if key is None:
        raise OSError(errno.ENOENT, "there is no folder for settings")
    own = hmac.digest(key, b"answers", "sha256")  # so that no seal is a signature of code
    return hmac.digest(own, hashlib.sha256(name.encode()).digest() + content, "sha256")


def _signature(recording: Path, key: bytes) -> bytes:
    made = hmac.new(key, digestmod=hashlib.sha256)
    for file in (*code(recording), *inputs(recording)):
        made.update(hashlib.sha256(os.fsencode(file.relative_to(recording).as_posix())).digest())
        content = hashlib.sha256()
        for block in _blocks(file):
            content.update(block)
        made.update(content.digest())
    return made.hexdigest().encode()


def _blocks(file: Path) -> Iterator[bytes]:
    with plain_file.opened(file) as opened:
        while block := opened.read(_BLOCK):
            yield block


def _home() -> Path | None:
    """The user's folder of settings; None where there is no user to speak of."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        return (Path(given) if os.path.isabs(given) else Path.home() / ".config") / "kinetoscope"
    except RuntimeError:
        return None


def _key() -> bytes | None:
    home = _home()
    if home is None or not (home / "key").is_file():
        return None
    content = (home / "key").read_bytes()
    return content if len(content) == KEY_BYTES else None


def _new_key() -> bytes | None:
    home = _home()
    if home is None:
        return None
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    own, key = home / f".key.{os.getpid()}", secrets.token_bytes(KEY_BYTES)
    with os.fdopen(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key)
    own.replace(home / "key")
    return key
