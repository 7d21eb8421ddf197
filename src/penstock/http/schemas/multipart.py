"""Reading a form with a file as it comes: a bounded file on disk, and bounded texts."""

import tempfile
from dataclasses import dataclass, field
from typing import IO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from penstock.engine.uploads import Room
from penstock.errors import Invalid
from penstock.http.middleware.limits import Holding
from penstock.http.schemas.body import receive

# Kept in memory; more goes to a temporary file.
MEMORY_BYTES = 64 * 1024
TEXT_BYTES = 1_024
MOST_PARTS = 8
# Boundaries and headers around the parts.
ENVELOPE_BYTES = 64 * 1024


@dataclass(slots=True)
class Form:
    """What the parts say. `file` has to be closed."""

    file: IO[bytes] | None = None
    size: int = 0
    texts: dict[str, str] = field(default_factory=dict)


class _Reading:
    """The parser's callbacks; they hold one part at a time."""

    def __init__(self, room: Room, held: Holding, texts: tuple[str, ...]) -> None:
        self.form = Form()
        self.complete = False
        self._room = room
        self._held = held
        self._texts = texts
        self._parts = 0
        self._name = ""
        self._is_file = False
        self._text = bytearray()
        self._header = bytearray()
        self._value = bytearray()
        self._disposition = b""

    def on_part_begin(self) -> None:
        self._parts += 1
        self._disposition = b""
        self._text.clear()
        if self._parts > MOST_PARTS:
            raise _wrong(f"the form has more than {MOST_PARTS} parts", None)

    def on_header_begin(self) -> None:
        self._header.clear()
        self._value.clear()

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        if bytes(self._header).lower() == b"content-disposition":
            self._disposition = bytes(self._value)

    def on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        self._is_file = self._name == "file"
        if self._is_file and self.form.file is not None:
            raise _wrong("file: the form has two of them; send one for each", "file")
        if self._is_file:
            self.form.file = tempfile.SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115  # the form's
        elif self._name not in self._texts:
            known = ", ".join(("file", *self._texts))
            raise _wrong(f"{self._name[:100]}: not a known field; known are {known}", self._name)

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        piece = data[start:end]
        if self._is_file and self.form.file is not None:
            self.form.size += len(piece)
            self._room.refuse_larger(self.form.size)
            self._held.add(len(piece))
            self.form.file.write(piece)
        else:
            self._text += piece
            if len(self._text) > TEXT_BYTES:
                raise _wrong(f"{self._name}: longer than {TEXT_BYTES} bytes", self._name)

    def on_part_end(self) -> None:
        if not self._is_file:
            try:
                self.form.texts[self._name] = self._text.decode()
            except UnicodeDecodeError:
                raise _wrong(f"{self._name}: not UTF-8", self._name) from None

    def on_end(self) -> None:
        self.complete = True

    def refuse_incomplete(self) -> None:
        if not self.complete:
            raise _wrong("the form ends before its last boundary", None)
        if self.form.file is None:
            raise _wrong("file: the form has none", "file")

    def close(self) -> None:
        if self.form.file is not None:
            self.form.file.close()


async def read_form(
    request: Request, room: Room, held: Holding, *, texts: tuple[str, ...] = ()
) -> Form:
    """The form of a request: `file`, for which there is room, and these texts.

    `held` counts the bytes of the file as they come.
    """
    kind, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise HTTPException(415, "send a form: multipart/form-data with a part named file")
    declared = request.headers.get("content-length", "")
    if declared.isdigit():
        room.refuse_larger(int(declared) - ENVELOPE_BYTES)
    reading = _Reading(room, held, texts)
    callbacks = {name: getattr(reading, name) for name in dir(reading) if name.startswith("on_")}
    try:
        parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]  # by name
        came = 0
        async for chunk in receive(request):
            came += len(chunk)
            room.refuse_larger(came - ENVELOPE_BYTES)
            parser.write(chunk)
        reading.refuse_incomplete()
    except Exception as error:  # noqa: BLE001  # raised again, as what it means
        reading.close()
        raise _explained(error) from None
    except BaseException:
        reading.close()
        raise
    return reading.form


def _explained(error: Exception) -> Exception:
    match error:
        case FormParserError():
            return _wrong("the form cannot be read: it is not multipart as its header says", None)
        case ClientDisconnect():
            return HTTPException(400, "the request broke off")
        case _:
            return error


def _wrong(message: str, name: str | None) -> Invalid:
    return Invalid(message, code="invalid_request", field=name or None)
