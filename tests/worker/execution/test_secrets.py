"""Contents of a job appear in no log line, at any level, of any logger."""

import asyncio
import logging
from typing import Any

import asyncpg
import pytest

from penstock.worker.reporting import on_finish
from support.factory import submit
from support.worker.crew import until_finished, working
from support.worker.loud import MARK, app, release


@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
async def test_nothing_a_job_carries_is_logged(
    database: str,
    conn: asyncpg.Connection,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    *,
    monkeypatch: pytest.MonkeyPatch,
    debug: bool,
) -> None:
    """F8: payload, result, partials, chunks, steps, usage, metadata, messages of exceptions."""
    monkeypatch.setattr(on_finish, "TRY_SECONDS", 0.01)
    caplog.set_level(logging.DEBUG)
    for name in ("asyncio", "asyncpg", "concurrent.futures", "penstock"):
        caplog.set_level(logging.DEBUG, logger=name)
    loop = asyncio.get_running_loop()
    loop.set_debug(debug)
    loop.slow_callback_duration = 0.0  # in debug mode: every call is a slow one and is logged
    release.clear()
    async with working(database, app, beat=0.05, lease=60) as here:
        late = await _submit(conn, "be_late")
        await conn.execute("update penstock.worker set lost_at = penstock.clock()")
        await conn.execute("select penstock.recover_jobs()")
        await until_finished(conn, [late])
        jobs = [
            await _submit(conn, kind, **payload)
            for kind, payload in LOUD
            # The loop's debug mode prints the result of every task: of those that a handler makes,
            # which are the app's responsibility, and of the one that reads a process's last frame.
            if not (debug and (payload.get("how") == "task" or kind == "report_all_in_process"))
        ]
        cancelled = await _submit(conn, "be_cancelled")
        odd = await submit(conn, "go_wrong", payload={"text": [MARK], MARK: MARK})
        await conn.execute("select penstock.cancel_job($1)", cancelled)
        rows = await until_finished(conn, [*jobs, cancelled, odd])
        release.set()
        await until_finished(conn, [await _submit(conn, "report_all")])
        here.worker.stop()
        await here.ran()
    loop.set_debug(False)
    ends = {row["status"] for row in rows}
    assert ends == {"succeeded", "failed", "cancelled"}
    assert any(MARK in str(row["error"]) for row in rows)  # people do see it here
    shown = [record for record in caplog.records if record.name.startswith("penstock")]
    assert shown
    out, err = capfd.readouterr()
    formatter = logging.Formatter("%(message)s %(args)s")
    lines = [*out.splitlines(), *err.splitlines()]
    for record in caplog.records:
        lines += [formatter.format(record), str(vars(record))]
    assert [line for line in lines if MARK in line] == []


LOUD: list[tuple[str, dict[str, Any]]] = [
    ("report_all", {}),
    ("report_all_in_thread", {}),
    ("report_all_in_process", {}),
    ("report_all_in_process", {"how": "raise"}),
    *(
        ("go_wrong", {"how": how})
        for how in ("raise", "group", "exit", "fail", "retry", "cancel", "result", "task")
    ),
    ("go_wrong_in_thread", {}),
    ("take_long", {}),
    ("take_long_in_thread", {}),
    ("be_billed", {}),
]


async def _submit(conn: asyncpg.Connection, kind: str, **payload: Any) -> Any:
    return await submit(
        conn, kind, payload={"text": MARK, **payload}, metadata={MARK: MARK}, topic=None
    )
