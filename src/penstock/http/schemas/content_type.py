"""Detect a file's type by its first bytes: names and declared types are not trusted.

Nothing is unpacked or decompressed, so an archive bomb does no harm here. Files that a browser
would run (HTML, SVG, XML, scripts in such tags) and unknown files are
`application/octet-stream`.
"""

SAMPLE_BYTES = 4_096
UNKNOWN = "application/octet-stream"

_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
    (b"\xff\xf2", "audio/mpeg"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"\x1f\x8b\x08", "application/gzip"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_ISO_MEDIA = (
    ((b"avif", b"avis"), "image/avif"),
    ((b"heic", b"heix", b"heim", b"heis", b"mif1", b"msf1"), "image/heic"),
    ((b"M4A ", b"M4B "), "audio/mp4"),
    ((b"qt  ",), "video/quicktime"),
)
_OFFICE = "application/vnd.openxmlformats-officedocument"
_ZIPPED = (
    (b"word/", f"{_OFFICE}.wordprocessingml.document"),
    (b"xl/", f"{_OFFICE}.spreadsheetml.sheet"),
    (b"ppt/", f"{_OFFICE}.presentationml.presentation"),
)
# The first entry of an OpenDocument or EPUB file has this name; its type follows, uncompressed.
_MIMETYPE = b"mimetype"
_OPEN = b"application/vnd.oasis.opendocument."
_EPUB = b"application/epub+zip"

_EXTENSIONS = {
    "application/json": "json",
    "application/pdf": "pdf",
    "application/zip": "zip",
    "application/gzip": "gz",
    "application/epub+zip": "epub",
    "audio/flac": "flac",
    "audio/mp4": "m4a",
    "audio/mpeg": "mp3",
    "audio/ogg": "ogg",
    "audio/wav": "wav",
    "image/avif": "avif",
    "image/gif": "gif",
    "image/heic": "heic",
    "image/jpeg": "jpg",
    "image/png": "png",
    "image/webp": "webp",
    "text/csv": "csv",
    "text/plain": "txt",
    "video/mp4": "mp4",
    "video/quicktime": "mov",
    "video/webm": "webm",
    f"{_OFFICE}.wordprocessingml.document": "docx",
    f"{_OFFICE}.spreadsheetml.sheet": "xlsx",
    f"{_OFFICE}.presentationml.presentation": "pptx",
    "application/vnd.oasis.opendocument.text": "odt",
    "application/vnd.oasis.opendocument.spreadsheet": "ods",
    "application/vnd.oasis.opendocument.presentation": "odp",
}


def sniff(head: bytes) -> str:
    """Return the media type of a file that begins with `head`, of at least SAMPLE_BYTES bytes."""
    for beginning, media_type in _BEGINNINGS:
        if head.startswith(beginning):
            return media_type
    if head[:4] == b"RIFF":
        return _RIFF.get(head[8:12], UNKNOWN)
    if head[4:8] == b"ftyp":
        return next((kind for brands, kind in _ISO_MEDIA if head[8:12] in brands), "video/mp4")
    if head.startswith(b"\x1aE\xdf\xa3"):
        return "video/webm" if b"webm" in head[:64] else UNKNOWN
    if head.startswith(b"PK\x03\x04"):
        return _zipped(head)
    return _text(head)


def served(content_type: str) -> tuple[str, str]:
    """Return the content type under which a browser gets a file, and the extension of its name."""
    if content_type in _EXTENSIONS:
        return content_type, _EXTENSIONS[content_type]
    return UNKNOWN, "bin"


def _zipped(head: bytes) -> str:
    if head[30:38] == _MIMETYPE:
        declared = head[38:]
        if declared.startswith(_EPUB):
            return _EPUB.decode()
        for kind in (b"text", b"spreadsheet", b"presentation"):
            if declared.startswith(_OPEN + kind):
                return (_OPEN + kind).decode()
    if b"[Content_Types].xml" in head or b"_rels/" in head:
        return next((kind for name, kind in _ZIPPED if name in head), "application/zip")
    return "application/zip"


def _text(head: bytes) -> str:
    sample = head[:SAMPLE_BYTES]
    try:
        text = sample.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # An incomplete character is allowed only at the end of the sample.
        if error.start < len(sample) - 3 or error.reason != "unexpected end of data":
            return UNKNOWN
        text = sample[: error.start].decode("utf-8-sig")
    if any(ord(mark) < ord(" ") and mark not in "\t\n\r\f" for mark in text):
        return UNKNOWN
    begins = text.lstrip()[:1]
    if begins == "<":
        return UNKNOWN
    if begins in ("{", "["):
        return "application/json"
    return "text/csv" if _is_table(text) else "text/plain"


def _is_table(text: str) -> bool:
    """Whether several complete lines have the same number of commas, semicolons or tabs."""
    lines = [line for line in text.splitlines()[:-1] if line][:10]
    if len(lines) < 2:  # noqa: PLR2004  # a head and a row
        return False
    for mark in ",;\t":
        counts = {line.count(mark) for line in lines}
        if len(counts) == 1 and counts != {0}:
            return True
    return False
