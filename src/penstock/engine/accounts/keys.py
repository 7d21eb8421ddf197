"""Keys of the HTTP API: shown once, stored as a hash, found by the part that is not secret."""

import hashlib
import hmac
import secrets
import zlib
from dataclasses import dataclass
from datetime import datetime, timedelta

from penstock.engine.encoding.encode import refuse_nul
from penstock.engine.statements import Answer, Statements

PREFIX = "ps_"
_ID_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_ID_LENGTH = 12
_SECRET_BYTES = 32
_SUM_LENGTH = 8


@dataclass(frozen=True, slots=True)
class Key:
    """What is stored of a key; never its secret."""

    id: str
    kind: str
    account: str | None
    secret_hash: bytes
    expires_at: datetime | None
    revoked_at: datetime | None
    over: bool
    """Revoked or expired, by the database's clock."""
    holder: str
    """The account; or, for other keys, the first key of a chain of rotations."""

    def fits(self, secret: str) -> bool:
        return hmac.compare_digest(self.secret_hash, _hash(secret))


def parts(key: str) -> tuple[str, str] | None:
    """Id and secret of `ps_app_4f8kd02mxyzn_…`; None if it is not a Penstock key, or mistyped."""
    parts = key.removeprefix(PREFIX).split("_", 2)
    if not key.startswith(PREFIX) or len(parts) != 3 or not all(parts):  # noqa: PLR2004
        return None
    if key[-_SUM_LENGTH:] != _sum(key[:-_SUM_LENGTH]):
        return None
    return parts[1], parts[2]


class Keys(Statements):
    async def create(
        self,
        kind: str,
        *,
        account: str | None = None,
        name: str | None = None,
        expires: timedelta | None = None,
    ) -> tuple[str, Answer]:
        """Make a key. Return the key, which is shown only now, and what is stored of it."""
        for field, text in (("account", account), ("name", name), ("kind", kind)):
            refuse_nul(text, field)
        key, key_id, secret = _make(kind)
        return key, await self._value(
            dict,
            "select penstock.create_key($1, $2, $3, $4, $5, $6)",
            *(key_id, kind, _hash(secret), account, name, expires),
        )

    async def rotate(self, key_id: str, *, overlap: timedelta) -> tuple[str, Answer]:
        """Make a key that replaces this one, which stays valid for `overlap` more."""
        refuse_nul(key_id, "id")
        old = await self.find(key_id)
        key, new_id, secret = _make("app" if old is None else old.kind)
        sql = "select penstock.rotate_key($1, $2, $3, $4)"
        return key, await self._value(dict, sql, key_id, new_id, _hash(secret), overlap)

    async def find(self, key_id: str) -> Key | None:
        keys = await self._rows(
            Key,
            "select id, kind, account, secret_hash, expires_at, revoked_at, is_over, holder"
            " from penstock.find_key($1)",
            key_id,
        )
        return keys[0] if keys else None

    async def used(self, key_ids: list[str]) -> None:
        """Record that these keys were used just now."""
        await self._fetch("select penstock.touch_keys($1)", (key_ids,))

    async def list(
        self, *, account: str | None = None, limit: int = 1_000, after: str | None = None
    ) -> list[Answer]:
        """Newest first; the next page begins `after` the last id of this one."""
        refuse_nul(account, "account")
        sql = "select k as key from penstock.list_keys($1, $2, $3) k"
        return await self._values(sql, account, limit, after)

    async def revoke(self, key_id: str) -> Answer:
        """Revoke a key at once. Safe to repeat."""
        refuse_nul(key_id, "id")
        return await self._value(dict, "select penstock.revoke_key($1)", key_id)


def _make(kind: str) -> tuple[str, str, str]:
    """A key, its id and its secret. It ends with a checksum that finds typing errors offline."""
    key_id = "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_LENGTH))
    begun = f"{PREFIX}{kind}_{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    key = begun + _sum(begun)
    return key, key_id, key.split("_", 3)[3]


def _sum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _hash(secret: str) -> bytes:
    # One round is enough: from its hash, a secret of 256 random bits cannot be guessed.
    return hashlib.sha256(secret.encode()).digest()
