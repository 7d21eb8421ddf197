"""Rules 7, 8 and 10: credits, limits and invariants, checked in the database."""

from collections import Counter, defaultdict
from collections.abc import Iterator

import asyncpg

from fire.record import Record
from fire.rules.jobs import GRANT
from support.storms.auditor import Auditor

CHECKS = 2


async def audit(conn: asyncpg.Connection) -> list[str]:
    """7: the ledger, the balances and the resolutions add up."""
    try:
        await Auditor().check(conn, thorough=True)
    except AssertionError as error:
        return [str(error)]
    return []


def grants(record: Record) -> Iterator[str]:
    """7: credits bought under a ref were granted once."""
    found = Counter((grant.account, grant.ref) for grant in record.grants)
    for (account, ref), n in found.items():
        if n > 1:
            yield f"account {account} was granted {ref} {n} times"
    fates: dict[tuple[str, str], set[str]] = defaultdict(set)
    for ack in record.acks:
        if ack.kind == GRANT:
            fates[ack.account or "", ack.tag].add(ack.fate)
    for (account, ref), seen in fates.items():
        granted = bool(found[account, ref])
        if "accepted" in seen and not granted:
            yield f"the grant {ref} of account {account} was accepted and is not there"
        if granted and not seen & {"accepted", "doubt"}:
            yield f"the grant {ref} of account {account} was {' and '.join(seen)} and is there"


def charges(record: Record) -> Iterator[str]:
    """7: each delivered picture is paid for, and nothing else.

    A job that delivered none has not reported that, and is charged fully: such jobs are left out.
    """
    for job in record.rows:
        if job.live or not job.reserved:
            continue
        delivered = job.result.get("images") if isinstance(job.result, dict) else None
        paid = f"{job.charged} of {job.reserved}"
        if job.status == "failed" and job.charged:
            yield f"{job} was charged {paid}"
        if (
            job.status == "succeeded"
            and job.images
            and delivered
            and job.charged != job.reserved * delivered // job.images
        ):
            yield f"{job} has delivered {delivered} of {job.images} and was charged {paid}"


def samples(record: Record, least: int) -> Iterator[str]:
    """8: no snapshot showed a breach, and there were enough of them."""
    for sample in record.samples:
        if sample.word == "breach":
            yield f"at {sample.at:.3f}: {sample.what}"
    n = sum(sample.word == "sound" for sample in record.samples)
    if n < least:
        yield f"{n} snapshots were sound, and at least {least} are asked for"


async def invariants(conn: asyncpg.Connection) -> list[str]:
    """10: `check` and `reconcile` find nothing, twice: no repair hides a breach."""
    findings: list[str] = []
    for _ in range(CHECKS):
        for function in ("check", "reconcile"):
            rows = await conn.fetch(f"select * from penstock.{function}()")
            findings.extend(f"{function}() found {dict(row)}" for row in rows)
    return findings
