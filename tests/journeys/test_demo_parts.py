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


def test_settings_of_other_apps_do_not_apply_to_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from demo import setting

    monkeypatch.setenv("PENSTOCK_WORKER_ID", "the-large-one")
    monkeypatch.setenv("OLLAMA_URL", "https://model.example.org")
    settings = Settings(home=tmp_path, public_url="https://queue.example.org")
    env = setting.environment(settings, "http://127.0.0.1:8484", setting.Ports(1, 2, 3, 4, 5))
    assert env["PENSTOCK_PUBLIC_URL"] == "http://127.0.0.1:8484"
    assert env["PENSTOCK_WORKER_ID"] == ""
    assert env["OLLAMA_URL"] == "http://127.0.0.1:1"


async def test_a_process_that_is_stopped_during_its_creation_exits(
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

        async def exited() -> bool:
            return bool(ends)

        await eventually(exited, "it exits", seconds=LONG / 2)
        assert ends[0].code < 0
        assert ends[0].was_asked
        assert before <= ends[0].at <= time.monotonic()
    finally:
        child.kill()
        running.cancel()
        life.close()


class Readings:
    """The figures of a database in which two of three jobs continued; one was lost too often."""

    def __init__(self) -> None:
        self.since: list[datetime] = []
        self.lost_jobs: list[Any] = [uuid4()] * 3
        self.without = (0, 1)

    async def running(self) -> list[Any]:
        return self.lost_jobs

    async def without_attempt(self, _: list[Any]) -> tuple[int, int]:
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
    """A process that is wanted and does not exist yet."""

    pid, is_wanted = 4711, True


class Watched:
    """A Healing and its story."""

    def __init__(self, answers: list[bool]) -> None:
        from demo.healing import Healing
        from demo.story import Story

        async def answer() -> bool:
            return answers.pop(0) if len(answers) > 1 else answers[0]

        readings: Any = Readings()
        part: Any = Part()
        self.readings: Readings = readings
        self.child: Child = part
        self.story = Story()
        self.healing = Healing(self.story, readings, answers_model=answer, answers_sites=answer)

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


async def test_a_job_that_finished_without_another_attempt_is_not_reported_as_recovered() -> None:
    watched = Watched([True])
    watched.healing.worker_exited(end(), watched.child)
    line = await watched.reads("had 2 of them; 1 finished without another attempt")
    assert line.startswith("The worker (process 12) was killed. 3 jobs had no owner.")
    watched.readings.without = (0, 0)
    watched.healing.worker_exited(end(code=1), watched.child)
    line = await watched.reads("exited with an error; the terminal shows why")
    assert line.endswith("a new worker had all of them.")
    await watched.healing.close()


async def test_an_outage_counts_from_the_click() -> None:
    watched = Watched([False, False, True])
    began = datetime.now(UTC)
    watched.healing.model_exited(end(code=0, ago=7, was_asked=True), watched.child)
    line = await watched.reads("a job was running")
    assert line.startswith("The model was unavailable for 7.")
    assert all(6 < (began - since).total_seconds() < 8 for since in watched.readings.since)
    await watched.healing.close()


async def test_every_part_has_one_watcher_which_stops_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from demo import healing

    watched = Watched([False])
    watched.readings.lost_jobs = []
    watched.healing.worker_exited(end(), watched.child)
    await watched.reads("It had no job")
    monkeypatch.setattr(healing, "LONGEST_SECONDS", 0.0)
    monkeypatch.setattr(healing, "LONGEST_OUTAGE_SECONDS", 0.0)
    watched.healing.worker_exited(end(), watched.child)
    for _ in range(3):
        watched.healing.sites_exited(end())
        watched.healing.model_exited(end(), watched.child)
    await watched.reads("The next one exited, too.")
    await watched.reads("no new one is ready")
    await watched.reads("The measurement ends here")
    await watched.reads("they do not answer")
    assert len(watched.lines()) == 4, (
        "a part that exits again during its outage makes no new outage"
    )
    await watched.healing.close()


async def test_the_essays_scorer_restarts_after_its_fault() -> None:
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


async def test_a_web_app_that_exits_stops_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from demo import sites

    left: list[str] = []

    class Server(sites.Server):
        async def serve(self, sockets: Any = None) -> None:
            name = str(self.config.app)
            # A server has a flag instead of an event.
            while sockets and name == "stays" and not self.should_exit:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            left.append(name)

    for name in ("stays", "gives_up"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "app.py").write_text(f"web = {name!r}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sites, "Server", Server)
    with socket.socket() as one, pytest.raises(SystemExit, match="stopped unexpectedly"):
        await sites.serve({"stays": one, "gives_up": one})
    assert left == ["gives_up", "stays"]


def test_the_marking_function_accepts_no_orders_from_web_pages() -> None:
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
