"""`app.accounts`: the accounts for which jobs run, with their plans, limits and credits.

    await app.accounts.grant("u1", 100, ref="payment-17")
    await app.accounts.show("u1")

`app.sync.accounts` has the same calls for code without an event loop.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from penstock.engine.accounts.accounts import Answers
from penstock.engine.engine import Engine
from penstock.engine.statements import Answer


class Accounts:
    """Accounts, credits and plans of the app's database."""

    def __init__(self, engine: Callable[[], Awaitable[Engine]]) -> None:
        """Use `app.accounts`."""
        self._engine = engine

    async def create(self, name: str, plan: str | None = None) -> Answer:
        """Create an account, with the default plan if none is given; return it like `show`."""
        accounts = (await self._engine()).accounts
        await accounts.create(name, plan=plan)
        return await accounts.show(name)

    async def show(self, name: str) -> Answer:
        """Return an account's plan and balance, and how much of its limits it uses."""
        return await (await self._engine()).accounts.show(name)

    async def set_plan(self, name: str, plan: str) -> Answer:
        """Change an account's plan; its limits apply at once to waiting jobs."""
        accounts = (await self._engine()).accounts
        await accounts.set_plan(name, plan)
        return await accounts.show(name)

    async def grant(
        self,
        name: str,
        amount: int,
        *,
        reason: str | None = None,
        ref: str | None = None,
        conn: Any = None,
    ) -> Answer:
        """Give an account credits: bought, or a present.

        A second call with the same `ref` (a payment's id) changes nothing: its answer is
        `replayed`.
        """
        return await (await self._engine()).accounts.grant(
            name, amount, reason=reason, ref=ref, conn=conn
        )

    async def deduct(
        self, name: str, amount: int, *, ref: str, reason: str | None = None, conn: Any = None
    ) -> Answer:
        """Take credits for something that is no job, once per `ref`.

        Raises InsufficientCredits, with `balance` and `required`, if there are too few.
        """
        return await (await self._engine()).accounts.deduct(
            name, amount, ref=ref, reason=reason, conn=conn
        )

    async def refund(
        self, name: str, *, ref: str, reason: str | None = None, conn: Any = None
    ) -> Answer:
        """Refund all that was deducted under this `ref`, once."""
        return await (await self._engine()).accounts.refund(name, ref=ref, reason=reason, conn=conn)

    async def ledger(self, name: str, *, limit: int = 100, before: int | None = None) -> Answers:
        """Return every change of an account's credits, newest first.

        For the next page, pass the last id of this one as `before`.
        """
        return await (await self._engine()).accounts.ledger(name, limit=limit, before=before)

    async def list(self, *, limit: int = 100, after: str | None = None) -> Answers:
        """Return accounts by name; for the next page, pass the last name as `after`."""
        return await (await self._engine()).accounts.list(limit=limit, after=after)

    async def plans(self) -> Answers:
        """Return every plan as it is in force, with the options that were edited at run time."""
        return await (await self._engine()).accounts.plans()

    async def edit_plan(self, /, name: str, **options: Any) -> None:
        """Override options of a plan; None returns an option to its declared value.

        The overrides survive restarts. The options are those of `app.plan`.
        """
        await (await self._engine()).accounts.edit_plan(name, **options)

    async def reset_plan(self, name: str) -> None:
        """Remove all overrides of a plan."""
        await (await self._engine()).accounts.reset_plan(name)
