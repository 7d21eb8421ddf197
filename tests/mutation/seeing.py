"""Guards of access.sql and batches.sql: no account sees the data of another one."""

from uuid import UUID

import asyncpg

from mutation.scene import Scene, catches
from support import factory

_READ = "select penstock.read_job_of($1, $2, $3, $4)"
_READ_BATCH = "select penstock.read_batch_of($1, $2)"


async def _sees(s: Scene, sql: str, *args: str | UUID | None) -> bool:
    try:
        await s.conn.fetchval(sql, *args)
    except asyncpg.PostgresError as error:
        if error.sqlstate != "PS404":
            raise
        return False
    return True


@catches("_may_see: account", "_may_see: topic")
@catches("_may_see: only", replace=("p_only <> p_id", "false"))
async def a_live_job_is_visible_only_to_its_owner(s: Scene) -> None:
    await factory.queue(s.conn)
    job = await factory.submit(s.conn, account="a", topic="t")
    other = await factory.submit(s.conn, account="b", topic="u")
    assert await _sees(s, _READ, job, "a", "t", job)
    for bound in (("b", None, None), (None, "u", None), (None, None, other)):
        assert not await _sees(s, _READ, job, *bound), bound


@catches("_may_see: account of ended", "_may_see: topic of ended")
async def a_finished_job_is_visible_only_to_its_owner(s: Scene) -> None:
    await factory.queue(s.conn)
    job = await factory.submit(s.conn, account="a", topic="t")
    await factory.submit(s.conn, account="b", topic="u")
    await s.conn.fetchval("select penstock.cancel_job($1)", job)
    assert await _sees(s, _READ, job, "a", "t", job)
    for bound in (("b", None, None), (None, "u", None)):
        assert not await _sees(s, _READ, job, *bound), bound


@catches(
    "_refuse_foreign_job: foreign",
    replace=("not penstock._may_see(p_id, p_account, p_topic, p_only)", "false"),
)
@catches(
    "read_jobs_of: theirs",
    replace=("penstock._may_see(u.id, u.account, u.topic, u.only_job)", "true"),
)
async def a_single_read_and_a_read_of_many_have_the_same_limits(s: Scene) -> None:
    await factory.queue(s.conn)
    job = await factory.submit(s.conn, account="a")
    many = "select ordinal from penstock.read_jobs_of($1, $2)"
    assert await s.conn.fetch(many, [job, job], ["a", None])
    assert await s.conn.fetch(many, [job], ["b"]) == []
    assert not await _sees(s, _READ, job, "b", None, None)


@catches("_refuse_foreign_batch: account")
async def a_batch_is_visible_only_to_its_owner(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.submit_rows(s.conn, [{"kind": "q", "account": "a"}] * 2)
    await factory.submit(s.conn, account="b")
    batch = await s.value("select id from penstock.batch order by total desc limit 1")
    assert await _sees(s, _READ_BATCH, batch, "a")
    assert not await _sees(s, _READ_BATCH, batch, "b")


@catches("find_revoked_grants: signed out")
async def a_signed_out_session_is_invalid(s: Scene) -> None:
    await s.conn.execute("select penstock.end_session('one', now() + interval '1 hour')")
    over = "select array(select penstock.find_revoked_grants($1, $2, $3))"
    sessions = ["other", "one"]
    assert await s.value(over, sessions, [None] * 2, [None] * 2) == [2]


@catches("find_revoked_grants: erased")
async def a_token_of_an_erased_account_is_invalid(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.submit(s.conn, account="a")
    await factory.submit(s.conn, account="b")
    issued = await s.value("select penstock.clock()")
    for _ in range(2):
        await s.conn.execute("select penstock.erase_account('a')")
    await factory.submit(s.conn, account="a")
    over = "select array(select penstock.find_revoked_grants($1, $2, $3))"
    assert await s.value(over, [None] * 2, ["a", "b"], [issued] * 2) == [1]


@catches("_public_job: words", replace=("penstock._public_error", ""))
@catches("_public_job: starts")
async def a_customer_sees_neither_an_exception_nor_a_worker(s: Scene) -> None:
    worker, row = await s.running("a")
    error = {"class": "bug", "message": "at /srv/internal", "retryable": True}
    await factory.finish(s.conn, worker, [row], "failed", error=error)
    seen = str(await s.conn.fetchval(_READ, row["id"], "a", None, None))
    assert "internal" not in seen
    assert "'worker': None" in seen
    assert "internal" in str(await s.conn.fetchval(_READ, row["id"], None, None, None))


@catches("_plain_error: words", replace=("penstock._redacted", ""))
async def a_stored_error_contains_no_key(s: Scene) -> None:
    worker, row = await s.running()
    error = {"class": "bug", "message": "it was sk-" + "q7Rt2mXw9Zk4", "retryable": True}
    await factory.finish(s.conn, worker, [row], "failed", error=error)
    assert "q7Rt" not in str(await factory.read(s.conn, row["id"]))


@catches("read_my_error: theirs", replace=("and j.account_id = a.id", ""))
@catches("read_my_error: theirs, ended", replace=("and f.account_id = a.id", ""))
async def a_tenant_reads_the_errors_of_its_own_jobs(s: Scene) -> None:
    await factory.queue(s.conn)
    worker = await s.worker()
    error = {"class": "bug", "message": "wrong", "retryable": True}
    for outcome in ("failed", "retry"):
        job = await factory.submit(s.conn, account="a")
        await factory.submit(s.conn, account="b", delay_seconds=60)
        await factory.finish(s.conn, worker, await s.start(worker), outcome, error=error)
        mine = []
        for account in ("a", "b"):
            await s.conn.execute("select set_config('penstock.account', $1, false)", account)
            mine.append(await s.value("select penstock.read_my_error($1)", job) is not None)
        await s.conn.execute("reset penstock.account")
        assert mine == [True, False]
