"""Files that payloads and results refer to as `{"upload": id}`, stored in pieces."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import IO, Any
from uuid import UUID

import asyncpg

from penstock.db.adapters.caller_connection import Fetch
from penstock.db.connections.driver_errors import fetching
from penstock.engine.encoding.encode import encode, refuse_nul
from penstock.engine.jobs.jobs import Batch
from penstock.engine.statements import Statements
from penstock.errors import Invalid, TooLarge

PIECE_BYTES = 256 * 1024
# How many files are written at once: each takes a connection that other calls need, too.
AT_ONCE = 3
# To which depth a payload is searched for references: as deep as a payload may be.
_DEEPEST = 64

Transaction = Callable[[], AbstractAsyncContextManager[asyncpg.Connection]]


@dataclass(frozen=True, slots=True)
class Upload:
    """The description of a file; its content is read piece by piece."""

    id: UUID
    account: str | None
    content_type: str
    size: int
    sha256: bytes


@dataclass(frozen=True, slots=True)
class Room:
    """How large a file may be, and how much more an account may store."""

    account: str | None
    most_bytes: int
    quota_bytes: int
    used_bytes: int

    @property
    def left(self) -> int | None:
        """None for files without an account, which have no quota."""
        return None if self.account is None else max(0, self.quota_bytes - self.used_bytes)

    def refuse_larger(self, size: int) -> None:
        """Refuse a file of this size before its content is sent, with the message of SQL."""
        if size > self.most_bytes:
            raise TooLarge(
                f"a file may have at most {self.most_bytes} bytes",
                code="upload_too_large",
                field="file",
                most_bytes=self.most_bytes,
            )
        if self.left is not None and size > self.left:
            raise TooLarge(
                f"the files of account {self.account} may have {self.quota_bytes} bytes together;"
                f" there are {self.used_bytes}",
                code="upload_quota_exceeded",
                field="file",
                quota_bytes=self.quota_bytes,
                used_bytes=self.used_bytes,
                hint="Delete some that no job needs any more.",
            )


class Uploads(Statements):
    def __init__(self, fetch: Fetch, transaction: Transaction) -> None:
        super().__init__(fetch)
        self._transaction = transaction
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def create(
        self, file: IO[bytes], content_type: str, *, account: str | None, quota: bool = True
    ) -> Upload:
        """Store a complete file, read from its beginning.

        `quota`: whether the account's quota applies. One short transaction: it waits for no client.
        """
        refuse_nul(account, "account", code="invalid_upload")
        # In a thread: hashing a large file takes long.
        size, digest = await asyncio.to_thread(_measured, file)
        async with self._turn, self._transaction() as conn:
            fetch = fetching(conn)
            [row] = await fetch(
                "select penstock.create_upload($1, $2, $3, $4, $5) as id",
                (account, content_type, size, digest, quota),
            )
            for n, piece in enumerate(_pieces(file)):
                await fetch("select penstock.add_upload_part($1, $2, $3)", (row["id"], n, piece))
        return Upload(row["id"], account, content_type, size, digest)

    async def room(self, account: str | None) -> Room:
        """What an account may upload now; storing a file checks the quota again."""
        [row] = await self._fetch(
            "select most_bytes, quota_bytes, used_bytes from penstock.upload_room($1)", (account,)
        )
        return Room(account, *row.values())

    async def most_bytes(self) -> int:
        """The largest size of a file, in bytes."""
        return (await self.room(None)).most_bytes

    async def find(self, upload: UUID, *, account: str | None = None) -> Upload:
        """A file's description. `account`: its owner, "" for none; None: any owner."""
        sql = "select id, account, content_type, size, sha256 from penstock.find_upload($1, $2)"
        [found] = await self._rows(Upload, sql, upload, account)
        return found

    async def pieces(self, upload: Upload, start: int = 0) -> AsyncIterator[bytes]:
        """Its content from byte `start` on; incomplete if it is deleted during the reading."""
        n, skip = divmod(start, PIECE_BYTES)
        while (n * PIECE_BYTES) < upload.size and (piece := await self.piece(upload.id, n)):
            yield piece[skip:]
            n, skip = n + 1, 0

    async def piece(self, upload: UUID, n: int) -> bytes | None:
        data: bytes | None
        [data] = await self._values("select penstock.read_upload_part($1, $2)", upload, n)
        return data

    async def delete(self, upload: UUID, *, account: str | None = None) -> None:
        await self._fetch("select penstock.delete_upload($1, $2)", (upload, account))

    async def refuse_foreign(
        self,
        kind: str,
        payload: Mapping[str, Any],
        account: str | None,
        *,
        index: int = 0,
        conn: Any = None,
    ) -> None:
        """Refuse a payload that refers to a missing upload, or to one of another account.

        Uploads that it refers to count as used from now on. Costs nothing without references.
        """
        paths = dict(references(payload))
        if not paths:
            return
        uploads = {path: read_reference(value) for path, value in paths.items()}
        ids = [upload for upload in uploads.values() if upload is not None]
        rows = await self._on(conn)(
            "select cast(id as text) as id from penstock.use_uploads("
            "cast($1 as text), cast($2 as text), cast(cast($3 as text) as jsonb),"
            " cast(cast($4 as text[]) as uuid[])) id",
            (kind, account, encode(payload, "payload"), [str(upload) for upload in ids]),
        )
        missing = {str(row["id"]) for row in rows}
        for path, upload in uploads.items():
            if upload is None or str(upload) in missing:
                raise Invalid(
                    f"{path} refers to an upload that is not there, or not of the same account",
                    code="unknown_upload",
                    field=path,
                    index=index,
                    hint="Upload it first, for the account of the job: POST /v1/uploads.",
                )

    async def refuse_foreign_batch(self, batch: Batch, *, conn: Any = None) -> None:
        """The same for many jobs. Only bodies that may contain a reference are searched."""
        for index, text in enumerate(batch.payloads):
            if '"upload"' in text:
                account = None if batch.account is None else batch.account[index]
                await self.refuse_foreign(
                    batch.kinds[index], json.loads(text), account, index=index, conn=conn
                )


def references(payload: Any, path: str = "payload", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The paths at which `payload` refers to uploads, and the values there."""
    if depth > _DEEPEST:
        return
    if type(payload) is dict or isinstance(payload, Mapping):
        if len(payload) == 1 and "upload" in payload:
            yield path, payload["upload"]
            return
        for key, value in payload.items():
            yield from references(value, f"{path}.{key}", depth + 1)
    elif isinstance(payload, list | tuple):
        for n, value in enumerate(payload):
            yield from references(value, f"{path}.{n}", depth + 1)


def read_reference(value: Any) -> UUID | None:
    """The id in `{"upload": id}`, in its text, or the id itself; None: it is no reference."""
    if isinstance(value, Mapping) and len(value) == 1:
        value = value.get("upload")
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _measured(file: IO[bytes]) -> tuple[int, bytes]:
    size, digest = 0, hashlib.sha256()
    for piece in _pieces(file):
        size += len(piece)
        digest.update(piece)
    return size, digest.digest()


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    while piece := file.read(PIECE_BYTES):
        yield piece
