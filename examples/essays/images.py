"""Task images: told by their bytes and never by their name; whole, with a size, of a few kinds.

Nothing is decompressed: the header has the size, and each kind has a mark at its end.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from starlette.datastructures import UploadFile

from essays.errors import Wrong

MAX_BYTES = 5 * 1024 * 1024
CHUNK_BYTES = 64 * 1024
LONGEST_SIDE = 20_000

TOO_LARGE = "The image is larger than 5 MB. Save it smaller and add it again."
WRONG_KIND = "The image must be a PNG, JPEG, WebP or GIF; what is in this file is none of these."
EMPTY = "The image file is empty. Choose another one, or leave it out."
BROKEN = "The image is damaged: this {kind} has no {part}. Save it anew, or leave it out."
TOO_WIDE = f"The image is wider or higher than {LONGEST_SIDE:,} pixels. Save it smaller."

Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Image:
    type: str
    data: bytes


def sniff(head: bytes) -> str | None:
    """The media type that these first bytes belong to, or None."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image/webp"
    return None


async def read_image(upload: UploadFile) -> Image:
    """Read an upload in chunks; stop at the first byte that is wrong or too much."""
    data = bytearray()
    kind = None
    while chunk := await upload.read(CHUNK_BYTES):
        data += chunk
        kind = kind or sniff(chunk)
        if kind is None:
            raise Wrong("image", WRONG_KIND)
        if len(data) > MAX_BYTES:
            raise Wrong("image", TOO_LARGE, status=413)
    if kind is None:
        raise Wrong("image", EMPTY)
    _check(kind, bytes(data))
    return Image(kind, bytes(data))


def _check(kind: str, data: bytes) -> None:
    """Refuse incomplete images: without a size, or cut off before their end."""
    name, size_of, has_end = _KINDS[kind]
    try:
        size = size_of(data)
    except (struct.error, IndexError):  # it ends in its header
        size = None
    if size is None or 0 in size:
        raise Wrong("image", BROKEN.format(kind=name, part="size in its header"))
    if max(size) > LONGEST_SIDE:
        raise Wrong("image", TOO_WIDE)
    if not has_end(data):
        raise Wrong("image", BROKEN.format(kind=name, part="end"))


def _png(data: bytes) -> Size | None:
    if data[8:16] != b"\0\0\0\rIHDR":
        return None
    width, height = struct.unpack_from(">II", data, 16)
    (checksum,) = struct.unpack_from(">I", data, 29)
    return (width, height) if zlib.crc32(data[12:29]) == checksum else None


def _gif(data: bytes) -> Size | None:
    width, height = struct.unpack_from("<HH", data, 6)
    return width, height


def _jpeg(data: bytes) -> Size | None:
    for marker, at in _segments(data):
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a frame's header
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
    return None


def _has_jpeg_end(data: bytes) -> bool:
    """Search after the pixels: a thumbnail in the header has its own end marker."""
    return any(marker == 0xDA and data.find(b"\xff\xd9", at) > 0 for marker, at in _segments(data))


def _segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the segments of a JPEG up to the pixels: (marker, offset)."""
    at = 2
    while at + 3 < len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        yield marker, at
        if marker == 0xDA:  # here the pixels begin
            return
        filling = marker == 0xFF
        at += 1 if filling else 2 + max(2, struct.unpack_from(">H", data, at + 2)[0])


def _webp(data: bytes) -> Size | None:
    form = data[12:16]
    if form == b"VP8X":
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
        return (width, height) if len(data) >= 30 else None  # its header
    if form == b"VP8L" and data[20] == 0x2F:  # its signature
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if form == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None


# Some cameras and programs add bytes of their own after the end.
_KINDS: dict[str, tuple[str, Callable[[bytes], Size | None], Callable[[bytes], bool]]] = {
    "image/png": ("PNG", _png, lambda data: b"IDAT" in data and b"IEND\xaeB`\x82" in data),
    "image/jpeg": ("JPEG", _jpeg, _has_jpeg_end),
    "image/gif": ("GIF", _gif, lambda data: b"\0;" in data[-16:]),
    "image/webp": (
        "WebP",
        _webp,
        lambda data: len(data) >= 8 + int.from_bytes(data[4:8], "little"),
    ),
}
