"""Protobuf's wire format, as far as writing needs it: https://protobuf.dev/programming-guides/encoding/"""

from __future__ import annotations


def varint(number: int) -> bytes:
    """A number of 0 or more: seven bits a byte, the lowest first, the highest bit of each saying "more"."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def number(field: int, value: int) -> bytes:
    """An unsigned number, a positive signed one, or an enum's."""
    return varint(field << 3) + varint(value)


def fixed(field: int, value: int) -> bytes:
    """A fixed64."""
    return varint(field << 3 | 1) + value.to_bytes(8, "little")


def message(field: int, *parts: bytes) -> bytes:
    """A message of parts that are fields themselves."""
    body = b"".join(parts)
    return varint(field << 3 | 2) + varint(len(body)) + body


def text(field: int, value: str) -> bytes:
    return message(field, value.encode())
