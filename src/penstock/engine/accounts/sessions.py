"""Sessions and tokens of browsers: which of them ended early (sessions.sql)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from penstock.engine.encoding.encode import refuse_nul
from penstock.engine.statements import Statements


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What decides whether a session or a token ended early."""

    session: str | None = None
    """The id of the dashboard session that this is, or that it was made in."""
    account: str | None = None
    """The account that a token is for, by name."""
    issued: float | None = None
    """When the token was made, in seconds."""


class Grants(Statements):
    async def end_session(self, session: str, expires: float) -> None:
        """End a session: no server accepts its cookie any more. Safe to repeat."""
        await self._fetch("select penstock.end_session($1, $2)", (session, _moment(expires)))

    async def are_over(self, grants: Sequence[Grant]) -> list[bool]:
        """For each: whether it was signed out, or its account was erased since."""
        for grant in grants:
            refuse_nul(grant.account, "account")
        over = await self._values(
            "select n from penstock.find_revoked_grants($1, $2, $3) n",
            [grant.session for grant in grants],
            [grant.account for grant in grants],
            [None if grant.issued is None else _moment(grant.issued) for grant in grants],
        )
        return [n in over for n in range(1, len(grants) + 1)]


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
