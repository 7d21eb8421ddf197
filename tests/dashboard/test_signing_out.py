"""Sign-out ends a session: copies of its cookie are refused at every server."""

import asyncio
from pathlib import Path

import httpx
import pytest

from browser.scene import Scene
from penstock.dashboard.session import SignInTokens
from penstock.security.roots import Roots
from support.dashboard.visitor import ACCEPT, Visitor, token_of
from support.dashboard.walk import STREAM, Things, routes
from support.http.listening import listening
from support.http.serving import Served
from support.http.site import Site, problem
from support.signing import SECRET

NAME = SignInTokens(Roots((SECRET,))).cookie
ID = "0199c2f0-7c1e-7b3a-9d52-5f7a3c1e8b44"
THINGS = Things(job_id=ID, batch_id=ID, upload_id=ID, queue="q", account="a", plan="p", key_id="k")


def copy_of(visitor: Visitor) -> Visitor:
    """Return a visitor who has a copy of the session cookie, and nothing else."""
    thief = Visitor(visitor.site, address="192.0.2.66")
    thief.http.cookies.set(NAME, visitor.http.cookies[NAME], domain="penstock.test")
    return thief


async def is_in(visitor: Visitor) -> bool:
    return (await visitor.get("/")).status_code == 200


async def test_a_cookie_copied_before_sign_out_is_refused(operator: Visitor) -> None:
    """G14"""
    thief = copy_of(operator)
    assert await is_in(thief)
    form = await thief.token()
    await operator.post("/logout")
    site = operator.site
    for path in routes(site.api, "GET"):
        if path == STREAM:
            answer = await thief.get(path)
            assert (answer.status_code, answer.content) == (204, b""), path
        elif path not in ("/login", "/ai-queue"):
            answer = await thief.get(THINGS.fill(path))
            assert answer.status_code == 303, path
            assert "login?next=" in answer.headers["location"] or path == "/", path
            assert answer.content == b"", path
    for path in routes(site.api, "POST"):
        if path != "/login":
            fields = {"form_token": form, **THINGS.fields}
            answer = await thief.send(THINGS.fill(path), fields)
            assert (answer.status_code, answer.content) == (303, b""), path
            assert answer.headers["location"].endswith("login"), path
    assert not await is_in(thief)


async def test_another_session_of_the_same_person_continues(site: Site, operator: Visitor) -> None:
    elsewhere = Visitor(site)
    await elsewhere.sign_in()
    await operator.post("/logout")
    assert await is_in(elsewhere)


async def test_signing_in_again_ends_the_previous_session(operator: Visitor) -> None:
    thief = copy_of(operator)
    stale = operator.http.cookies["penstock_visit"]  # of a form in another tab
    await operator.send("/login", {"form_token": stale, "key": SECRET})
    assert await is_in(operator)
    assert not await is_in(thief)


async def test_the_streams_of_the_session_are_closed(operator: Visitor) -> None:
    async with listening(copy_of(operator).http, "/live") as listener:
        await listener.next()
        await operator.post("/logout")
        await listener.over(seconds=3)


async def test_the_tokens_of_its_pages_are_refused(operator: Visitor, scene: Scene) -> None:
    """The page of a running job holds a token for its stream."""
    await scene.queue()
    job = await scene.queued()
    page = (await operator.get(f"/jobs/{job}")).text
    token = page.partition('data-token="')[2].partition('"')[0]
    browser = operator.site.client(token)
    async with listening(browser, f"/v1/jobs/{job}/events") as listener:
        await listener.next()
        await operator.post("/logout")
        await listener.over(seconds=3)
    problem(await browser.get(f"/v1/jobs/{job}"), 401, "unauthorized")


@pytest.mark.one_version
async def test_a_session_ends_at_every_server_at_once(migrated: str, tmp_path: Path) -> None:
    """Two processes share only the database."""
    servers = [Served(migrated, tmp_path), Served(migrated, tmp_path)]
    try:
        await asyncio.gather(*(server.start() for server in servers))
        here, there = (
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{server.port}", headers={"accept": ACCEPT}, timeout=30
            )
            for server in servers
        )
        async with here, there:
            form = {"form_token": token_of(await here.get("/login")), "key": SECRET}
            await here.post("/login", data=form)
            there.cookies.set(NAME, here.cookies[NAME], domain="127.0.0.1")
            page = await there.get("/")
            assert page.status_code == 200
            assert (await here.post("/logout", data={"form_token": token_of(page)})).is_redirect
            assert (await there.get("/")).status_code == 303
    finally:
        for server in servers:
            server.kill()
