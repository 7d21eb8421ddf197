"""`app.accounts`: who may use the app's jobs, what they may use, and their credits.

    await app.accounts.grant("u1", 100, ref="payment-17")
    await app.accounts.show("u1")

`app.sync.accounts` has the same calls for code without an event loop.
"""

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from penstock.client.blocking import LoopThread, step
from penstock.db.adapters.caller_connection import blocks
from penstock.engine.accounts.accounts import Answers
from penstock.engine.engine import Engine
from penstock.engine.statements import Answer
from penstock.errors import Invalid

if TYPE_CHECKING:
    from penstock.client.app import Penstock

P = ParamSpec("P")
R = TypeVar("R")


class Accounts:
    """Accounts, credits and plans of the app's database."""

    def __init__(self, engine: Callable[[], Awaitable[Engine]]) -> None:
        """Use `app.accounts`."""
        self._engine = engine

    async def create(self, name: str, plan: str | None = None) -> Answer:
        """Make an account, with the default plan unless told; as `show` shows it."""
        accounts = (await self._engine()).accounts
        await accounts.create(name, plan=plan)
        return await accounts.show(name)

    async def show(self, name: str) -> Answer:
        """Plan and balance of an account, and how much of its limits it uses."""
        return await (await self._engine()).accounts.show(name)

    async def set_plan(self, name: str, plan: str) -> Answer:
        """Change an account's plan; its limits apply at once to what waits."""
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

        The same `ref` (a payment's id) again changes nothing: the answer is `replayed`.
        """
        engine = await self._engine()
        return await engine.accounts.grant(name, amount, reason=reason, ref=ref, conn=conn)

    async def deduct(
        self, name: str, amount: int, *, ref: str, reason: str | None = None, conn: Any = None
    ) -> Answer:
        """Take credits for something that is no job, once per `ref`.

        InsufficientCredits, with `balance` and `required`, where there are too few.
        """
        engine = await self._engine()
        return await engine.accounts.deduct(name, amount, ref=ref, reason=reason, conn=conn)

    async def refund(
        self, name: str, *, ref: str, reason: str | None = None, conn: Any = None
    ) -> Answer:
        """Give back what was deducted under this `ref`, all of it, once."""
        engine = await self._engine()
        return await engine.accounts.refund(name, ref=ref, reason=reason, conn=conn)

    async def ledger(self, name: str, *, limit: int = 100, before: int | None = None) -> Answers:
        """Every movement of an account's credits, newest first.

        The next page begins `before` the last id of this one.
        """
        engine = await self._engine()
        return await engine.accounts.ledger(name, limit=limit, before=before)

    async def list(self, *, limit: int = 100, after: str | None = None) -> Answers:
        """Accounts by name; the next page begins `after` the last name of this one."""
        return await (await self._engine()).accounts.list(limit=limit, after=after)

    async def plans(self) -> Answers:
        """Every plan as it is in force, with what was edited at run time."""
        return await (await self._engine()).accounts.plans()

    async def edit_plan(self, /, name: str, **options: Any) -> None:
        """Override a plan at run time, over restarts; None goes back to what is declared.

        The options are those of `app.plan`.
        """
        await (await self._engine()).accounts.edit_plan(name, **options)

    async def reset_plan(self, name: str) -> None:
        """Drop every override."""
        await (await self._engine()).accounts.reset_plan(name)


def _blocking(
    call: Callable[Concatenate[Accounts, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate["SyncAccounts", P], R]:
    """The same call for a caller without an event loop."""

    def blocked(self: "SyncAccounts", /, *args: P.args, **kwargs: P.kwargs) -> R:
        answer: R = self.run(call, *args, **kwargs)
        return answer

    blocked.__name__, blocked.__doc__ = call.__name__, call.__doc__
    blocked.__signature__ = inspect.signature(call)  # type: ignore[attr-defined]
    return blocked


class SyncAccounts:
    """`app.sync.accounts`: each call blocks until it is done. `conn` is a blocking connection."""

    def __init__(self, app: "Penstock", thread: LoopThread) -> None:
        self._app = app
        self._thread = thread

    create = _blocking(Accounts.create)
    show = _blocking(Accounts.show)
    set_plan = _blocking(Accounts.set_plan)
    grant = _blocking(Accounts.grant)
    deduct = _blocking(Accounts.deduct)
    refund = _blocking(Accounts.refund)
    ledger = _blocking(Accounts.ledger)
    list = _blocking(Accounts.list)
    plans = _blocking(Accounts.plans)
    edit_plan = _blocking(Accounts.edit_plan)
    reset_plan = _blocking(Accounts.reset_plan)

    def run(self, call: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **options: Any) -> Any:
        """Make one of the calls above."""
        conn = options.get("conn")
        if conn is None:
            return self._thread.run(call(self._app.accounts, *args, **options))
        refuse_waiting(conn, f"app.accounts.{call.__name__}(...)")
        engine: Engine = self._thread.run(self._app.engine())

        async def there() -> Engine:
            return engine

        # The caller's connection lives in the caller's thread; what uses it waits for no loop.
        return step(call(Accounts(there), *args, **options))


def refuse_waiting(conn: Any, instead: str) -> None:
    """A connection that is used with `await` is no use to a caller that blocks."""
    if not blocks(conn):
        raise Invalid(
            f"conn is a connection for an event loop: await {instead} there, or give app.sync a "
            "blocking connection",
            code="invalid_connection",
            field="conn",
        )
