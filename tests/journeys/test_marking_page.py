"""The pages of the marking example in a real browser: clicks, live marks, a lost stream."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from journeys.browser import CHROMIUM
from journeys.marking_site import (
    CLASS,
    CODE,
    PATIENCE_SECONDS,
    Marking,
    assert_each_marked_once,
    running,
)
from journeys.tab import Tab, tab
from waiting import eventually

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here"),
]

COMPLAINTS = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
STREAM = "*/v1/topics/*"


class Heard(Tab):
    """A tab that keeps what the browser complained of."""

    def __init__(self, page: Tab) -> None:
        super().__init__(page._socket)
        self.complaints: list[dict[str, Any]] = []

    async def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        sent = {"id": self._number, "method": method, "params": parameters}
        await self._socket.send_json(sent)
        while True:
            told = json.loads((await self._socket.receive()).data)
            if told.get("id") == self._number:
                assert "error" not in told, told
                found: dict[str, Any] = told["result"]
                return found
            if told.get("method") in COMPLAINTS:
                self.complaints.append(told)


@asynccontextmanager
async def signed_in(site: Marking, folder: Path) -> AsyncIterator[Heard]:
    async with tab(folder) as found:
        page = Heard(found)
        for domain in ("Log", "Runtime", "Network"):
            await page.command(f"{domain}.enable")
        await page.look_like(390, 844)
        await page.open(f"http://127.0.0.1:{site.web_port}/sign-in?code={CODE}")
        yield page


def text(selector: str) -> str:
    return f'(document.querySelector({json.dumps(selector)})?.textContent ?? "")'


def network(away: bool) -> dict[str, Any]:
    return {"offline": away, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}


def row(pupil: str) -> str:
    """The line of this pupil."""
    return (
        "[...document.querySelectorAll('#rows tr')]"
        f".find((one) => one.querySelector('th').textContent === {pupil!r})"
    )


async def open_class(page: Heard, site: Marking) -> None:
    await page.open(f"http://127.0.0.1:{site.web_port}/results/assignments/a1")
    await page.sees("document.querySelectorAll('#rows tr').length === 30", "the class is there")


async def test_a_teacher_marks_a_class(
    database: str, tmp_path: Path, conn: asyncpg.Connection
) -> None:
    """M1, M8, M9, M15: a double click, marks as they come, a reload; one that fails, and Retry."""
    with running(database, tmp_path) as site:
        await site.order(fail=1)
        async with signed_in(site, tmp_path) as page:
            assert await page.run("document.querySelectorAll('.assignments a').length") == 2
            await page.run("document.querySelector('.assignments a').click()")
            await page.sees(f"{text('#lamp')} === 'Live'", "it is live")
            await page.sees(f"{text('#all')} === 'Mark all with AI'", "the button is there")
            await page.run("for (const _ of [1, 2]) document.getElementById('all').click()")
            await page.sees(f"{text('#pending')} === '30'", "all are pending")
            held_up = "Nobody is at work yet."
            await page.sees(f"{text('#held-up')} === {held_up!r}", "it is said why")
            assert await page.run("document.documentElement.scrollWidth") <= 390

            site.start_worker()
            # Sooner than the page would ask by itself.
            await page.sees(f"{row('Ada')}.dataset.status === 'failed'", "the first has failed")
            said = "The model could not make sense of this answer."
            await page.sees(
                f"{row('Ada')}.querySelector('.reason').textContent === {said!r}", "why"
            )
            await page.sees(f"Number({text('#marked')}) >= 5", "some are marked")
            await open_class(page, site)
            assert 5 <= int(await page.run(text("#marked"))) < CLASS
            await page.sees(f"{text('#marked')} === '29'", "the others are marked")
            assert await page.run(text("#failed")) == "1"
            assert await page.run(text("#all")) == "Mark 1 with AI"
            await page.run(f"{row('Ada')}.querySelector('button').click()")
            await page.sees(f"{text('#marked')} === '30'", "all are marked")
            assert await page.run("document.getElementById('all').hidden")
            mark = await page.run(f"{row('Ada')}.querySelector('.mark').textContent")
            assert mark == "3 / 4"
            assert await page.run("document.documentElement.scrollWidth") <= 390

            await page.open(f"http://127.0.0.1:{site.web_port}/ai-queue")
            await page.sees("document.querySelectorAll('#rows tr').length === 31", "all jobs")
            assert await page.run(text("#failed")) == "1"
            assert (await page.run(text("#average"))).endswith(" s")
            assert await page.run("document.documentElement.scrollWidth") <= 390
            assert page.complaints == []
    rows = await conn.fetch("select pupil from marking.submission where times_marked = 1")
    assert len(rows) == CLASS
    assert site.most_at_once() == 1


async def test_the_queue_page_stops_starts_and_retries(
    database: str, tmp_path: Path, conn: asyncpg.Connection
) -> None:
    """M10, M15: the function's switches, what is said of it, and Retry in the table."""
    with running(database, tmp_path) as site:
        site.start_worker()
        async with signed_in(site, tmp_path) as page:
            await page.open(f"http://127.0.0.1:{site.web_port}/ai-queue")
            await page.sees(f"{text('#there')} === 'it answers'", "the function is there")
            press = "document.querySelector('[data-order={}]').click()"
            await page.run(press.format("fail"))
            await page.sees(f"{text('#told')} === 'The next one will fail.'", "it is said")
            await page.run(press.format("stop"))
            await page.sees(f"{text('#there')} === 'it does not answer'", "it is gone")
            await page.run(press.format("start"))
            await page.sees(f"{text('#there')} === 'it answers'", "it is back")

            await open_class(page, site)
            await page.run(f"{row('Ada')}.querySelector('button').click()")
            await page.sees(f"{row('Ada')}.dataset.status === 'failed'", "it has failed")
            await page.open(f"http://127.0.0.1:{site.web_port}/ai-queue")
            retry = f"{row('Ada')}?.querySelector('button:not([hidden])')"
            await page.sees(f"Boolean({retry})", "it can be retried")
            await page.run(f"{retry}.click(); {retry}.click()")
            await page.sees("document.querySelectorAll('#rows tr').length === 2", "once")
            await page.sees(f"{text('#rows .badge')} === 'Done'", "it is done")
            assert not await page.run("document.querySelector('#rows button:not([hidden])')")
            assert page.complaints == []
    assert await conn.fetchval("select count(*) from penstock.finished") == 2


async def test_without_the_stream_the_page_asks(
    database: str, tmp_path: Path, conn: asyncpg.Connection
) -> None:
    """M8: a proxy that lets no stream through; when it does, the page is live again."""
    with running(database, tmp_path) as site:
        async with signed_in(site, tmp_path) as page:
            await page.command("Network.setBlockedURLs", urls=[STREAM])
            await open_class(page, site)
            away = "Not live; asks every 3 seconds"
            await page.sees(f"{text('#lamp')} === {away!r}", "that is said")
            await page.run("document.getElementById('all').click()")
            site.start_worker()
            await page.sees(
                f"Number({text('#marked')}) >= 3", "marks come", seconds=PATIENCE_SECONDS
            )
            await page.command("Network.setBlockedURLs", urls=[])
            # From one network into another: what was refused there is tried here.
            for away_now in (True, False):
                await page.command("Network.emulateNetworkConditions", **network(away_now))
            await page.sees(f"{text('#lamp')} === 'Live'", "it is live again")
            await page.sees(f"{text('#marked')} === '30'", "all are marked")

            # The web app goes, and comes back.
            [web] = [one for one in site.programs if "marking.app:web" in one.words]
            web.kill()
            await page.sees(f"{text('#lamp')} === {away!r}", "it is lost")
            site.start_web().wait_ready()
            await page.sees(f"{text('#lamp')} === 'Live'", "it is found again")
            await page.sees(f"{text('#wrong')} === ''", "nothing is said any more")

            async def written() -> bool:
                found = await conn.fetchval("select count(score) from marking.submission")
                return bool(found == CLASS)

            await eventually(written, "all marks are in the app's table", seconds=PATIENCE_SECONDS)
        await assert_each_marked_once(conn, site)
