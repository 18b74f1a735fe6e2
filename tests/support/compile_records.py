"""Records of a compile log, as torch writes them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

PREFIX = "V1121 01:48:43.123000 8611 torch/_dynamo/utils.py:1288] "


def record(header: dict[str, Any], payload: str | None = None) -> bytes:
    """A record as torch writes it."""
    if payload is None:
        return (PREFIX + json.dumps(header) + "\n").encode()
    md5 = hashlib.md5(payload.encode()).hexdigest()
    lines = "".join(f"\t{line}\n" for line in payload.split("\n"))
    return (PREFIX + json.dumps(header | {"has_payload": md5}) + "\n" + lines).encode()


def artifact(name: str, payload: str, **context: Any) -> bytes:
    return record({"artifact": {"name": name, "encoding": "string"}, **context}, payload)
