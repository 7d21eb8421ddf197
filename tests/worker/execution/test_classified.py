"""What a handler raises, seen through the classifier: its cost, and its effect on the queue."""

import logging

import asyncpg
import pytest

from penstock import Penstock
from penstock.engine.jobs.attempts import Deferred, Failed, Retry
from penstock.failures.outcome import charged
from penstock.failures.verdict import CLASSES, Charge, Verdict
from penstock.models.handlers.exceptions import outcome_of
from penstock.net.provider_errors import ProviderError
from penstock.net.signal import Signal
from penstock.worker.execution.processes import Processes
from support.factory import read
from support.waiting import eventually
from support.worker import process_handlers
from support.worker.crew import submit_many, working


class BusyError(Exception):
    """An error of a vendor's library."""


@pytest.mark.parametrize("verdict", CLASSES.values(), ids=CLASSES)
def test_every_class_of_errors_has_its_outcome(verdict: Verdict) -> None:
    outcome = charged(verdict, "why")
    assert isinstance(outcome, Failed | Retry | Deferred)
    kind = {Charge.FINAL: Failed, Charge.FREE: Deferred}.get(verdict.charge, Retry)
    assert isinstance(outcome, kind)
    if isinstance(outcome, Retry):
        assert outcome.provisional == (verdict.charge is Charge.PROVISIONAL)
    assert outcome.error.cls == verdict.cls
    assert outcome.error.retryable == (verdict.charge is not Charge.FINAL)
    assert (outcome.bearing.effect if outcome.bearing else "none") == verdict.circuit


def test_chained_errors_classified_by_their_cause() -> None:
    """S9"""
    raised = RuntimeError("no feedback")
    raised.__cause__ = ProviderError("nobody there", Signal(exception="connect"))
    outcome = outcome_of(raised)
    assert isinstance(outcome, Deferred)
    assert outcome.error.cls == "unavailable"
    assert "no feedback" in outcome.error.message


async def test_an_app_knows_its_own_errors(database: str, conn: asyncpg.Connection) -> None:
    app = Penstock(name="taught")
    app.queue("model")

    @app.classify
    def ours(error: BaseException) -> str | None:
        return "quota" if isinstance(error, BusyError) else None

    @app.job(queue="model")
    async def call() -> None:
        raise BusyError("come back next month")

    async with working(database, app):
        [job] = await submit_many(conn, "call", 1, {})

        async def seen() -> bool:
            return bool(await conn.fetchval("select count(*) from penstock.alert"))

        await eventually(seen, "operators have an alert")
    shown = await read(conn, job)
    assert (shown["failures"], shown["deferrals"]) == (0, 3), "no other outcome was written"
    assert shown["error"]["class"] == "quota"
    assert set(shown["error"]) == {"class", "message", "retryable", "reason"}


async def test_an_outage_is_logged_once_and_not_for_each_job(
    database: str, conn: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = Penstock(name="away")
    app.queue("model")

    @app.job(queue="model")
    async def call() -> None:
        raise ProviderError("nobody there", Signal(exception="connect", address="127.0.0.1:9"))

    with caplog.at_level(logging.WARNING, "penstock"):
        async with working(database, app):
            await submit_many(conn, "call", 20, {})

            async def logged() -> bool:
                return "not available" in caplog.text

            await eventually(logged, "the outage is logged")
    lines = [record.getMessage() for record in caplog.records if record.name == "penstock.worker"]
    [line] = lines
    assert line.startswith(
        "the provider of queue model is not available (unavailable at 127.0.0.1:9); jobs wait"
    )


async def test_an_error_in_a_process_is_classified_there_with_its_causes() -> None:
    processes = Processes([])
    handler = (process_handlers.__name__, "unreachable")
    try:
        with pytest.raises(Exception, match="cannot be reached") as raised:
            await processes.call(handler, {}, {}, _silent, memory_bytes=None)
    finally:
        processes.close()
    outcome = outcome_of(raised.value)
    assert isinstance(outcome, Deferred)
    assert outcome.error.cls == "unavailable"


async def _silent(*_: object) -> None: ...
