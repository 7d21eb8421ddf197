"""Pictures: real PNG files, drawn with the standard library."""

import struct
import zlib
from random import Random

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_BOXES = 6


def picture(random: Random, width: int, height: int) -> bytes:
    """A sky that fades from one colour to another, with some boxes before it."""
    above, below = _colour(random), _colour(random)
    boxes = []
    for _ in range(_BOXES):
        left, top = random.randrange(width), random.randrange(height)
        right = min(width, left + 1 + random.randrange(width))
        bottom = min(height, top + 1 + random.randrange(height))
        boxes.append((left, top, right, bottom, _colour(random)))
    rows = bytearray()
    for y in range(height):
        share = y / height
        sky = bytes(int(a + (b - a) * share) for a, b in zip(above, below, strict=True))
        row = bytearray(sky * width)
        for left, top, right, bottom, colour in boxes:
            if top <= y < bottom:
                row[3 * left : 3 * right] = colour * (right - left)
        rows += b"\0" + row  # 0: this row is not filtered
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    return (
        _SIGNATURE
        + _part(b"IHDR", header)
        + _part(b"IDAT", zlib.compress(bytes(rows), 1))
        + _part(b"IEND", b"")
    )


def _colour(random: Random) -> bytes:
    return bytes(random.randrange(256) for _ in range(3))


def _part(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
