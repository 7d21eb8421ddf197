"""Task images: which kinds are taken, told by their first bytes and never by their name."""

from dataclasses import dataclass

from starlette.datastructures import UploadFile

from essays.errors import Wrong

MAX_BYTES = 5 * 1024 * 1024
CHUNK_BYTES = 64 * 1024

TOO_LARGE = "The image is larger than 5 MB. Save it smaller and add it again."
WRONG_KIND = "The image must be a PNG, JPEG, WebP or GIF; what is in this file is none of these."
EMPTY = "The image file is empty. Choose another one, or leave it out."


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
    """Take an upload in, chunk by chunk; stop at the first byte that is wrong or too much."""
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
    return Image(kind, bytes(data))
