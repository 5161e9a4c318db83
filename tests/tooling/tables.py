"""Header tables byte by byte, as no client would write them."""

import struct


def entry(name: bytes, kind: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + kind + value


def nested(depth: int) -> bytes:
    table = b""
    for _ in range(depth):
        table = entry(b"a", b"F", struct.pack(">I", len(table)) + table)
    return table
