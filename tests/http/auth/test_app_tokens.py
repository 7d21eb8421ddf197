"""`app.token(...)`: a token for the app's own page gives access to one thing only."""

from typing import Any

import pytest

from penstock.errors import Invalid
from support.http.site import Site, problem


async def job_of(site: Site, topic: str) -> str:
    queue = site.penstock.queues.get("q") or site.penstock.queue("q")
    if "note" not in site.penstock.kinds:

        @site.penstock.job(queue=queue, topic="topic")
        async def note(topic: str) -> None: ...

    sent = {"kind": "note", "payload": {"topic": topic}}
    answer = await site.app_client.post("/v1/jobs", json=sent)
    found: str = answer.json()["id"]
    return found


async def test_it_gives_access_to_its_job_and_no_other(site: Site) -> None:
    mine, other = await job_of(site, "a"), await job_of(site, "b")
    page = site.client(site.penstock.token(job=mine))
    assert (await page.get(f"/v1/jobs/{mine}")).json()["id"] == mine
    problem(await page.get(f"/v1/jobs/{other}"), 404, "unknown_job")
    problem(await page.post(f"/v1/jobs/{mine}/cancel"), 403, "not_allowed")


async def test_it_cancels_if_that_was_allowed(site: Site) -> None:
    mine, other = await job_of(site, "a"), await job_of(site, "b")
    page = site.client(site.penstock.token(topic="a", allow=["read", "cancel"]))
    assert (await page.post(f"/v1/jobs/{mine}/cancel")).json()["status"] == "cancelled"
    problem(await page.post(f"/v1/jobs/{other}/cancel"), 404, "unknown_job")


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({}, "job"),
        ({"job": "0199" + "0" * 28, "topic": "a"}, "job"),
        ({"job": "no id"}, "id"),
        ({"topic": ""}, "topic"),
        ({"topic": "a", "ttl": "25h"}, "ttl"),
        ({"topic": "a", "ttl": "0s"}, "ttl"),
        ({"topic": "a", "allow": []}, "allow"),
        ({"topic": "a", "allow": ["write"]}, "allow"),
    ],
)
async def test_an_impossible_token_is_refused_by_its_field(
    site: Site, asked: dict[str, Any], field: str
) -> None:
    with pytest.raises(Invalid) as caught:
        site.penstock.token(**asked)
    assert caught.value.field == field
