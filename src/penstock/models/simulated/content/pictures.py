"""Pictures: a canvas whose rows of pixels become a real PNG file, with the standard library."""

import math
import struct
import zlib
from functools import lru_cache
from typing import TypeAlias

Colour: TypeAlias = tuple[int, int, int]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


class Canvas:
    """Places and lengths are shares: of the width across, of the height down; of both for radii.

    Shapes are runs of pixels in each row, with soft ends. So a picture costs rows times shapes, not
    pixels: a megapixel takes hundredths of a second.
    """

    def __init__(self, width: int, height: int, above: Colour, below: Colour) -> None:
        self._width, self._height = width, height
        self._rows = [bytearray(mixed(above, below, y / height)) * width for y in range(height)]

    def fade(self, top: float, above: Colour, below: Colour) -> None:
        """From `top` to the foot of the picture, from one colour to another."""
        first = round(top * self._height)
        for y in range(first, self._height):
            share = (y - first) / (self._height - first)
            self._rows[y][:] = bytes(mixed(above, below, share)) * self._width

    def box(self, left: float, top: float, right: float, bottom: float, colour: Colour) -> None:
        for y in self._between(top, bottom):
            self._run(y, left * self._width, right * self._width, colour)

    def oval(  # noqa: PLR0913, PLR0917  # where, how large, how it looks
        self, x: float, y: float, across: float, down: float, colour: Colour, strength: float = 1
    ) -> None:
        """An oval around a point; `across` and `down` are its radii."""
        for row in self._between(y - down, y + down):
            off = ((row + 0.5) / self._height - y) / down
            half = across * math.sqrt(max(0.0, 1 - off * off))
            left, right = (x - half) * self._width, (x + half) * self._width
            self._run(row, left, right, colour, strength)

    def disc(self, x: float, y: float, radius: float, colour: Colour, strength: float = 1) -> None:
        """Round in any picture, whatever its form."""
        side = radius * min(self._width, self._height)
        self.oval(x, y, side / self._width, side / self._height, colour, strength)

    def peak(self, x: float, top: float, half: float, bottom: float, colour: Colour) -> None:
        """A triangle that stands on its base; `half` is half of that."""
        for row in self._between(top, bottom):
            share = ((row + 0.5) / self._height - top) / (bottom - top)
            width = half * min(1.0, max(0.0, share))
            self._run(row, (x - width) * self._width, (x + width) * self._width, colour)

    def png(self) -> bytes:
        header = struct.pack(">IIBBBBB", self._width, self._height, 8, 2, 0, 0, 0)  # 8 bits, RGB
        rows = b"".join(b"\0" + row for row in self._rows)  # 0: this row is not filtered
        return (
            _SIGNATURE
            + _part(b"IHDR", header)
            + _part(b"IDAT", zlib.compress(rows, 6))
            + _part(b"IEND", b"")
        )

    def _between(self, top: float, bottom: float) -> range:
        first, last = round(top * self._height), round(bottom * self._height)
        return range(max(0, first), min(self._height, last))

    def _run(self, y: int, left: float, right: float, colour: Colour, strength: float = 1) -> None:
        left, right = max(0.0, left), min(float(self._width), right)
        if right <= left:
            return
        first, last = math.ceil(left), math.floor(right)
        if first > last:  # within one pixel
            self._blend(y, last, first, colour, strength * (right - left))
            return
        self._blend(y, first, last, colour, strength)
        self._blend(y, first - 1, first, colour, strength * (first - left))
        self._blend(y, last, last + 1, colour, strength * (right - last))

    def _blend(self, y: int, first: int, last: int, colour: Colour, strength: float) -> None:
        """Lay a colour over some pixels, as thickly as told."""
        if last <= first or strength <= 0:
            return
        row = self._rows[y]
        if strength >= 1:
            row[3 * first : 3 * last] = bytes(colour) * (last - first)
            return
        if last - first == 1:
            for channel, value in enumerate(colour, 3 * first):
                row[channel] = round(row[channel] + (value - row[channel]) * strength)
            return
        for channel, value in enumerate(colour):
            part = slice(3 * first + channel, 3 * last, 3)
            row[part] = row[part].translate(_blended(value, strength))


def mixed(one: Colour, other: Colour, share: float) -> Colour:
    red, green, blue = (
        round(a + (b - a) * min(1.0, max(0.0, share))) for a, b in zip(one, other, strict=True)
    )
    return red, green, blue


@lru_cache(maxsize=1_024)
def _blended(value: int, strength: float) -> bytes:
    """What becomes of each value under this one: a table, since Python loops slowly over pixels."""
    return bytes(round(old + (value - old) * strength) for old in range(256))


def _part(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
