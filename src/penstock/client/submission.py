"""A submit and its options: `mark.using(account="u1", delay="5m").submit(answer="…")`."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Never

from penstock.client.config.declared import Duration
from penstock.client.inline import start
from penstock.client.tickets import BatchTicket, Ticket
from penstock.db.adapters.caller_connection import borrow
from penstock.db.adapters.caller_errors import is_two_phase
from penstock.engine.encoding.encode import encode, encode_checked, refuse_nul
from penstock.engine.engine import Engine
from penstock.engine.jobs.jobs import Batch, NewJob, Submitted, refuse_odd
from penstock.engine.options.forms import Seconds
from penstock.engine.options.submit import JOB, SUBMIT
from penstock.engine.states import JobStatus
from penstock.errors import Invalid, Refused
from penstock.net.public_addresses import read_public, refuse_private

if TYPE_CHECKING:
    from penstock.client.kind import Kind

_OF_THE_SUBMIT = {option.name for option in SUBMIT} - {option.name for option in JOB}
_LENGTHS = {option.name: option.form for option in JOB if isinstance(option.form, Seconds)}


class Submission:
    """A kind of job with options for the next submit. Can be kept and used again."""

    def __init__(self, kind: "Kind[..., Any]", given: Mapping[str, Any]) -> None:
        self.kind = kind
        self._given = given
        # Those that the job has, by the names of NewJob.
        self._options = {
            option: value for option, value in given.items() if option not in _OF_THE_SUBMIT
        }

    def using(  # noqa: PLR0913  # one per option of the contract
        self,
        *,
        account: str | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        dedupe_key: str | None = None,
        topic: str | None = None,
        price: int | None = None,
        max_attempts: int | None = None,
        timeout: Duration | None = None,
        expires: Duration | None = None,
        metadata: Mapping[str, Any] | None = None,
        webhook_url: str | None = None,
        idempotency_key: str | None = None,
        conn: Any = None,
    ) -> "Submission":
        """The same with more options; what is not said stays as it was.

        account          whose job it is, instead of what the kind says
        priority         -1000 to 1000, lower first, instead of the plan's
        delay, run_at    when it is due: after a time, or at a moment with a time zone
        dedupe_key       jobs of one kind and account with the same key are one while it lives
        topic            what it belongs to, to watch many jobs together
        price            in credits, instead of what the kind says; of a split request, for all
        max_attempts     how often it may fail
        timeout          how long one start may take
        expires          not started by then: failed, `expired`
        metadata         a small JSON object that comes back with the job
        webhook_url      an https:// address that is told of its end; a public one, unless
                         PENSTOCK_ALLOW_PRIVATE is set
        idempotency_key  a repeated submit with this key answers the first one's job
        conn             your own connection: the job exists when your transaction commits
        """
        given = {option: value for option, value in locals().items() if value is not None}
        del given["self"]
        for option, form in _LENGTHS.items():
            if option in given:
                try:
                    given[option] = form.length(given[option], option)
                except Invalid as error:
                    error.code = "invalid_job" if error.code == "invalid_option" else error.code
                    raise
        if webhook_url is not None:
            # Where its name leads is looked at when it is called.
            read_public(webhook_url, allow_private=self.kind.app.settings.allow_private)
        given = {**self._given, **given}
        if "delay" in given and "run_at" in given:
            raise Invalid(
                "delay and run_at exclude one another: give a time to wait, or a moment",
                code="invalid_job",
                field="run_at",
            )
        return Submission(self.kind, given)

    async def submit(self, /, *positions: Never, **payload: Any) -> Ticket:
        """Accept one job, and come back at once with its ticket; a BatchTicket with `split`."""
        self.refuse_positions(positions)
        job = self.new_job(payload)
        await self.refuse_private_webhook()
        ticket = await self.send(await self.kind.app.engine(), job)
        await self._start([ticket])
        return ticket

    async def submit_many(self, rows: Iterable[Mapping[str, Any]]) -> list[Ticket]:
        """Accept any number of jobs, all or none, in one transaction; tickets in order.

        Those that are new form one batch, `ticket.batch`; one with a live twin is in none of it.
        """
        batch = self.new_batch(rows)
        if not batch.kinds:
            return []
        await self.refuse_private_webhook()
        tickets = await self.send_many(await self.kind.app.engine(), batch)
        await self._start(tickets)
        return tickets

    async def refuse_private_webhook(self) -> None:
        """Before anything is written: an address whose name leads into the operator's network."""
        url = self._given.get("webhook_url")
        if url is not None:
            await refuse_private(url, allow_private=self.kind.app.settings.allow_private)

    async def _start(self, tickets: list[Ticket]) -> None:
        if self.kind.inline or self.kind.driven:
            await start(self.kind, tickets, is_committed=self.conn is None)

    @property
    def conn(self) -> Any:
        return self._given.get("conn")

    def refuse_positions(self, positions: tuple[Any, ...]) -> None:
        """Later versions of a handler may have its fields in another order."""
        if positions:
            names = self.kind.parameters.names
            like = f"submit({names[0]}=...)" if names else "submit()"
            raise Invalid(
                f"payloads are given by name: {like}, for a job of kind {self.kind.name}",
                code="invalid_payload",
                field="payload",
            )

    def new_job(self, payload: Mapping[str, Any]) -> NewJob:
        """What is asked for, checked as far as it can be without the database."""
        checked = self._checked(payload)
        computed = self.kind.sources.compute(checked)
        return NewJob(kind=self.kind.name, payload=checked, **{**computed, **self._options})

    def new_batch(self, rows: Iterable[Mapping[str, Any]]) -> Batch:
        """The same for many. What is said for all of them is checked once."""
        if "idempotency_key" in self._given:
            raise Invalid(
                "idempotency_key is for one job: use submit, or give each of many a dedupe_key",
                code="invalid_job",
                field="idempotency_key",
            )
        with _naming_rows():
            payloads = [self._checked(row, index) for index, row in enumerate(rows)]
        n = len(payloads)
        options = dict(self._options)
        refuse_odd(NewJob(kind=self.kind.name, **options))
        if "metadata" in options:
            options["metadata"] = encode(options["metadata"], "metadata")
        with _naming_rows():
            columns: dict[str, Any] = self._computed(payloads)
            texts = [
                encode_checked(payload, "payload", index=index)
                for index, payload in enumerate(payloads)
            ]
        columns.update({option: [value] * n for option, value in options.items()})
        return Batch(kinds=[self.kind.name] * n, payloads=texts, **columns)

    def _checked(self, payload: Mapping[str, Any], index: int = 0) -> dict[str, Any]:
        return self.kind.sources.complete(self.kind.parameters.check(payload, index=index))

    def _computed(self, payloads: list[dict[str, Any]]) -> dict[str, list[str | int | None]]:
        """What the app's functions return for each payload, as columns."""
        sources = self.kind.sources
        if not sources.computed:
            return {}
        rows = [sources.compute(payload, index=n) for n, payload in enumerate(payloads)]
        for index, row in enumerate(rows):
            for option, value in row.items():
                if isinstance(value, str):
                    refuse_nul(value, option, index=index)
        return {field: [row.get(field) for row in rows] for field in sources.computed}

    async def send(self, engine: Engine, job: NewJob) -> Ticket:
        """Hand a checked job to the database."""
        self._refuse_undriven()
        await engine.uploads.refuse_foreign(job.kind, job.payload, job.account, conn=self.conn)
        queue = self.kind.queue
        # With the commit, which saves a way to the server and back; the caller's own commit too.
        rides = self.conn is not None or self.kind.app.may_ride(queue)
        wakes = rides and (self.conn is None or not is_two_phase(self.conn))
        submitted = await engine.jobs.submit(
            job,
            idempotency_key=self._given.get("idempotency_key"),
            wake=queue if wakes else None,
            conn=self.conn,
        )
        if not rides:
            await self._wake([submitted])
        ticket = self._ticket(submitted)
        if not submitted.ids:
            return ticket
        # Where a position in the queue is known, it is the first one's.
        later = replace(ticket, position=None, eta_seconds=None)
        tickets = (ticket, *(replace(later, id=job_id) for job_id in submitted.ids[1:]))
        return BatchTicket(**_fields(ticket), tickets=tickets)

    async def send_many(self, engine: Engine, batch: Batch) -> list[Ticket]:
        self._refuse_undriven()
        with _naming_rows(but=self._options):
            await engine.uploads.refuse_foreign_batch(batch, conn=self.conn)
            submitted = await engine.jobs.submit_batch(batch, batched=True, conn=self.conn)
        await self._wake(submitted)
        return [self._ticket(each) for each in submitted]

    def _refuse_undriven(self) -> None:
        """Before anything is written: what nobody could be called for would wait for long."""
        if self.kind.driven:
            self.kind.app.refuse_undriven(self.kind.queue)

    async def _wake(self, submitted: list[Submitted]) -> None:
        """Notify idle workers, if there is anything to start now."""
        if not any(
            job.status is JobStatus.QUEUED and not job.deduplicated and not job.replayed
            for job in submitted
        ):
            return
        if self.conn is None:
            self.kind.app.wake(self.kind.queue)
        elif not is_two_phase(self.conn):
            # Postgres sends it when the caller commits, and not at all when he rolls back.
            await borrow(self.conn)(
                "select penstock.wake_workers(cast($1 as text[])) as woken", ([self.kind.queue],)
            )

    def _ticket(self, submitted: Submitted) -> Ticket:
        # By position: for each of many, a dict of names would take as long as the ticket itself.
        return Ticket(
            submitted.id,
            self.kind.name,
            submitted.deduplicated,
            submitted.replayed,
            submitted.position,
            submitted.eta_seconds,
            submitted.balance,
            submitted.batch,
            app=self.kind.app,
        )


def _fields(ticket: Ticket) -> dict[str, Any]:
    return {field.name: getattr(ticket, field.name) for field in fields(ticket)}


@contextmanager
def _naming_rows(but: Collection[str] = ()) -> Iterator[None]:
    """Say of which row, from 1, a refusal is; not of the options in `but`, said for all of them."""
    try:
        yield
    except Refused as error:
        index = error.members.get("index")
        if isinstance(index, int) and error.field not in (*but, "kind"):
            error.message = f"row {index + 1}: {error.message}"
            error.args = (error.message,)
        raise
