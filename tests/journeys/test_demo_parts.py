"""Parts of the demo by themselves: what its processes are told, and what is said of their ends."""

import asyncio
import json
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import httpx
import pytest

from penstock.base.settings import Settings
from support.waiting import eventually

if TYPE_CHECKING:
    from demo.children import Child, End

LONG = 60


pytestmark = pytest.mark.usefixtures("examples")


def test_what_is_set_for_something_else_is_not_for_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from demo import setting

    monkeypatch.setenv("PENSTOCK_WORKER_ID", "the-large-one")
    monkeypatch.setenv("OLLAMA_URL", "https://model.example.org")
    settings = Settings(home=tmp_path, public_url="https://queue.example.org")
    told = setting.environment(settings, "http://127.0.0.1:8484", setting.Ports(1, 2, 3, 4, 5))
    assert told["PENSTOCK_PUBLIC_URL"] == "http://127.0.0.1:8484"
    assert told["PENSTOCK_WORKER_ID"] == ""
    assert told["OLLAMA_URL"] == "http://127.0.0.1:1"


async def test_what_is_stopped_while_it_is_created_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from demo import children

    (tmp_path / "sleeper.py").write_text(f"import time; time.sleep({LONG})")
    ends: list[End] = []
    life = children.Life()
    child = children.Child("sleeper", [], life=life, on_end=lambda _, end: ends.append(end))
    create = asyncio.create_subprocess_exec

    async def stopped_meanwhile(*words: Any, **options: Any) -> asyncio.subprocess.Process:
        process = await create(*words, **options)
        child.stop()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", stopped_meanwhile)
    child.start()
    before = time.monotonic()
    running = asyncio.create_task(child.keep_running({"PATH": ""}, tmp_path))
    try:

        async def ended() -> bool:
            return bool(ends)

        await eventually(ended, "it ends", seconds=LONG / 2)
        assert ends[0].code < 0
        assert ends[0].was_asked
        assert before <= ends[0].at <= time.monotonic()
    finally:
        child.kill()
        running.cancel()
        life.close()


class Looks:
    """Of a database where two of three jobs went on, and one had been lost too often."""

    def __init__(self) -> None:
        self.since: list[datetime] = []
        self.orphans: list[Any] = [uuid4()] * 3
        self.without = (0, 1)

    async def running(self) -> list[Any]:
        return self.orphans

    async def without_start(self, _: list[Any]) -> tuple[int, int]:
        return self.without

    async def has_worker(self, _: int) -> bool:
        return False

    async def clock(self) -> datetime:
        return datetime.now(UTC)

    async def waiting(self) -> int:
        return 2

    async def failed_since(self, moment: datetime) -> int:
        self.since.append(moment)
        return 0

    async def started_since(self, moment: datetime) -> datetime:
        return moment


class Part:
    """A process that is wanted, and not there yet."""

    pid, is_wanted = 4711, True


class Told:
    """A healing, and its story."""

    def __init__(self, answers: list[bool]) -> None:
        from demo.healing import Healing
        from demo.story import Story

        async def answer() -> bool:
            return answers.pop(0) if len(answers) > 1 else answers[0]

        looks: Any = Looks()
        part: Any = Part()
        self.looks: Looks = looks
        self.child: Child = part
        self.story = Story()
        self.healing = Healing(self.story, looks, answers_model=answer, answers_sites=answer)

    def lines(self) -> list[str]:
        return [line["text"] for line in self.story.read("en")]

    async def reads(self, what: str) -> str:
        async def is_there() -> bool:
            return any(what in line for line in self.lines())

        await eventually(is_there, f"a line with {what!r}")
        return next(line for line in self.lines() if what in line)


def end(code: int = -9, ago: float = 0.0, *, was_asked: bool = False) -> "End":
    from demo.children import End

    return End(12, code, time.monotonic() - ago, was_asked)


async def test_a_job_that_ended_without_another_start_is_not_told_as_saved() -> None:
    told = Told([True])
    told.healing.worker_ended(end(), told.child)
    line = await told.reads("had 2 of them; 1 ended without another start")
    assert line.startswith("The worker (process 12) was killed. 3 jobs had no owner.")
    told.looks.without = (0, 0)
    told.healing.worker_ended(end(code=1), told.child)
    line = await told.reads("gave up; the terminal says why")
    assert line.endswith("a new worker had all of them.")
    await told.healing.close()


async def test_an_outage_counts_from_the_press() -> None:
    told = Told([False, False, True])
    began = datetime.now(UTC)
    told.healing.model_ended(end(code=0, ago=7, was_asked=True), told.child)
    line = await told.reads("a job was at work")
    assert line.startswith("The model was away for 7.")
    assert all(6 < (began - since).total_seconds() < 8 for since in told.looks.since)
    await told.healing.close()


async def test_every_part_has_one_watcher_and_none_watches_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from demo import healing

    told = Told([False])
    told.looks.orphans = []
    told.healing.worker_ended(end(), told.child)
    await told.reads("No job was with it")
    monkeypatch.setattr(healing, "LONGEST_SECONDS", 0.0)
    monkeypatch.setattr(healing, "LONGEST_AWAY_SECONDS", 0.0)
    told.healing.worker_ended(end(), told.child)
    for _ in range(3):
        told.healing.sites_ended(end())
        told.healing.model_ended(end(), told.child)
    await told.reads("The next one ended, too.")
    await told.reads("no new one stands by")
    await told.reads("is not watched any longer")
    await told.reads("they do not answer")
    assert len(told.lines()) == 4, "what ends again while it is away is the same outage"
    await told.healing.close()


async def test_the_essays_scorer_comes_back_from_its_fault() -> None:
    from demo import models
    from essays import model as scorer
    from parts import free_port

    stop, port = asyncio.Event(), free_port()
    serving = asyncio.create_task(models._score(port, stop))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:

        async def answers() -> bool:
            try:
                return (await client.get("/calls")).is_success
            except httpx.TransportError:
                return False

        await eventually(answers, "it is there")
        first = scorer.state.server
        await client.post("/fault", json={"mode": "down", "seconds": 0.1})

        async def is_back() -> bool:
            return scorer.state.server is not first and await answers()

        await eventually(is_back, "it is back")
    stop.set()
    assert scorer.state.server
    scorer.state.server.should_exit = True
    await asyncio.wait_for(serving, LONG)


async def test_a_web_app_that_ends_by_itself_takes_the_others_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from demo import sites

    left: list[str] = []

    class Server(sites.Server):
        async def serve(self, sockets: Any = None) -> None:
            name = str(self.config.app)
            # A server has a flag for its end, and no event.
            while sockets and name == "stays" and not self.should_exit:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            left.append(name)

    for name in ("stays", "gives_up"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "app.py").write_text(f"web = {name!r}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sites, "Server", Server)
    with socket.socket() as one, pytest.raises(SystemExit, match="ended by itself"):
        await sites.serve({"stays": one, "gives_up": one})
    assert left == ["gives_up", "stays"]


def test_the_marking_function_takes_no_orders_from_web_pages() -> None:
    from marking.function import Control, Function, Log, Orders

    function = Function(0, "secret", Orders(1.0), Log(None))
    control = type("Own", (Control,), {"function": function})
    server = ThreadingHTTPServer(("127.0.0.1", 0), control)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def order(wanted: Any, **headers: str) -> int:
        url = f"http://127.0.0.1:{server.server_address[1]}/_order"
        request = urllib.request.Request(url, json.dumps(wanted).encode(), headers)
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as done:
                return int(done.status)
        except urllib.error.HTTPError as refused:
            return refused.code

    try:
        assert order({"fail": 2}) == 200
        assert order({"fail": 9}, Origin="https://page.example.org") == 403
        assert order({"fail": 9}, Host="page.example.org") == 403
        assert order({"take": 1}) == 422
        assert order({"seconds": -1}) == 422
        assert order([]) == 422
        assert function.orders.fail == 2
        assert callable(function.orders.take)
    finally:
        server.shutdown()
        server.server_close()
