"""The studio's page in a real browser: what it shows, that it stops asking, and a whole journey.

For most of them the page and its script are those the app serves, and the answers to its questions
are written here, as are the streams that it listens to.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.responses import Response, StreamingResponse

import penstock
from cluster import Cluster
from journeys.browser import CHROMIUM, printed_page, served
from journeys.studio_site import FOLDER, FREE, GROWTH, MARK, STARTER, Studio, customer, running
from journeys.tab import Tab, tab
from penstock.providers.simulated.scenes import picture
from waiting import eventually

STATIC = FOLDER / "static"
COMPONENT = Path(penstock.__file__).parent / "dashboard" / "static"
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")

# Somebody who orders at once, and whose order is refused.
CLICK = """
<script>
let clicked = false;
new MutationObserver(() => {
  const by = (id) => document.getElementById(id);
  if (!clicked && (by("balance")?.textContent ?? "…") !== "…") {
    clicked = true;
    by("prompt").value = "a lake";
    by("generate").click();
    by("generate").click();
  }
  if (!by("wrong")?.textContent) return;
  fetch("/ended", { method: "POST", body: JSON.stringify({ asked: [], shown: [] }) });
}).observe(document, { subtree: true, childList: true, characterData: true });
</script>
"""
HOLD = '<img src="/hold" alt="">'

JOB = "01900000-0000-7000-8000-000000000001"
BATCH = "01900000-0000-7000-8000-000000000002"
WORDS = {
    "queued": "queued",
    "generating": "running",
    "completed": "succeeded",
    "failed": "failed",
    "cancelled": "cancelled",
}
LIVE = ("queued", "generating")
ACCOUNT = {
    "plan": "free",
    "balance": 6,
    "running": 1,
    "queued": 0,
    "concurrency": 1,
    "per_hour": 10,
    "priority": 50,
    "submitted_last_hour": 3,
    "next_submit_at": None,
}


def order(status: str, message: str, *states: str, **more: Any) -> dict[str, Any]:
    """Four images, as the app shows them; those that are not named wait."""
    pictures: list[dict[str, Any]] = []
    for number in range(1, 5):
        state = states[number - 1] if number <= len(states) else "waiting"
        one: dict[str, Any] = {"number": number, "state": state}
        if state == "ready":
            one["url"] = f"/api/images/{JOB}/{number}.png"
        elif state in ("failed", "refunded"):
            one |= {"why": "refused", "credits": 1}
        pictures.append(one)
    return {
        "job_id": JOB,
        "job": {"src": f"/penstock/v1/batches/{BATCH}"} if status in LIVE else None,
        "job_type": "freestyle",
        "prompt": "A <b>lake</b>",
        "images": 4,
        "quality": "standard",
        "jobs": 1,
        "status": status,
        "stopping": False,
        "note": "",
        "message": message,
        "position": None,
        "eta_seconds": None,
        "ready": states.count("ready"),
        "pictures": pictures,
        "credits": {"reserved": 4, "charged": 0, "refunded": 0},
        "created_at": "2026-01-01T12:00:00+00:00",
        "completed_at": None,
        **more,
    }


WAITS = order("queued", "You are #3 in the queue.", position=3, eta_seconds=12)
DRAWS = order("generating", "Generating your images…", "drawing")
SOME = order("generating", "Generating your images… 1 of 4 so far.", "ready", "failed", "drawing")
PART = order(
    "completed",
    "3 of 4 images are ready. 1 credit was refunded.",
    *("ready", "refunded", "ready", "ready"),
    credits={"reserved": 4, "charged": 3, "refunded": 1},
)
FAILED = order(
    "failed",
    "Not one image came. 4 credits were refunded.",
    *["refunded"] * 4,
    credits={"reserved": 4, "charged": 0, "refunded": 4},
)
CANCELLED = order("cancelled", "Cancelled. 4 credits were refunded.", *["refunded"] * 4)

GONE: dict[str, Any] = {}


@pytest.fixture(scope="module")
def shop_window(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    with (
        cluster.database() as name,
        running(cluster.dsn(name), tmp_path_factory.mktemp("studio"), model=False) as site,
    ):
        yield site


def test_the_page_asks_every_three_seconds_until_all_has_ended() -> None:
    """G16: where no stream comes through, by `watch()` and <penstock-job>, whose tests show it."""
    script = (STATIC / "studio.js").read_text()
    assert 'import { watch } from "/penstock/static/penstock.js";' in script
    assert 'const ENDED = new Set(["completed", "failed", "cancelled"]);' in script
    assert "interval" not in script
    assert "setInterval" not in script
    assert "interval: Number(this.getAttribute" in (COMPONENT / "penstock/element.js").read_text()


@pytest.mark.timeout(120)
@NEEDS_CHROMIUM
@pytest.mark.parametrize(
    ("answers", "sentences", "words"),
    [
        (
            [WAITS, DRAWS, SOME, PART],
            [
                "You are in the queue / #3 in queue / starts in a few seconds",
                "Generating your images…",
                "Generating your images… 1 of 4 so far.",
                "3 of 4 images are ready. 1 credit was refunded.",
            ],
            ["A <b>lake</b>", "1 credit refunded", "3 credits charged"],
        ),
        ([WAITS, FAILED], [None, FAILED["message"]], ["4 credits refunded"]),
        ([DRAWS, CANCELLED], [DRAWS["message"], CANCELLED["message"]], []),
        ([DRAWS, None, PART], [DRAWS["message"], DRAWS["message"], PART["message"]], []),
    ],
    ids=["partial success", "failed", "cancelled", "server gone for a moment"],
)
async def test_the_page_shows_how_it_goes_and_stops_asking_at_the_end(
    shop_window: Studio,
    tmp_path: Path,
    answers: list[dict[str, Any] | None],
    sentences: list[str | None],
    words: list[str],
) -> None:
    """G12, G16: opened while an order waits or runs, as after a reload."""
    async with watching(shop_window, tmp_path, answers[0]) as (stage, page):
        for answer, sentence in zip(answers, sentences, strict=True):
            await stage.tell(answer)
            if sentence is not None:
                await page.sees(f"{SAID} === {sentence!r}", sentence)
            away = "Boolean(document.getElementById('offline').textContent)"
            await page.sees(f"{away} === {json.dumps(answer is None)}", "whether it is reached")
        seen, text = stage.questions, await page.run("document.body.innerText")
        await asyncio.sleep(0.8)
        assert stage.questions == seen
        assert BATCH not in stage.listening
    assert stage.accounts == {FREE}
    for expected in [*words, "Your plan: ", "10 orders an hour; 3 used", "6 credits"]:
        assert expected in text


@pytest.mark.timeout(120)
@NEEDS_CHROMIUM
@pytest.mark.parametrize(
    ("status", "said"),
    [
        (402, {"error": "This costs 4 credits, and you have 2.", "field": "images", "balance": 2}),
        (429, {"error": "The next one will pass at 12:34 UTC.", "field": None}),
        (500, {"error": "Something went wrong on our side.", "field": None}),
    ],
)
async def test_a_refusal_is_said_in_plain_words(
    shop_window: Studio, tmp_path: Path, status: int, said: dict[str, Any]
) -> None:
    """G2, G7: one click, one request; the price was shown before."""
    stage = await _stage(shop_window, CLICK, None)
    stage.refusal = JSONResponse({"ok": False, **said}, status)
    async with stage.running() as port:
        printed = await printed_page(f"http://127.0.0.1:{port}/", tmp_path)
    assert f'<p class="wrong" id="wrong" role="alert">{said["error"]}</p>' in printed
    assert len(stage.orders) == 1
    [(sent, key)] = stage.orders
    right = {"job_type": "freestyle", "prompt": "a lake", "images": 4, "quality": "standard"}
    assert sent == right
    assert key
    assert "Generate for 4 credits" in printed
    assert "1 credit each, 4 credits in all." in printed
    assert ("That is not enough." in printed) == (status == 402)
    assert "Nothing yet." in printed


async def _stage(
    site: Studio, script: str, now: dict[str, Any] | None, *, held: bool = True
) -> "Stage":
    async with customer(site, FREE) as ana:
        real = await ana.client.get("/")
    page = real.text.replace("<head>", f"<head>{script}")
    if held:
        page = page.replace("</body>", f"{HOLD}</body>")
    # What the app forbids its page stays forbidden, but for the script that is put in here.
    policy = real.headers["content-security-policy"]
    policy = policy.replace("script-src 'self'", "script-src 'self' 'unsafe-inline'")
    return Stage(page, policy, now)


class Stage:
    """A server with the real page, and an order that is as the test says; None: nobody answers."""

    def __init__(self, page: str, policy: str, now: dict[str, Any] | None) -> None:
        self.page = page
        self.policy = policy
        self.now = now
        self.is_empty = now is None
        self.questions = 0
        self.listening: dict[str, asyncio.Queue[str | None]] = {}
        """Who listens, by the id of what: the account, the order."""
        self.orders: list[tuple[Any, str | None]] = []
        self.refusal: Response = JSONResponse({})
        self.cancelled: Response = JSONResponse({})
        self.accounts: set[str | None] = set()
        self.images: list[int] = []
        self.has = ACCOUNT
        self.late: asyncio.Event | None = None
        self._version = 0
        self._ended = asyncio.Event()

    def app(self) -> FastAPI:
        app = FastAPI()
        app.mount("/static", StaticFiles(directory=STATIC))
        app.mount("/penstock/static", StaticFiles(directory=COMPONENT))
        app.add_api_route("/penstock/v1/accounts/{name}/events", self.listen)
        app.add_api_route("/penstock/v1/batches/{name}/events", self.listen)
        app.add_api_route("/penstock/v1/batches/{name}", self.read_batch)
        app.add_api_route("/penstock/v1/batches/{name}/cancel", self.cancel, methods=["POST"])
        app.add_api_route("/", self.show, response_class=HTMLResponse)
        app.add_api_route("/api/history", self.history)
        app.add_api_route("/api/balance", self.balance)
        app.add_api_route("/api/generations/{job}", self.answer)
        app.add_api_route("/api/images/{job}/{name}", self.image)
        app.add_api_route("/api/enqueue-generation", self.refuse, methods=["POST"])
        app.add_api_route("/hold", self.hold)
        app.add_api_route("/ended", self.end, methods=["POST"])
        return app

    # --- Penstock's ------------------------------------------------------------------------------

    async def tell(self, now: dict[str, Any] | None) -> None:
        """The order is so now, and who listens hears of it."""
        self.now, self.is_empty = now, False
        self._version += 1
        for name in list(self.listening):
            self._send(name)

    def _send(self, name: str) -> None:
        event, data = ("batch", self.batch()) if name == BATCH else ("job", self.job())
        self.listening[name].put_nowait(f"event: {event}\ndata: {json.dumps(data)}\n\n")

    def job(self, **more: Any) -> dict[str, Any]:
        now = self.now or {}
        return {
            "id": JOB,
            "batch": BATCH,
            "status": WORDS.get(now.get("status", ""), "running"),
            "attempt": 1,
            # Something that is news, whatever is told.
            "progress": {"done": self._version, "total": 100},
            "position": now.get("position"),
            "eta_seconds": now.get("eta_seconds"),
            "waiting_for": None,
            "cancel_requested": False,
            "staleness": None,
            "error": None,
            "started_at": "2026-01-01T12:00:00Z",
            "version": self._version,
            **more,
        }

    def batch(self, **more: Any) -> dict[str, Any]:
        job = self.job(**more)
        return {
            "id": BATCH,
            "total": 1,
            **{name: int(job["status"] == name) for name in WORDS.values()},
            "status": job["status"],
            "progress": {"done": 0, "total": 1, "partial": [None]},
            "credits": None,
            "position": job["position"],
            "eta_seconds": job["eta_seconds"],
            "items": [job],
        }

    async def listen(self, name: str) -> Response:
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        self.listening[name] = queue
        if not self.is_empty:
            self._send(name)

        async def events() -> AsyncIterator[str]:
            try:
                yield "retry: 100\n\n"
                while (event := await queue.get()) is not None:
                    yield event
            finally:
                if self.listening.get(name) is queue:
                    del self.listening[name]

        return StreamingResponse(events(), media_type="text/event-stream")

    async def read_batch(self) -> JSONResponse:
        return JSONResponse(self.batch())

    async def cancel(self) -> Response:
        return self.cancelled

    # --- the app's -------------------------------------------------------------------------------

    async def show(self) -> HTMLResponse:
        return HTMLResponse(self.page, headers={"content-security-policy": self.policy})

    async def history(self, request: Request) -> JSONResponse:
        self._asked(request)
        live = {"src": f"/penstock/v1/accounts/{FREE}", "token": "pt_1"}
        items = [] if self.now is None else [self.now]
        found = {"ok": True, "account": self.has, "items": items, "before": None, "live": live}
        if (late := self.late) is not None:
            self.late = None
            await late.wait()
        return JSONResponse(found)

    async def balance(self, request: Request) -> JSONResponse:
        self._asked(request)
        return JSONResponse({"ok": True, "account": self.has})

    async def answer(self, request: Request) -> JSONResponse:
        self._asked(request)
        if self.now is None:
            return JSONResponse({"ok": False, "error": "Bad gateway"}, 502)
        if self.now == GONE:
            return JSONResponse({"ok": False, "error": "You have no order with this id."}, 404)
        return JSONResponse({"ok": True, "account": self.has, "generation": self.now})

    def _asked(self, request: Request) -> None:
        self.questions += 1
        self.accounts.add(request.headers.get("x-account"))

    async def image(self) -> Response:
        """With the statuses that were asked for first."""
        status = self.images.pop(0) if self.images else 200
        drawn = picture(Random(1), 64, 64) if status == 200 else b""
        return Response(drawn, status, media_type="image/png")

    async def refuse(self, request: Request) -> Response:
        sent = json.loads(await request.body())
        self.orders.append((sent, request.headers.get("idempotency-key")))
        return self.refusal

    async def hold(self) -> JSONResponse:
        await self._ended.wait()
        return JSONResponse({})

    async def end(self) -> JSONResponse:
        self._ended.set()
        return JSONResponse({})

    def _leave(self) -> None:
        self._ended.set()
        for queue in self.listening.values():
            queue.put_nowait(None)

    def running(self) -> AbstractAsyncContextManager[int]:
        return served(self.app(), self._leave)


# --- clicks -----------------------------------------------------------------------------------

PRESS = """
(() => {{
  const type = (id, value) => {{
    const field = document.getElementById(id);
    field.value = value;
    field.dispatchEvent(new Event("input", {{ bubbles: true }}));
  }};
  type("prompt", {prompt});
  type("images", "{images}");
  document.getElementById("generate").focus();
  document.getElementById("generate").click();
}})()
"""

AWAKE = "document.getElementById('generate').getAttribute('aria-disabled')"
COME_BACK = "document.dispatchEvent(new Event('visibilitychange'))"


# What is said of the first order: by <penstock-job> while it is one, and then by its card.
SAID = """
(() => {
  const card = document.querySelector("article");
  const element = card?.querySelector("penstock-job");
  if (!element || element.hidden) return card?.querySelector(".message").textContent ?? "";
  const parts = ["words", "position", "wait", "banner", "note", "refusal"];
  return parts.map((name) => element.shadowRoot.querySelector(`[part=${name}]`))
    .filter((part) => !part.hidden).map((part) => part.textContent).join(" / ");
})()
""".strip()
CANCEL = "[...document.querySelectorAll('penstock-job')].find((one) => !one.hidden)"
CANCEL += "?.shadowRoot.querySelector('[part=cancel]')"


def text(selector: str) -> str:
    return f'(document.querySelector({json.dumps(selector)})?.textContent ?? "")'


async def press_generate(page: Tab, images: int) -> None:
    await page.sees(f"{AWAKE} === null", "the button is awake")
    await page.run(PRESS.format(prompt=json.dumps(f"A {MARK} at dawn"), images=images))


# Three seconds are short, and the rest of a button is long enough to be seen on a busy machine.
HASTE = """
<script>
const later = window.setTimeout.bind(window);
window.setTimeout = (work, ms, ...rest) =>
  later(work, { 3000: 300, 1000: 4000 }[ms] ?? ms, ...rest);
</script>
"""
UNSURE = "We do not know whether it arrived."


@asynccontextmanager
async def watching(
    site: Studio, folder: Path, now: dict[str, Any] | None
) -> AsyncIterator[tuple[Stage, Tab]]:
    stage = await _stage(site, HASTE, now, held=False)
    async with stage.running() as port, tab(folder) as page:
        await page.look_like(390, 600)
        await page.open(f"http://127.0.0.1:{port}/")
        await page.sees(f"{text('#balance')} === '6 credits'", "the page is ready")
        yield stage, page


@pytest.mark.timeout(120)
@NEEDS_CHROMIUM
async def test_an_order_whose_answer_is_lost_is_sent_again(
    shop_window: Studio, tmp_path: Path
) -> None:
    """G2: as the same order, whatever is written meanwhile; and a slow double click is one."""
    async with watching(shop_window, tmp_path, None) as (stage, page):
        stage.refusal = Response("a gateway's page", 502)
        await press_generate(page, 2)
        await page.sees(f"{text('#wrong')}.startsWith({UNSURE!r})", "it is not known")
        edit = "document.getElementById('prompt')"
        await page.run(
            f"{edit}.value = 'other'; {edit}.dispatchEvent(new Event('input', {{ bubbles: true }}))"
        )
        await page.sees(f"{text('#wrong')}.includes('Press Generate')", "it gives up")
        assert await page.run(AWAKE) is None
        assert len(stage.orders) == 4
        await stage.tell(DRAWS)
        stage.refusal = JSONResponse({"ok": True, "job_id": JOB, "new_balance": 2}, 201)
        await press_generate(page, 2)
        await page.sees(f"{text('#generate')} === 'Ordered'", "it is ordered")
        await page.run("document.getElementById('generate').click()")
        await page.sees("document.activeElement.tagName === 'ARTICLE'", "the card has the focus")
        await page.sees(f"{AWAKE} === null", "the button is awake")
        assert await page.run(text("#wrong")) == ""
    assert len(stage.orders) == 5
    assert len({key for _, key in stage.orders}) == 1
    assert len({json.dumps(sent) for sent, _ in stage.orders}) == 1


@pytest.mark.timeout(120)
@NEEDS_CHROMIUM
async def test_what_is_cancelled_says_so_at_once(shop_window: Studio, tmp_path: Path) -> None:
    """G4: or, in the card, why not; its end is found among the past ones, focus and all."""
    async with watching(shop_window, tmp_path, DRAWS) as (stage, page):
        await page.sees(f"{CANCEL}?.hidden === false", "it can be cancelled")
        click = f"{CANCEL}.focus(); {CANCEL}.click()"
        stage.cancelled = JSONResponse({"detail": "Not now."}, 503)
        await page.run(click)
        again = "The studio could not be reached. Press Cancel again."
        await page.sees(f"{SAID}.endsWith({again!r})", "it is said in the card")
        stage.cancelled = JSONResponse(stage.batch(cancel_requested=True))
        stopping = "Stopping…"
        await page.run(click)
        await page.sees(f"{SAID} === {stopping!r}", "it stops")
        stage.images = [503] * 3
        await stage.tell(PART)
        await page.sees("document.querySelector('#past article') !== null", "it is past")
        assert await page.run("document.getElementById('now').hidden")
        assert await page.run("document.activeElement.tagName") == "ARTICLE"
        # Pictures that did not come are asked for again.
        await page.sees("document.querySelectorAll('[data-state=missing]').length === 3", "none")
        drawn = "[...document.querySelectorAll('article img')].filter((i) => i.naturalWidth)"
        await page.run(COME_BACK)
        await page.sees(f"{drawn}.length === 3", "the pictures are there")


@pytest.mark.timeout(120)
@NEEDS_CHROMIUM
async def test_an_order_that_is_gone_ends_its_card(shop_window: Studio, tmp_path: Path) -> None:
    """And for all: colours of one's own, a header that hides nothing, times not too early."""
    async with watching(shop_window, tmp_path, DRAWS) as (stage, page):
        await page.sees(f"{SAID} === {DRAWS['message']!r}", "it is drawn")
        await stage.tell(GONE)
        await page.sees(f"{text('#past .message')} === 'This order is not there any more.'", "gone")
        assert await page.run("document.querySelector('penstock-job').hidden")
        seen = stage.questions
        await asyncio.sleep(0.8)
        assert stage.questions == seen

        forced = {"name": "forced-colors", "value": "active"}
        await page.command("Emulation.setEmulatedMedia", features=[forced])
        for name in ("job_type", "quality"):
            colours = await page.run(
                f"[...document.querySelectorAll('[name={name}]')].map((one) =>"
                " [one.checked, getComputedStyle(one.nextElementSibling).backgroundColor])"
            )
            [chosen] = [colour for checked, colour in colours if checked]
            assert chosen not in [colour for checked, colour in colours if not checked]

        await page.run("scrollTo(0, document.body.scrollHeight)")
        await page.run("document.getElementById('prompt').scrollIntoView({ block: 'nearest' })")
        below = "document.getElementById('prompt').getBoundingClientRect().top"
        assert await page.run(
            f"{below} >= document.querySelector('header').getBoundingClientRect().bottom"
        )

        words = "import('/static/words.js').then((words) => words.localTimeAfter({}))"
        for second, minute in ((0, "00"), (1, "01"), (59, "01")):
            moment = json.dumps(f"2026-01-01T12:00:{second:02}.000Z")
            assert (await page.run(words.format(moment)))[-2:] == minute


@pytest.mark.timeout(120)
@NEEDS_CHROMIUM
async def test_an_older_answer_that_comes_later_is_not_shown(
    shop_window: Studio, tmp_path: Path
) -> None:
    async with watching(shop_window, tmp_path, PART) as (stage, page):
        stage.late = late = asyncio.Event()
        stage.now = DRAWS
        seen = stage.questions
        await page.run(COME_BACK)

        async def asked() -> bool:
            return stage.questions > seen

        await eventually(asked, "the first question is there")
        stage.now, stage.has = PART, {**ACCOUNT, "balance": 7}
        await page.run(COME_BACK)
        await page.sees(f"{text('#balance')} === '7 credits'", "the second answer is there")
        late.set()
        await asyncio.sleep(0.5)
        assert await page.run(text("#balance")) == "7 credits"
        assert await page.run(text(".message")) == PART["message"]


# --- a whole journey ------------------------------------------------------------------------------


@pytest.mark.timeout(180)
@NEEDS_CHROMIUM
async def test_a_customer_clicks_through(database: str, tmp_path: Path) -> None:
    """G2, G4, G12, G13, G15, G16: sign in, order, watch, lose one, cancel, come back."""
    with running(database, tmp_path) as site:
        # The oldest that fits is taken: one is refused, the others take their time.
        await site.fault(fault="refusal", times=1)
        await site.fault(fault="delay", by=0.3)
        async with tab(tmp_path) as page:
            await page.look_like(390, 844)
            await page.open(f"http://127.0.0.1:{site.web_port}/operator?code=only-the-operator")
            await page.run('document.querySelector("[value=customer-1]").click()')
            await page.sees(f'{text("#balance")} === "10 credits"', "the balance is there")
            assert await page.run("document.documentElement.scrollWidth") <= 390

            await press_generate(page, 3)
            queued = "You are in the queue / #1 in queue"
            await page.sees(f"{SAID}.startsWith({queued!r})", "it waits")
            await page.sees(f"{text('.note')} === 'Nobody is at work yet.'", "it is said why")
            assert await page.run(text("#balance")) == "7 credits"
            site.start_worker()
            drawn = "[...document.querySelectorAll('article img')].filter((i) => i.naturalWidth)"
            await page.sees(f"{drawn}.length >= 1", "the first picture is there")
            ready = "2 of 3 images are ready. 1 credit was refunded."
            await page.sees(f"{SAID} === {ready!r}", "one is lost")
            await page.sees(f"{drawn}.length === 2", "two pictures are there")
            assert await page.run(text("[data-state=refunded] strong")) == "1 credit refunded"
            await page.sees(f"{text('#balance')} === '8 credits'", "it is refunded")

            await site.command("/_heal")
            await site.fault(fault="delay", by=5)
            await press_generate(page, 4)
            await page.sees(f"{CANCEL}?.hidden === false", "it can be cancelled")
            assert await page.run(text("#balance")) == "4 credits"
            await page.run(f"{CANCEL}.click()")
            await page.sees(f"{SAID}.startsWith('Cancelled.')", "it is cancelled")
            left = int((await page.run(text("#balance"))).split()[0])
            assert 4 < left <= 8

            await page.run("document.querySelector('[value=high]').click()")
            await press_generate(page, 5)
            short = f"This costs 15 credits, and you have {left}."
            await page.sees(f"{text('#wrong')}.startsWith({short!r})", "that is too much")
            # Clicks on one purchase that follow at once are the same purchase.
            await page.run("for (let n = 0; n < 3; n += 1) document.getElementById('buy').click()")
            await page.sees(f"{text('#balance')} === '{left + 10} credits'", "ten were bought")
            await page.sees(f"{text('#operator-said')}.startsWith('Bought.')", "it is said")
            assert await page.run(text("#wrong")) == ""

            await page.open(f"http://127.0.0.1:{site.web_port}/")
            cards = "document.querySelectorAll('article').length"
            await page.sees(f"{cards} === 2", "the history is there")
            assert await page.run(text("#balance")) == f"{left + 10} credits"
            assert await page.run("document.documentElement.scrollWidth") <= 390


@pytest.mark.timeout(120)
@NEEDS_CHROMIUM
async def test_what_happens_in_another_tab_is_seen(shop_window: Studio, tmp_path: Path) -> None:
    """An order, and then another customer: for that one nothing is ordered here."""
    async with tab(tmp_path) as page:
        await page.open(f"http://127.0.0.1:{shop_window.web_port}/")
        await page.run(f"document.querySelector('[value={GROWTH}]').click()")
        await page.sees(f"{text('#balance')} === '100 credits'", "the balance is there")
        async with customer(shop_window, GROWTH) as elsewhere:
            await elsewhere.order(images=1)
            await page.run(COME_BACK)
            await page.sees("document.querySelectorAll('#current article').length === 1", "seen")
            assert await page.run(text("#balance")) == "99 credits"
            await page.run(
                "fetch('/sign-in', { method: 'POST', body: new URLSearchParams("
                f"{{ customer: {STARTER!r} }}) }})"
            )
            another = "You are signed in as another customer in this browser now."
            await page.run(COME_BACK)
            await page.sees(f"{text('#offline')}.startsWith({another!r})", "it is said")
            await press_generate(page, 1)
            await page.sees(f"{text('#wrong')} === {another!r}", "nothing is ordered")
            await page.run("document.querySelector('#offline a').click()")
            await page.sees(f"{text('#balance')} === '50 credits'", "the other's page is there")
            assert (await elsewhere.has())["balance"] == 99
