"""What the browser tests rely on: a fault in a page is noticed, and every state can be made."""

from collections.abc import Awaitable, Callable

import pytest
from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from playwright.async_api import Page

from browser.axe import axe
from browser.live import Live
from browser.scene import Scene
from browser.watched import Windows, fits_sideways
from journeys.browser import served
from support.waiting import eventually

SOUND = (
    "<!doctype html><html lang=en><title>A page</title><link rel=icon href='data:,'>"
    "<main><h1>Sound</h1>{}</main>"
)
FAULTS = {
    "a console error": ("<script>console.error('it went wrong')</script>", "it went wrong"),
    "an exception": ("<script>nothing.there()</script>", "nothing is not defined"),
    "a missing file": ("<script src=missing.js></script>", "404"),
    "a refused request": ("<img alt='' src='http://127.0.0.1:9/x.png'>", "ERR_"),
}


async def put(page: Page, body: str, headers: dict[str, str] | None = None) -> None:
    site = FastAPI()

    @site.get("/")
    async def show() -> HTMLResponse:
        return HTMLResponse(body, headers=headers)

    async with served(site, lambda: None) as port:
        await page.goto(f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize("fault", FAULTS)
async def test_what_goes_wrong_in_a_page_is_noticed(
    fault: str, windows: Windows, allowed_errors: list[str]
) -> None:
    script, said = FAULTS[fault]
    page = await windows.open()
    await put(page, SOUND.format(script))

    async def noticed() -> bool:
        return any(said in one for one in windows.unexpected())

    await eventually(noticed, fault)
    allowed_errors.append(".")
    assert windows.unexpected() == []


async def test_a_breach_of_the_security_policy_is_noticed(
    windows: Windows, page: Page, allowed_errors: list[str]
) -> None:
    await put(page, SOUND.format("<script>1</script>"), {"Content-Security-Policy": "script-src x"})

    async def noticed() -> bool:
        return any("Content Security Policy" in one for one in windows.unexpected())

    await eventually(noticed, "the refused script")
    allowed_errors.append("Content Security Policy")


async def test_axe_names_what_it_finds(page: Page) -> None:
    await page.set_content(SOUND.format("<p>All is well.</p>"))
    await axe(page)
    await page.set_content(SOUND.format("<input>"))
    with pytest.raises(AssertionError, match=r"(?s)label.*input"):
        await axe(page)


async def test_a_page_too_wide_for_a_phone_is_noticed(windows: Windows) -> None:
    phone = await windows.open(phone=True)
    view = '<meta name=viewport content="width=device-width">'
    await phone.set_content(view + SOUND.format("<p>All is well.</p>"))
    await fits_sideways(phone)
    await phone.set_content(view + SOUND.format('<p id=wide style="width: 500px">Long</p>'))
    with pytest.raises(AssertionError, match="wide"):
        await fits_sideways(phone)


async def test_every_state_of_a_job_can_be_made(live: Live, scene: Scene) -> None:
    states: dict[str, Callable[[], Awaitable[object]]] = {
        "queued": scene.queued,
        "scheduled": scene.scheduled,
        "running": scene.running,
        "awaiting": scene.awaiting,
        "succeeded": scene.succeeded,
        "failed": scene.failed,
        "cancelled": scene.cancelled,
    }
    stale = await scene.stale()
    assert (await scene.read(stale))["staleness"]["stale"] is True
    for status, make in states.items():
        job = await make()
        assert (await scene.read(job))["status"] == status  # type: ignore[arg-type]
    waiting = await scene.read(await scene.retrying())
    assert (waiting["status"], waiting["waiting_for"]) == ("scheduled", "backoff")
    held = await scene.queued(await scene.outage())
    assert (await scene.read(held))["waiting_for"] == "circuit_open"
    assert live.base


async def test_the_server_comes_back_at_the_same_address(live: Live, page: Page) -> None:
    for _ in range(2):
        assert (await page.request.get(f"{live.base}/healthz")).ok
        await live.stop()
        await live.start()
