"""Files of a job: files to which its payload refers, and files that it creates."""

import asyncio
import base64
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, Any, TypeVar
from uuid import UUID

from penstock.db.connections.listener import DATABASE_UNAVAILABLE
from penstock.engine.uploads import PIECE_BYTES, Upload, Uploads, read_reference
from penstock.errors import Invalid, TooLarge
from penstock.models.handlers.exceptions import LeaseLost
from penstock.models.handlers.protocols import JobContext

# A new file is kept in memory up to this size; a larger one goes to a temporary file.
MEMORY_BYTES = 1024 * 1024
_OUTAGE_SECONDS = 0.5

_T = TypeVar("_T")


class File:
    """An upload that a handler has opened. In an `async def`, await its methods."""

    __slots__ = ("_piece", "content_type", "id", "size")

    def __init__(
        self, upload: UUID, content_type: str, size: int, piece: Callable[[int], Any]
    ) -> None:
        """`piece(n)` returns the nth piece or None, or an awaitable of that."""
        self.id = upload
        self.content_type = content_type
        self.size = size
        self._piece = piece

    async def read(self) -> bytes:
        """Return the whole content; use `chunks` for large files."""
        return b"".join([piece async for piece in self.chunks()])

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the content in pieces of at most 256 KiB."""
        for n in range(0, self.size, PIECE_BYTES):
            yield _whole(await self._piece(n // PIECE_BYTES), self.id)


class BlockingFile(File):
    """A `File` for a plain `def`, which awaits nothing."""

    __slots__ = ()

    def read(self) -> bytes:  # type: ignore[override]  # blocking, like the calls of a `Job`
        return b"".join(self.chunks())

    def chunks(self) -> Iterator[bytes]:  # type: ignore[override]
        for n in range(0, self.size, PIECE_BYTES):
            yield _whole(self._piece(n // PIECE_BYTES), self.id)


async def find_file(context: JobContext, reference: Any) -> Upload:
    """Find the upload that a handler opens, only among the uploads of its job's account.

    The payload may name any upload: a payload inserted by plain SQL was not checked.
    """
    upload = read_reference(reference)
    if upload is None:
        raise Invalid(
            'open() takes {"upload": id} or the id of an upload',
            code="invalid_upload",
            field="upload",
        )
    account = context.claimed.account or ""
    return await _patiently(context, lambda: context.uploads.find(upload, account=account))


async def read_piece(context: JobContext, upload: UUID, n: int) -> bytes | None:
    return await _patiently(context, lambda: context.uploads.piece(upload, n))


async def keep_file(context: JobContext, file: IO[bytes], content_type: str) -> dict[str, str]:
    account = context.claimed.account
    # If the answer is lost, the file is stored twice; upkeep deletes the unused copy.
    kept = await _patiently(
        context, lambda: context.uploads.create(file, content_type, account=account, quota=False)
    )
    return {"upload": str(kept.id)}


async def _patiently(context: JobContext, call: Callable[[], Awaitable[_T]]) -> _T:
    """Retry a call during an outage of the database, so that the handler continues to run."""
    while True:
        try:
            return await call()
        except DATABASE_UNAVAILABLE:
            if context.returned:
                raise LeaseLost from None
            await asyncio.sleep(_OUTAGE_SECONDS)


async def spooled(data: Any, uploads: Uploads) -> IO[bytes]:
    """Return the data that a handler attaches as an open file; a path is opened, not copied."""
    most_bytes = await uploads.most_bytes()
    if not hasattr(data, "__aiter__"):
        return await asyncio.to_thread(spooled_here, data, most_bytes)
    with _filling() as file:
        async for piece in data:
            _add(file, piece, most_bytes)
    return file


def spooled_here(data: Any, most_bytes: int) -> IO[bytes]:
    """Do the same for data without an asynchronous iterator."""
    if isinstance(data, os.PathLike):
        return open(data, "rb")  # noqa: PTH123  # of any path; the caller closes it
    with _filling() as file:
        for piece in _pieces(data):
            _add(file, piece, most_bytes)
    return file


@contextmanager
def _filling() -> Iterator[IO[bytes]]:
    """Yield a new file to fill. The caller closes it; it is closed here if filling it fails."""
    with ExitStack() as closing:
        yield closing.enter_context(_new_file())
        closing.pop_all()


def _new_file() -> IO[bytes]:
    return tempfile.SpooledTemporaryFile(MEMORY_BYTES)  # the caller closes it


def _pieces(data: Any) -> Iterable[Any]:
    if isinstance(data, bytes | bytearray | memoryview):
        return [data]
    if hasattr(data, "read"):
        return iter(lambda: data.read(PIECE_BYTES), b"")
    if isinstance(data, str) or not isinstance(data, Iterable):
        raise Invalid(
            f"attach() takes bytes, a Path, a file, or an iterator of bytes, not "
            f"{type(data).__name__}",
            code="invalid_upload",
            field="data",
        )
    return data


def _add(file: IO[bytes], piece: Any, most_bytes: int) -> None:
    if not isinstance(piece, bytes | bytearray | memoryview):
        raise Invalid(
            f"attach() takes bytes, but a piece is {type(piece).__name__}: encode texts first",
            code="invalid_upload",
            field="data",
        )
    file.write(piece)
    if file.tell() > most_bytes:
        raise TooLarge(
            f"a file may have at most {most_bytes} bytes",
            code="upload_too_large",
            field="data",
            most_bytes=most_bytes,
        )


def _whole(piece: bytes | None, of: UUID) -> bytes:
    if piece is None:
        raise Invalid(
            f"upload {of} was deleted while the handler read it",
            code="unknown_upload",
            field="upload",
        )
    return piece


class ProcessFiles:
    """The worker's side of file calls from a handler process, which sends them as JSON."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._file: IO[bytes] | None = None

    async def __call__(self, method: str, *args: Any) -> Any:
        uploads = self._context.uploads
        match method:
            case "open":
                upload = await find_file(self._context, *args)
                return [str(upload.id), upload.content_type, upload.size]
            case "read_piece":
                reference, n = args
                upload = await find_file(self._context, reference)
                return packed(await read_piece(self._context, upload.id, n))
            case "most_bytes":
                return await uploads.most_bytes()
            case "add_piece":
                self._file = self._file or _new_file()
                _add(self._file, unpacked(args[0]), await uploads.most_bytes())
                return None
            case _:
                file, self._file = self._file or _new_file(), None
                with file:
                    return await keep_file(self._context, file, *args)


def packed(piece: bytes | None) -> str | None:
    return None if piece is None else base64.b64encode(piece).decode()


def unpacked(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
