"""The demo: five systems, visitors, a landing page; broken parts recover automatically."""

import asyncio
import json
import random
import re
import signal
import socket
from collections.abc import Iterator
from http.cookiejar import Cookie
from pathlib import Path

import pytest
from playwright.async_api import Page, Route, expect

from browser.axe import axe
from browser.watched import Windows, fits_sideways
from journeys.demo_site import (
    PATIENCE_SECONDS,
    SYSTEMS,
    Demo,
    Now,
    are_gone,
    stranger,
    visitor,
)

pytestmark = pytest.mark.timeout(300)

# What each of them shows to whoever comes by the landing page's door, and to nobody else.
INSIDE = {
    "marking": "Why are leaves green?",
    "essays": "Ana",
    "scanner": "Crashes once in tier 1",
    "feedback": "50 Abgaben auf einmal",
    "studio": "customer 2",
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """One running demo for all tests; the last test stops it."""
    running = Demo(tmp_path_factory.mktemp("demo"))
    yield running
    running.close()


async def test_every_system_runs_jobs_without_interaction(demo: Demo) -> None:
    async with stranger(demo) as client:
        landing = await client.get(demo.told["demo"])
        assert landing.url.path == "/demo"
        for name in ("Marking", "Essays", "Package scanner", "Class feedback", "Image studio"):
            assert f"<h3>{name}</h3>" in landing.text
        # `/` is the dashboard, a click away.
        dashboard = await client.get("/")
        assert "<h1" in dashboard.text
        assert dashboard.url.path == "/"
    async with stranger(demo) as client:
        again = await client.get(demo.told["demo"])
        assert again.status_code == 401, "the link signs in once"
    async with visitor(demo) as person:
        assert not (await person.now())["idle"]
        await person.sees("a job of each system is done", lambda now: all(_done(now).values()))


async def test_the_kind_of_the_printed_command_runs(demo: Demo) -> None:
    """E1: with nothing but a folder. The kind has its own queue and model beside the five."""
    headers = {"Authorization": f"Bearer {demo.told['secret']}", "Prefer": "wait=30"}
    async with stranger(demo) as client:
        body = {"kind": "feedback", "payload": {"answer": "6 times 7 is 42"}, "account": "u1"}
        job = (await client.post("/v1/jobs", json=body, headers=headers)).json()
        while job["status"] != "succeeded":
            assert job["status"] in ("queued", "running"), job
            job = (await client.get(f"/v1/jobs/{job['id']}", headers=headers)).json()
        assert job["result"]["text"]
        assert job["plan"] == "everybody", "not one that the studio sells, which has a limit"


MARKS = """
from penstock import Penstock

app = Penstock()
line = app.queue("marking", concurrency=2)

@app.job(queue=line)
def mark(submission: str) -> str:
    return submission
"""
HAND_IN = """
from marks import app, mark
print(app.sync.submit(mark, submission="s1").id)
"""


async def test_another_app_of_the_folder_may_use_the_same_names(demo: Demo) -> None:
    """The demo has a database of its own, which it says."""
    assert Path(demo.told["home"]) == demo.folder / ".penstock" / "demo"
    assert (demo.folder / ".penstock" / ".gitignore").read_text() == "*\n", "of both databases"
    (demo.folder / "marks.py").write_text(MARKS)
    handed_in = await demo.run("-c", HAND_IN)
    worked = await demo.run("-m", "penstock", "worker", "marks:app", "--once")
    assert worked.returncode == 0, worked.stderr
    shown = await demo.run("-m", "penstock", "show", handed_in.stdout.strip(), "--json")
    assert json.loads(shown.stdout)["result"] == "s1"
    check = await demo.run("-m", "penstock", "check", PENSTOCK_HOME=demo.told["home"])
    assert check.returncode == 0, check.stdout + check.stderr


async def test_the_page_opens_every_system_signed_in(demo: Demo) -> None:
    async with visitor(demo) as person:
        for key in SYSTEMS:
            inside = await person.client.get(f"/demo/enter/{key}")
            assert inside.status_code == 200, inside.text
            assert str(inside.url).startswith(demo.told["systems"][key])
            assert INSIDE[key] in inside.text, key
        assert (await person.client.get("/demo/enter/nothing")).status_code == 404


async def test_strangers_cannot_break_anything(demo: Demo) -> None:
    async with stranger(demo) as client:
        assert (await client.get("/demo")).url.path == "/login"
        assert (await client.get("/demo/enter/marking")).url.path == "/login"
        assert (await client.get("/demo/now")).status_code == 401
        assert (await client.post("/demo/worker/kill")).url.path == "/login"
    async with visitor(demo) as person:
        before = (await person.now())["worker"]["text"]
        assert (await person.press("worker/kill", form_token="a" * 43)).status_code == 403
        person.client.headers["Sec-Fetch-Site"] = "same-site"  # a page at another port of this host
        assert (await person.press("worker/kill")).status_code == 403
        del person.client.headers["Sec-Fetch-Site"]
        assert (await person.press("worker/hug")).status_code == 404
        assert (await person.now())["worker"]["text"] == before


async def test_a_killed_worker_is_replaced_and_its_jobs_continue(demo: Demo) -> None:
    async with visitor(demo) as person:
        now = await person.sees("jobs are at work", lambda now: _sum(now, "running") > 1)
        pid = _pid(now, "worker")
        assert (await person.press("worker/kill")).url.path == "/demo"
        await are_gone([pid])
        line = await person.reads(rf"process {pid}\) was killed.*new")
        assert re.search(r"[\d.]+ s later a new", line), line
        now = await person.sees("there is another", lambda now: now["worker"]["state"] == "on")
        assert _pid(now, "worker") != pid
        done = _done(now)
        await person.sees("it works", lambda now: sum(_done(now).values()) > sum(done.values()))


async def test_jobs_wait_while_the_model_is_stopped_and_none_fails(demo: Demo) -> None:
    async with visitor(demo) as person:
        pid = _pid(await person.now(), "model")
        await person.press("model/stop")
        await are_gone([pid])
        assert (await person.now())["model"]["state"] == "off"
        await person.sees("jobs wait for it", lambda now: _notes(now) >= {"feedback", "studio"})
        assert "none has failed" in await person.reads("^The model was stopped")
        await person.press("model/start")
        line = await person.reads("^The model was unavailable.*was running")
        assert "none has failed" in line
        assert re.search(r"s after it answered again, a job was running", line), line
        await person.sees("no job waits for it any more", lambda now: not _notes(now))


async def test_the_page_in_a_browser(demo: Demo, windows: Windows) -> None:
    async with visitor(demo) as person:
        state = {"cookies": [_cookie(one) for one in person.client.cookies.jar]}
    page = await windows.open(storage_state=state)
    await page.goto(f"{demo.told['url']}/demo")
    await expect(page.locator("[data-system]")).to_have_count(5)
    await axe(page)
    await windows.looks(page, "demo")
    # Without a reload, new jobs and new lines of the log appear.
    await page.evaluate("window.sameLoad = true")
    strip = page.locator("[data-system=feedback] [data-strip] i").last
    newest = await strip.get_attribute("data-id") or ""
    await expect(strip).not_to_have_attribute("data-id", newest, timeout=PATIENCE_SECONDS * 1000)
    await _kill_by_keyboard(page)
    story = page.get_by_role("log")
    killed = story.locator("li", has_text=re.compile("was killed.*new"))
    await expect(killed.first).to_be_visible(timeout=PATIENCE_SECONDS * 1000)
    assert await page.evaluate("window.sameLoad")
    visitors_pause = page.get_by_text("The visitors pause")
    await expect(visitors_pause).to_be_hidden()
    await page.route("**/demo/now?*", _report_idle)
    await expect(visitors_pause).to_be_visible()
    await page.unroute_all(behavior="wait")
    phone = await windows.open(
        phone=True,
        dark=True,
        storage_state=state,
        locale="de-DE",
        viewport={"width": 375, "height": 800},
    )
    await phone.goto(f"{demo.told['url']}/demo")
    await expect(phone.get_by_role("button", name="Modell anhalten")).to_be_visible()
    await fits_sideways(phone)
    await axe(phone)
    await windows.looks(phone, "demo-phone")


async def _report_idle(route: Route) -> None:
    answer = await route.fetch()
    await route.fulfill(response=answer, json=await answer.json() | {"idle": True})


def _cookie(one: Cookie) -> dict[str, str]:
    return {"name": one.name, "value": one.value or "", "domain": "127.0.0.1", "path": "/"}


async def _kill_by_keyboard(page: Page) -> None:
    button = page.get_by_role("button", name="Kill the worker")
    await button.focus()
    await page.keyboard.press("Enter")
    await expect(button).to_be_focused()


async def test_it_stops_completely_and_the_next_start_continues(demo: Demo) -> None:
    """Ctrl-C, the same folder again with a port taken, and then a death without a word."""
    async with visitor(demo) as person:
        done = _done(await person.now())
    pids = demo.pids()
    assert len(pids) >= 3
    assert demo.end(signal.SIGINT) == 0
    await are_gone(pids)
    assert "Traceback" not in demo.printed, demo.printed
    port, taken = _two_neighbours()
    with taken:
        again = await asyncio.to_thread(Demo, demo.folder, port)
        try:
            assert again.told["url"].endswith(f":{port}")
            assert not again.told["systems"]["marking"].endswith(f":{port + 1}")
            async with visitor(again) as person:
                now = await person.sees(
                    "a job is at work again", lambda now: _sum(now, "running") > 0
                )
                assert all(_done(now)[key] >= done[key] for key in SYSTEMS)
            check = await demo.run("-m", "penstock", "check", PENSTOCK_HOME=again.told["home"])
            assert check.returncode == 0, check.stdout + check.stderr
            pids = again.pids()
            again.end(signal.SIGKILL)
            await are_gone(pids)
        finally:
            again.close()


def _two_neighbours() -> tuple[int, socket.socket]:
    """A port that is free, and who has taken the next one.

    Below those that a system gives to whoever asks for any.
    """
    for port in random.sample(range(20_000, 32_000, 2), 100):
        taken = socket.socket()
        try:
            with socket.socket() as free:
                free.bind(("127.0.0.1", port))
                taken.bind(("127.0.0.1", port + 1))
        except OSError:
            taken.close()
        else:
            taken.listen()
            return port, taken
    raise AssertionError("no two ports beside each other are free")


def _done(now: Now) -> dict[str, int]:
    return {key: now["systems"][key]["done"] for key in SYSTEMS}


def _sum(now: Now, figure: str) -> int:
    return sum(now["systems"][key][figure] for key in SYSTEMS)


def _notes(now: Now) -> set[str]:
    """The systems that say that they wait for the model."""
    return {key for key in SYSTEMS if now["systems"][key]["note"] == "waits for the model"}


def _pid(now: Now, part: str) -> int:
    return int(re.sub(r"\D", "", now[part]["text"]))
