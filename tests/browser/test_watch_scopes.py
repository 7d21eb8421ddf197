"""watch() of more than a job: a batch, a topic, an account."""

import json

from playwright.async_api import Page

from browser.stand_in import StandIn, job
from browser.watching import change, fall_back, told, until_told, watch


async def test_a_batch_is_watched_until_nothing_of_it_waits_or_runs(
    watching: Page, stand_in: StandIn
) -> None:
    batch = {"id": "b", "status": "running", "running": 1, "queued": 1, "total": 2}
    stand_in.jobs["b"] = batch
    await watch(watching, "/v1/batches/b")
    await until_told(watching, "change", ["batch", "b", "running", None])
    done = batch | {"status": "succeeded", "running": 0, "queued": 0, "succeeded": 2}
    stand_in.tell("/v1/batches/b/events", "batch", done)
    await until_told(watching, "done", "succeeded")


async def test_a_topic_tells_its_jobs_and_reads_the_list_when_told_to(
    watching: Page, stand_in: StandIn
) -> None:
    stand_in.put("b", topic="other")
    await watch(watching, "/v1/topics/a1")
    await until_told(watching, "change", change())
    stand_in.put("c", status="succeeded")
    await until_told(watching, "change", change("succeeded", None, "c"))
    assert await told(watching, "done") == []
    # It did not tell everything: then the list does.
    stand_in.jobs["d"] = job("d", version=99)
    stand_in.tell("/v1/topics/a1/events", "resync", {})
    await until_told(watching, "change", change("queued", None, "d"))
    assert len(await told(watching, "change")) == 3


async def test_a_topic_falls_back_to_its_list(watching: Page, stand_in: StandIn) -> None:
    await watch(watching, "/v1/topics/a1")
    await until_told(watching, "change", change())
    await fall_back(watching, stand_in)
    stand_in.put("c")
    await watching.clock.run_for(3_500)
    await until_told(watching, "change", change("queued", None, "c"))
    assert len(await told(watching, "change")) == 2
    assert json.loads(await watching.evaluate("JSON.stringify(watched.job)")) is None


async def test_an_account_tells_its_balance_too(watching: Page, stand_in: StandIn) -> None:
    await watch(watching, "/v1/accounts/u1")
    await until_told(watching, "change", change())
    stand_in.tell("/v1/accounts/u1/events", "account", {"id": "u1", "balance": 9})
    await until_told(watching, "change", ["account", "u1", None, 9])
    await fall_back(watching, stand_in)
    await until_told(watching, "change", ["account", "u1", None, 7])
