"""The model's pictures: hills, mountains, the sea.

All colours of a picture come from one palette, so that random pictures still have matching colours.
"""

import math
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import TypeAlias

Colour: TypeAlias = tuple[int, int, int]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
WHITE: Colour = (255, 255, 255)
_INK: Colour = (38, 34, 48)


class Canvas:
    """A picture. Positions and lengths are shares: of the width, of the height, or both for radii.

    A shape is a run of pixels in each row, with soft ends. So the time depends on rows times
    shapes, not on pixels: a megapixel takes hundredths of a second.
    """

    def __init__(self, width: int, height: int, above: Colour, below: Colour) -> None:
        self._width, self._height = width, height
        self._rows = [bytearray(mixed(above, below, y / height)) * width for y in range(height)]

    def fade(self, top: float, above: Colour, below: Colour) -> None:
        """Fill from `top` to the bottom of the picture with a gradient of two colours."""
        first = round(top * self._height)
        for y in range(first, self._height):
            share = (y - first) / (self._height - first)
            self._rows[y][:] = bytes(mixed(above, below, share)) * self._width

    def box(self, left: float, top: float, right: float, bottom: float, colour: Colour) -> None:
        for y in self._between(top, bottom):
            self._run(y, left * self._width, right * self._width, colour)

    def oval(  # noqa: PLR0913, PLR0917  # position, size, appearance
        self, x: float, y: float, across: float, down: float, colour: Colour, strength: float = 1
    ) -> None:
        """Draw an oval around a point; `across` and `down` are its radii."""
        for row in self._between(y - down, y + down):
            off = ((row + 0.5) / self._height - y) / down
            half = across * math.sqrt(max(0.0, 1 - off * off))
            left, right = (x - half) * self._width, (x + half) * self._width
            self._run(row, left, right, colour, strength)

    def disc(self, x: float, y: float, radius: float, colour: Colour, strength: float = 1) -> None:
        """Draw a circle, also in a picture that is not square."""
        side = radius * min(self._width, self._height)
        self.oval(x, y, side / self._width, side / self._height, colour, strength)

    def peak(self, x: float, top: float, half: float, bottom: float, colour: Colour) -> None:
        """Draw a triangle on its base; `half` is half the length of the base."""
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
        """Blend a colour over some pixels with the given strength."""
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


def mixed(first: Colour, second: Colour, share: float) -> Colour:
    red, green, blue = (
        round(a + (b - a) * min(1.0, max(0.0, share))) for a, b in zip(first, second, strict=True)
    )
    return red, green, blue


@lru_cache(maxsize=1_024)
def _blended(value: int, strength: float) -> bytes:
    """Return the table of blended values; a loop over single pixels would be slow in Python."""
    return bytes(round(old + (value - old) * strength) for old in range(256))


def _part(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


@dataclass(frozen=True, slots=True)
class Palette:
    sky: Colour
    glow: Colour  # where the sky meets the land
    sun: Colour
    far: Colour
    near: Colour
    accent: Colour


_PALETTES = tuple(
    Palette(*(struct.unpack("BBB", bytes.fromhex(colour)) for colour in written.split()))
    for written in (
        "4e98ce e2eef0 ffd678 78a896 22544a e2664a",
        "363062 f4967a ffe2a8 8e5c86 2e244a ffbe5c",
        "162242 5676a2 f2f0dc 3a547a 101a2e ecb060",
        "f0b286 fcecd0 e86042 ca8a6c 6e3e42 2c787c",
        "80bab2 f0f0de fac462 689c80 28585c de5c68",
        "a496d4 fadee2 fff4d6 967ab2 483a70 f08676",
    )
)


def picture(random: Random, width: int, height: int) -> bytes:
    """Draw a PNG file of this size; the same random state gives the same picture."""
    palette = random.choice(_PALETTES)
    canvas = Canvas(width, height, palette.sky, palette.glow)
    random.choice(_SCENES)(canvas, palette, random)
    return canvas.png()


def _sun(canvas: Canvas, palette: Palette, random: Random, lowest: float) -> None:
    x, y, size = random.uniform(0.2, 0.8), random.uniform(0.18, lowest), random.uniform(0.07, 0.12)
    for wider, strength in ((2.6, 0.12), (1.8, 0.18), (1.35, 0.25)):
        canvas.disc(x, y, size * wider, palette.sun, strength)
    canvas.disc(x, y, size, palette.sun)


def _clouds(canvas: Canvas, random: Random, count: int) -> None:
    for _ in range(count):
        x, y, size = random.random(), random.uniform(0.1, 0.4), random.uniform(0.05, 0.09)
        for off, low, part in ((-1.1, 0.25, 0.7), (0, 0, 1), (1.1, 0.2, 0.75), (0.3, 0.4, 0.9)):
            canvas.oval(x + off * size, y + low * size, size * 1.3 * part, size * part, WHITE, 0.45)


def _tree(canvas: Canvas, x: float, foot: float, size: float, colour: Colour) -> None:
    canvas.box(x - size * 0.06, foot - size * 0.2, x + size * 0.06, foot, mixed(colour, _INK, 0.5))
    for step in range(3):
        top = foot - size * (1 - 0.22 * step)
        half = size * (0.18 + 0.07 * step)
        canvas.peak(x, top, half, top + size * 0.42, mixed(colour, _INK, 0.06 * step))


def _hills(canvas: Canvas, palette: Palette, random: Random) -> None:
    _sun(canvas, palette, random, 0.4)
    _clouds(canvas, random, random.randint(0, 2))
    for layer in range(4):
        colour = mixed(palette.far, palette.near, layer / 3)
        ground = 0.5 + layer * 0.13
        for _ in range(2 + layer % 2):
            x, lift = random.uniform(-0.1, 1.1), random.uniform(0.02, 0.12)
            canvas.oval(x, 1.05, random.uniform(0.45, 0.75), 1.05 - ground + lift, colour)
        canvas.box(0, ground + 0.1, 1, 1, colour)
        if layer in (1, 2):
            for _ in range(random.randint(3, 6)):
                size = 0.06 + 0.05 * layer
                _tree(canvas, random.random(), ground + 0.14, size, mixed(colour, _INK, 0.3))


def _mountains(canvas: Canvas, palette: Palette, random: Random) -> None:
    _sun(canvas, palette, random, 0.3)
    shore = random.uniform(0.68, 0.76)
    for layer in range(2):
        colour = mixed(palette.far, palette.near, 0.25 + 0.45 * layer)
        for peak in range(4 - layer):
            x = (peak + random.uniform(0.1, 0.9)) / (4 - layer)
            top, half = random.uniform(0.22, 0.4) + 0.16 * layer, random.uniform(0.22, 0.34)
            canvas.peak(x, top, half, shore, colour)
            snow = 0.28 * (shore - top)
            canvas.peak(x, top, half * 0.28, top + snow, mixed(WHITE, palette.glow, 0.35))
    canvas.fade(shore, mixed(palette.glow, palette.sky, 0.4), mixed(palette.sky, _INK, 0.35))
    _glints(canvas, random, shore + 0.02, palette.glow)
    for _ in range(random.randint(2, 4)):
        _tree(canvas, random.choice((0.05, 0.14, 0.88, 0.95)), 1.02, 0.3, palette.near)


def _glints(canvas: Canvas, random: Random, top: float, colour: Colour) -> None:
    for _ in range(26):
        y = random.uniform(top, 0.98)
        x, half = random.random(), random.uniform(0.02, 0.08) * (0.4 + y - top)
        canvas.oval(x, y, half, 0.006, colour, 0.55)


def _sea(canvas: Canvas, palette: Palette, random: Random) -> None:
    shore = random.uniform(0.5, 0.62)
    _sun(canvas, palette, random, shore)
    _clouds(canvas, random, random.randint(1, 3))
    canvas.fade(shore, mixed(palette.sky, palette.glow, 0.3), mixed(palette.near, palette.sky, 0.2))
    _glints(canvas, random, shore + 0.02, mixed(palette.sun, WHITE, 0.3))
    for _ in range(random.randint(1, 3)):
        x, y, size = random.uniform(0.15, 0.85), random.uniform(shore, 0.85), 0.0
        size = 0.1 + 0.35 * (y - shore)
        canvas.peak(x - size * 0.14, y - size * 1.25, size * 0.34, y - size * 0.1, WHITE)
        canvas.peak(x + size * 0.2, y - size * 0.95, size * 0.26, y - size * 0.1, palette.accent)
        canvas.oval(x, y - size * 0.05, size * 0.6, size * 0.14, mixed(palette.accent, _INK, 0.6))


_SCENES: tuple[Callable[[Canvas, Palette, Random], None], ...] = (_hills, _mountains, _sea)
