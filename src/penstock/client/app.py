"""`Penstock`: what an app declares, and its access to the database."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from os import environ
from pathlib import Path
from typing import Any, Literal, TypeVar
from uuid import UUID

from penstock.base.settings import Settings
from penstock.client.accounts import Accounts
from penstock.client.config import source_location
from penstock.client.config.declare import Item, declare
from penstock.client.config.declared import (
    Duration,
    Plan,
    Queue,
    Retries,
    make_plan,
    make_queue,
    name_of,
    read_address,
)
from penstock.client.drive import driver
from penstock.client.engines import Engines, connect, join_database, leave_database
from penstock.client.kind import Kind, P, R, make_kind
from penstock.client.sources import Price, Source, Split
from penstock.client.sync import Sync
from penstock.client.testing import Testing
from penstock.client.tickets import Batch, Ticket, read_id
from penstock.client.token import Right, make_token
from penstock.engine.engine import Engine
from penstock.engine.options.forms import Text, Word
from penstock.engine.options.queue import Drive, Order
from penstock.errors import Misconfigured
from penstock.failures.classify import Extension
from penstock.models.handlers.handler import Handler
from penstock.security.callback_token import DEFAULT_URL, Outside
from penstock.security.roots import moved, read_roots

BACKGROUND_SECONDS = 5.0
"""How long jobs that run in this process (`inline`) may go on when the app is closed."""

Classifier = TypeVar("Classifier", bound=Extension)
_Declared = TypeVar("_Declared", bound=Item)


class Penstock:
    """The queues, plans and kinds of job of one app. Nothing is opened before the first use.

    dsn       the database, instead of PENSTOCK_DSN; without either, an embedded one
    home      the folder of the embedded one, instead of PENSTOCK_HOME (./.penstock)
    name      the app's name in the database, by which it owns its declarations; by default the
              module's name
    accounts  "strict" refuses accounts that were not created before, "open" creates them at their
              first submit. It applies to all apps of the database; None leaves it as it is (open)
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        home: str | Path | None = None,
        name: str | None = None,
        accounts: Literal["open", "strict"] | None = None,
    ) -> None:
        Word(("open", "strict")).read(accounts, "accounts")
        self.location = source_location.of_caller()
        self.name = Text().read(name, "name") or self.location.app
        self.queues: dict[str, Queue] = {}
        self.plans: dict[str, Plan] = {}
        self.kinds: dict[str, Kind[..., Any]] = {}
        self.accounts = Accounts(self.engine)
        self.sync = Sync(self)
        self.base = DEFAULT_URL
        """The address of the API in this process, if it serves one: the default for callbacks."""
        self._dsn = read_address(dsn, "dsn")
        self._home = home
        self._strict = None if accounts is None else accounts == "strict"
        self._settings: Settings | None = None
        self._engines = Engines(self._connect, lambda: driver(self.settings))
        self._extensions: list[Extension] = []
        self._background: set[asyncio.Task[None]] = set()
        self._version = 0  # incremented by each declaration
        self._declared = 0  # the version that the database knows

    @property
    def settings(self) -> Settings:
        """The settings of the environment and the arguments, read at the first use."""
        if self._settings is None:
            settings = Settings.from_environment(environ, Path.cwd())
            if self._dsn is not None:
                settings = replace(settings, dsn=self._dsn)
            if self._home is not None:
                settings = replace(settings, home=Path.cwd() / Path(self._home).expanduser())
            self._settings = settings
        return self._settings

    def queue(  # noqa: PLR0913  # one per option of the contract
        self,
        name: str,
        *,
        concurrency: int | None = None,
        rate: str | None = None,
        burst: int | None = None,
        order: Order | None = None,
        aging_step: Duration | None = None,
        timeout: Duration | None = None,
        stale_after: Duration | None = None,
        stuck_after: Duration | None = None,
        retry: Retries | None = None,
        recovery: int | None = None,
        retention: Duration | None = None,
        retention_failed: Duration | None = None,
        inline: bool = False,
        local_only: bool = False,
        drive: Drive | None = None,
    ) -> Queue:
        """Declare a queue.

        concurrency       how many of its jobs may run at once; None: no limit
        rate, burst       how many jobs may start, like "500/min", and how many of them at once
        order             aging (a priority point is worth one aging_step of waiting), strict, fair
        aging_step        10s
        timeout           how long one attempt may take; 2m
        stale_after       a running job without progress for this long is shown as stale; 3m
        stuck_after       a running job without progress for this long is recovered; 5m, or the
                          timeout if that is longer
        retry             Retries(attempts=3, backoff="linear", delay="5m")
        recovery          how often a job may lose its worker; 3
        retention         how long finished jobs are kept, or "forever"; 7d
        retention_failed  how long failed jobs are kept, or "forever"; 90d
        inline            run its jobs in the process that submits them
        local_only        its model jobs may only call addresses in private networks
        drive             "worker", or "http" if there are no standing workers: calls of the API
                          run its jobs, and a submit starts the first call
        """
        queue = make_queue(name, source_location.of_caller(), dict(locals()))
        return self._add("queue", self.queues, queue)

    def plan(  # noqa: PLR0913  # one per option of the contract
        self,
        name: str,
        *,
        priority: int | None = None,
        concurrency: int | None = None,
        per_hour: int | None = None,
        weight: int | None = None,
        first_job: int | None = None,
        default: bool = False,
    ) -> Plan:
        """Declare a plan, which accounts follow.

        priority     of its accounts' jobs, -1000 to 1000, lower first; 0
        concurrency  how many jobs of one account may run at once; None: no limit
        per_hour     how many jobs one account may submit in an hour; None: no limit
        weight       an account's share of a queue with order="fair"; 1
        first_job    added to the priority of an account's first job ever, like -20; 0
        default      new accounts get this plan; without any, the first plan that was declared
        """
        plan = make_plan(name, source_location.of_caller(), dict(locals()))
        return self._add("plan", self.plans, plan)

    def job(  # noqa: PLR0913  # one per option of the contract
        self,
        queue: Queue | str,
        *,
        name: str | None = None,
        dedupe: Source | None = None,
        topic: Source | None = None,
        account: Source | None = None,
        priority_offset: int = 0,
        timeout: Duration | None = None,
        attempts: int | None = None,
        isolation: Literal["process"] | None = None,
        memory: str | int | None = None,
        price: Price | None = None,
        split: Split | None = None,
        webhook: str | None = None,
    ) -> Callable[[Callable[P, R]], Kind[P, R]]:
        """Declare a kind of job; the function under it is its handler.

        A plain `def` runs in a thread. An `async def` shares the event loop of its worker with all
        others: it has to await whatever takes long, otherwise it blocks the other jobs there.

        queue            where its jobs wait: a queue, or its name
        name             the name of the kind; by default the function's name
        dedupe           a parameter, Constant("…") or function of the payload: at most one live
                         job per value
        topic, account   a parameter, Constant("…"), or a function of the payload
        priority_offset  added to the priority of each of its jobs
        timeout          how long one attempt may take, instead of the queue's timeout
        attempts         how often a job may fail, instead of the queue's number
        isolation        "process": a plain `def` runs in a process of its own
        memory           how much memory that process may use, like "512MB"
        price            in credits: a number, a function of the payload, Field("…", trusted=True),
                         or {"per": "images", "by": "quality", "standard": 1, "high": 3}
        split            ("images", 4): a larger request becomes a batch of jobs with so many each
        webhook          an address of yours that gets a signed message when a job has finished
        """
        given = dict(locals())  # each option by its name
        waits_in = name_of(queue, self.queues)

        def declared(function: Callable[P, R]) -> Kind[P, R]:
            kind = make_kind(self, function, waits_in, given)
            kind.handler.extensions = self._extensions
            kind.handler.outside = self.outside
            return self._add("job kind", self.kinds, kind)

        return declared

    def outside(self) -> Outside:
        """Return the signing secrets and the address for callbacks.

        Raises Misconfigured without a secret.
        """
        settings = self.settings
        base = settings.public_url or self.base
        return Outside(read_roots(settings), base, settings.allow_private)

    def ticket(self, job_id: UUID | str) -> Ticket:
        """Return the ticket of a job by its id."""
        return Ticket(read_id(job_id, "job"), app=self)

    def batch(self, batch_id: UUID | str) -> Batch:
        """Return a batch by its id (`ticket.batch`)."""
        return Batch(read_id(batch_id, "batch"), app=self)

    def token(
        self,
        *,
        job: UUID | str | None = None,
        topic: str | None = None,
        account: str | None = None,
        ttl: Duration = "1h",
        allow: Sequence[Right] = ("read",),
    ) -> str:
        """Make a short-lived token for a page: it opens this one job, topic or account."""
        roots = read_roots(self.settings)
        return make_token(roots, job=job, topic=topic, account=account, ttl=ttl, allow=allow)

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by kind, as a worker needs them."""
        return {name: kind.handler for name, kind in self.kinds.items()}

    def classify(self, extension: Classifier) -> Classifier:
        """Register a function that classifies your own errors.

        It returns a class, a verdict, or None if it does not know the error:

            @app.classify
            def ours(error):
                return "overloaded" if isinstance(error, vendor.Busy) else None

        It is called with each exception of a chain, before Penstock's own rules. The classes are
        those of `penstock.failures.verdict.CLASSES`.
        """
        try:
            inspect.signature(extension).bind(None)
        except TypeError:
            raise Misconfigured(
                "app.classify needs a function of one argument, the exception, that returns a class"
                ' like "overloaded", or None'
            ) from None
        self._extensions.append(extension)
        return extension

    async def dsn(self) -> str:
        """Return the address of the database; start it if it is the embedded one."""
        return await join_database(self.settings, self)

    async def engine(self) -> Engine:
        """Return the engine of the running loop, on a database that knows all declarations.

        The first use connects, starts an embedded database and migrates its schema. Several
        loops, threads and processes may do so at once. On a server, an old schema is refused.
        """
        engine = await self._engines.get()
        if self._declared != self._version:
            await self.declare(engine)
        return engine

    async def declare(self, engine: Engine) -> None:
        """Send this app's declarations to the database. Cheap if nothing has changed."""
        version = self._version
        items: list[Item] = [*self.queues.values(), *self.plans.values(), *self.kinds.values()]
        await declare(engine, items, self.name, self.location, strict=self._strict)
        self._declared = version

    def changed(self) -> None:
        """Note that there are declarations that the database does not know yet."""
        self._version += 1

    def may_ride(self, queue: str) -> bool:
        """Whether the next commit may carry the wake-up, because the last one is long enough ago.

        False in a thread without an event loop of this app.
        """
        opened = self._engines.current()
        return opened is not None and opened.waker.may_join_commit(queue)

    def wake(self, queue: str) -> None:
        """Notify idle workers that a queue has work, in the background of the running loop."""
        if opened := self._engines.current():
            opened.waker.notify(queue)

    def drive(self, queue: str) -> None:
        """Start a call that drives a queue, in the background of the running loop."""
        if opened := self._engines.current():
            opened.driver.notify(queue)

    def refuse_undriven(self, queue: str) -> None:
        """Refuse a submit that could not start a call; not in a test, which runs its own jobs."""
        if self.settings.public_url is None and not self.is_tested:
            raise Misconfigured(
                f'queue {queue} is driven by calls (drive="http"), and PENSTOCK_PUBLIC_URL is not '
                "set: set it to the address at which the API is reached, like "
                "https://queue.example.org"
            )

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background of the running loop."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    @property
    def is_tested(self) -> bool:
        """Whether the app uses a test's database now."""
        return Testing.is_open(self)

    def testing(self) -> Testing:
        """`async with app.testing() as t: …`: a separate database and a movable clock."""
        return Testing(self)

    async def move(self, dsn: str | None) -> None:
        """Use another database from now on; None returns to the app's own."""
        await self.close()
        self._settings = None if dsn is None else moved(self.settings, dsn)
        self._declared = -1

    async def close(self) -> None:
        """Send pending messages, and close the connections and the embedded database.

        This closes the connections of this loop and of `sync`; other loops close theirs when they
        end. The next use of the app opens it again.
        """
        if self._background:
            _, late = await asyncio.wait(self._background, timeout=BACKGROUND_SECONDS)
            for task in late:
                task.cancel()
        await self._engines.close()
        await self.sync.close_from_loop()
        if not self._engines.any_open:
            await leave_database(self.settings, self)

    async def _connect(self) -> Engine:
        return await connect(await self.dsn(), self.declare, own=self.settings.dsn is None)

    def _add(self, what: str, known: dict[str, Any], new: _Declared) -> _Declared:
        before = known.get(new.name)
        if before is not None and not new.location.again(before.location):
            raise Misconfigured(
                f"{what} {new.name} is declared twice: at {before.location} and at {new.location}. "
                "Give one of them another name."
            )
        known[new.name] = new
        self.changed()
        return new
