"""Fixtures: `visitor` without a session, `operator` who is signed in, `scene` which makes jobs."""

import asyncpg
import pytest

from browser.scene import Scene
from support.clock import Clock
from support.dashboard.visitor import Visitor
from support.dashboard.walk import Things
from support.http.fixtures import no_environment, site
from support.http.site import Site

__all__ = ["no_environment", "site"]


@pytest.fixture
def visitor(site: Site) -> Visitor:
    return Visitor(site)


@pytest.fixture
async def operator(site: Site) -> Visitor:
    found = Visitor(site)
    answer = await found.sign_in()
    assert answer.status_code == 303, answer.text[:500]
    return found


@pytest.fixture
async def scene(conn: asyncpg.Connection, clock: Clock) -> Scene:
    return await Scene.begin(conn, clock)


@pytest.fixture
async def things(scene: Scene) -> Things:
    """One of each thing that a page shows, and their paths."""
    await scene.plan()
    await scene.account("u1", 10)
    job = await scene.queued(account="u1", topic="t")
    batch = (await scene.read(job))["batch"]
    return Things(job_id=job, batch_id=batch, queue="line", account="u1", plan="free")
