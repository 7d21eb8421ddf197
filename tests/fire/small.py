"""The record of a small run without breaches, made without any process.

one       o1, o2     one after the other, each with a webhook
ask       a1         its first attempt was lost with its worker, the second one succeeded
paint     p1         paid for, with an on_finish callback
quick     f1         meant to fail, retried once
          c1         cancelled while it waited
          r1, b1     refused; rolled back
          d1, d2     in doubt: one exists, the other does not
"""

import time
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from fire.logs import (
    OUTPUTS,
    Ack,
    Act,
    Call,
    Entry,
    Exit,
    Fate,
    Fault,
    Log,
    Message,
    Sight,
    Word,
    model_name,
)
from fire.sampler import Sampler
from support import factory

RECEIVER = "http://127.0.0.1:1/hook"
ACCOUNT = "u1"
KNOWN = "Known"

_KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "one": ("narrow", {"concurrency": 1}, {"webhook": RECEIVER}),
    "ask": ("model", {"concurrency": 8}, {"webhook": RECEIVER}),
    "paint": ("paid", {}, {"price": {"per": "images", "each": 2}}),
    "quick": ("fast", {}, {}),
}


class Small:
    def __init__(self, dsn: str, conn: asyncpg.Connection, folder: Path) -> None:
        self._dsn = dsn
        self._conn = conn
        self._log = Log(folder)
        self.folder = folder
        self.ids: dict[str, str] = {}  # by tag

    async def run(self) -> None:
        await self._declare()
        for tag in ("o1", "o2"):
            await self._submit("one", tag)
            await self._work("one", tag)
        await self._ask()
        await self._submit("paint", "p1", account=ACCOUNT, images=3)
        await self._paint("p1")
        await self._submit("quick", "f1", fails=True)
        await self._work("quick", "f1", "failed")
        await self._retry("f1")
        await self._submit("quick", "c1")
        await self._conn.execute("select penstock.cancel_job($1)", UUID(self.ids["c1"]))
        await self._submit("quick", "d1", fate="doubt")
        await self._work("quick", "d1")
        fates: dict[str, Fate] = {"r1": "refused", "b1": "rolled_back", "d2": "doubt"}
        for tag, fate in fates.items():
            self._write(Ack(client="sql", kind="quick", tag=tag, fate=fate))
        await self._deliver()
        self._watch()
        self._end_processes()
        sampler = Sampler(self._dsn, self._log)
        await sampler.sample()
        sampler.close()
        self._log.close()

    def _write(self, entry: Entry) -> None:
        self._log.write(entry)

    async def _declare(self) -> None:
        await factory.plan(self._conn, "none")
        for kind, (queue, limits, options) in _KINDS.items():
            await self._conn.execute("select penstock.declare_queue($1, $2)", queue, limits)
            await self._conn.execute(
                "select penstock.declare_kind($1, $2, $3)", kind, queue, options
            )
        await self._conn.execute(
            "create table public.fire_done (job_id uuid primary key, attempt integer not null)"
        )
        await self._conn.execute(f"select penstock.grant_credits('{ACCOUNT}', 10, null, 'g1')")
        self._write(Ack(client="payer", kind="grant", tag="g1", fate="accepted", account=ACCOUNT))

    async def _submit(
        self,
        kind: str,
        tag: str,
        *,
        fate: Fate = "accepted",
        account: str | None = None,
        **more: Any,
    ) -> None:
        job = await factory.submit(
            self._conn,
            kind,
            payload={"tag": tag} | more,
            **({"account": account} if account else {}),
        )
        self.ids[tag] = str(job)
        known = str(job) if fate == "accepted" else None
        self._write(Ack(client="http", kind=kind, tag=tag, fate=fate, job=known, key=tag))

    async def _start(self, kind: str, tag: str) -> tuple[int, asyncpg.Record]:
        worker = await factory.worker(self._conn, "w1")
        [started] = await factory.claim(self._conn, worker, _KINDS[kind][0])
        self._act(started, tag, "start")
        return worker, started

    async def _work(self, kind: str, tag: str, outcome: str = "succeeded") -> None:
        worker, started = await self._start(kind, tag)
        if kind == "ask":
            self._act(started, tag, "model")
            now = time.time()
            name = model_name(tag, started["attempt"])
            self._write(Call(path="/api/chat", model=name, status=200, at=now, ended_at=now))
        if outcome == "succeeded":
            self._act(started, tag, "end")
        error = {"class": "bug", "message": "meant to"} if outcome == "failed" else None
        result = {"attempt": started["attempt"]} if outcome == "succeeded" else None
        await factory.finish(self._conn, worker, [started], outcome, result=result, error=error)

    async def _paint(self, tag: str) -> None:
        """Two of three were delivered; on_finish has recorded it."""
        worker, started = await self._start("paint", tag)
        self._act(started, tag, "end")
        self._act(started, tag, "on_finish")
        await self._conn.execute(
            "insert into public.fire_done values ($1, $2)", started["id"], started["attempt"]
        )
        await self._conn.execute(
            "select verdict from penstock.finish_jobs($1, $2, $3, '{succeeded}', $4,"
            " p_units => '{2}')",
            worker,
            [started["id"]],
            [started["attempt"]],
            [{"images": 2}],
        )

    def _act(self, started: asyncpg.Record, tag: str, word: Word) -> None:
        act = Act(
            job=str(started["id"]), attempt=started["attempt"], tag=tag, word=word, worker="w1"
        )
        self._write(act)

    async def _ask(self) -> None:
        await self._submit("ask", "a1")
        worker, _ = await self._start("ask", "a1")
        for word in ("begin", "end"):
            self._write(Fault(fault="kill_worker", id="1", word=word, what={"worker": "w1"}))
        await self._conn.execute(
            "update penstock.worker set beat_at = beat_at - interval '1 day' where id = $1", worker
        )
        await factory.recover(self._conn)
        await self._work("ask", "a1")

    async def _retry(self, tag: str) -> None:
        answer = await self._conn.fetchval("select penstock.retry_job($1)", UUID(self.ids[tag]))
        self._write(
            Ack(
                client="http",
                kind="quick",
                tag=tag,
                fate="accepted",
                job=answer["id"],
                retry_of=self.ids[tag],
            )
        )
        await self._work("quick", tag, "failed")

    async def _deliver(self) -> None:
        """Each message comes twice: the first answer was lost."""
        while rows := await self._conn.fetch(
            "select * from penstock.claim_deliveries(10, interval '1 minute')"
        ):
            for row in rows:
                for answered in (503, 200):
                    self._write(
                        Message(
                            id=str(row["id"]),
                            job=str(row["job_id"]),
                            event=row["event"],
                            status=row["event"].removeprefix("job."),
                            signature=True,
                            answered=answered,
                        )
                    )
                await self._conn.execute(
                    "select penstock.report_delivery($1, $2, true, 200)", row["id"], row["try"]
                )

    def _watch(self) -> None:
        seen = [("job", "queued", 1), ("chunk", None, None), ("job", "succeeded", 3)]
        for event, status, version in [*seen, ("done", "succeeded", None)]:
            self._write(
                Sight(watcher="s1", job=self.ids["o1"], event=event, status=status, version=version)
            )

    def _end_processes(self) -> None:
        self._write(Exit(name="w1", pid=1, code=-9, meant=True))
        outputs = self.folder / OUTPUTS
        outputs.mkdir()
        (outputs / "w1.log").write_text(
            f"INFO it begins\nTraceback (most recent call last):\n  File x\n{KNOWN}: no answer\n"
        )
