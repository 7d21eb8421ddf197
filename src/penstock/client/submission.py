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
    """A kind of job with options for its next submits. It can be kept and used again."""

    def __init__(self, kind: "Kind[..., Any]", given: Mapping[str, Any]) -> None:
        self.kind = kind
        self._given = given
        # The options of the job itself, by the names of NewJob.
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
        """Return the same with more options; options that are not given stay as they were.

        account          the account of the job, instead of the kind's
        priority         -1000 to 1000, lower first, instead of the plan's
        delay, run_at    when it is due: after a time, or at a moment with a time zone
        dedupe_key       while a job of this kind and account with the same key is live, a submit
                         returns that one
        topic            a name under which many jobs are watched together
        price            in credits, instead of the kind's; the whole price of a split request
        max_attempts     how often it may fail
        timeout          how long one attempt may take
        expires          if it has not started after this time, it fails with `expired`
        metadata         a small JSON object that is returned with the job
        webhook_url      an https:// address that gets a message when the job has finished; a public
                         one, unless PENSTOCK_ALLOW_PRIVATE is set
        idempotency_key  a repeated submit with this key returns the first one's job
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
            # The host name is resolved, and its addresses checked, when it is called.
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
        """Submit one job and return its ticket at once; a BatchTicket with `split`."""
        self.refuse_positions(positions)
        job = self.new_job(payload)
        await self.refuse_private_webhook()
        ticket = await self.send(await self.kind.app.engine(), job)
        await self._start([ticket])
        return ticket

    async def submit_many(self, rows: Iterable[Mapping[str, Any]]) -> list[Ticket]:
        """Submit any number of jobs, all or none, in one transaction; return tickets in order.

        The new jobs form one batch, `ticket.batch`. A row whose dedupe key belongs to a live job
        gets that job's ticket and is not in the batch.
        """
        batch = self.new_batch(rows)
        if not batch.kinds:
            return []
        await self.refuse_private_webhook()
        tickets = await self.send_many(await self.kind.app.engine(), batch)
        await self._start(tickets)
        return tickets

    async def refuse_private_webhook(self) -> None:
        """Refuse, before anything is written, a host name that resolves to a private address."""
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
        """Refuse positional arguments: later versions of a handler may reorder its fields."""
        if positions:
            names = self.kind.parameters.names
            like = f"submit({names[0]}=...)" if names else "submit()"
            raise Invalid(
                f"payloads are given by name: {like}, for a job of kind {self.kind.name}",
                code="invalid_payload",
                field="payload",
            )

    def new_job(self, payload: Mapping[str, Any]) -> NewJob:
        """Return the job to submit, checked as far as possible without the database."""
        checked = self._checked(payload)
        computed = self.kind.sources.compute(checked)
        return NewJob(kind=self.kind.name, payload=checked, **{**computed, **self._options})

    def new_batch(self, rows: Iterable[Mapping[str, Any]]) -> Batch:
        """Return the jobs to submit as a batch. Options that all of them share are checked once."""
        if "idempotency_key" in self._given:
            raise Invalid(
                "idempotency_key is for one job: use submit, or give each job a dedupe_key",
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
        """Call the app's functions with each payload; return their values as columns."""
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
        """Submit a checked job to the database."""
        self._refuse_undriven()
        await engine.uploads.refuse_foreign(job.kind, job.payload, job.account, conn=self.conn)
        queue = self.kind.queue
        # The wake-up is sent by the commit, which saves a round trip; also by the caller's own.
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
        # A position in the queue is known for the first job only.
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
        """Refuse, before anything is written, a driven job for which no call could be started."""
        if self.kind.driven:
            self.kind.app.refuse_undriven(self.kind.queue)

    async def _wake(self, submitted: list[Submitted]) -> None:
        """Notify idle workers, if one of the jobs may start now."""
        if not any(
            job.status is JobStatus.QUEUED and not job.deduplicated and not job.replayed
            for job in submitted
        ):
            return
        if self.conn is None:
            self.kind.app.wake(self.kind.queue)
        elif not is_two_phase(self.conn):
            # Postgres sends it when the caller commits, and never if the caller rolls back.
            await borrow(self.conn)(
                "select penstock.wake_workers(cast($1 as text[])) as woken", ([self.kind.queue],)
            )

    def _ticket(self, submitted: Submitted) -> Ticket:
        # By position: in a bulk submit, keyword arguments would double the time per ticket.
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
    """Put the row's number, from 1, before a refusal; not for the shared options in `but`."""
    try:
        yield
    except Refused as error:
        index = error.members.get("index")
        if isinstance(index, int) and error.field not in (*but, "kind"):
            error.message = f"row {index + 1}: {error.message}"
            error.args = (error.message,)
        raise
