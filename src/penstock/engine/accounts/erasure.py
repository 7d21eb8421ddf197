"""Removing a person: everything but the books, in steps that hold nothing for long."""

from typing import Any

from penstock.db.adapters.caller_connection import Fetch
from penstock.engine.encoding.encode import refuse_nul
from penstock.errors import Conflict

# Each removes hundreds of jobs; this many would be half a billion.
_MOST_STEPS = 1_000_000
# A worker that is asked to stop a job has that long before upkeep ends it.
_BUSY_SECONDS = 10

Receipt = dict[str, Any]


class Erasure:
    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    async def erase(self, account: str) -> Receipt:
        """Remove an account's jobs, uploads and name; what was removed.

        Safe to repeat until it is through: what waits is cancelled and refunded, what runs is asked
        to stop, and while some of it has not ended, Conflict (`account_busy`) says how many.
        """
        refuse_nul(account, "account", code="invalid_account")
        for _ in range(_MOST_STEPS):
            [row] = await self._fetch("select penstock.erase_account($1) as step", (account,))
            step: Receipt = row["step"]
            done, live = step.pop("done"), step.pop("live")
            cancelled = step.pop("cancelled")
            if done:
                return step
            if live and not cancelled:
                raise Conflict(
                    f"{live} of the account's jobs still run; they were asked to stop",
                    code="account_busy",
                    running=live,
                    retry_after=_BUSY_SECONDS,
                    hint="Repeat this until they have ended; its keys open nothing any more.",
                )
        raise Conflict("jobs come in faster than they can be removed", code="account_busy")
