"""What the harnesses of the example apps share: their programs on one database, and visitors."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import httpx

from journeys.processes import EXAMPLES, LOOK_SECONDS, Program, free_port
from support.signing import SECRET
from support.waiting import eventually

# Whole journeys: processes start, a model takes its time, and two of them share two cores.
PATIENCE_SECONDS = 60
SHOWN_MAX = 2_000

Shown = dict[str, Any]


async def seen(
    look: Callable[[], Awaitable[Shown]],
    fits: Callable[[Shown], object],
    what: str,
    *,
    seconds: float = PATIENCE_SECONDS,
    poll: float = LOOK_SECONDS,
) -> Shown:
    """Look until it fits; what was seen then."""
    found: Shown = {}

    async def fitting() -> object:
        found.clear()
        found.update(await look())
        return fits(found)

    try:
        await eventually(fitting, what, seconds=seconds, poll=poll)
    except AssertionError as late:
        raise AssertionError(f"{late}; at the end: {str(found)[:SHOWN_MAX]}") from None
    return found


def having(**wanted: Any) -> Callable[[Shown], bool]:
    """Whether these values are shown; a tuple allows each of them."""

    def fits(found: Shown) -> bool:
        return all(
            found[name] in value if isinstance(value, tuple) else found[name] == value
            for name, value in wanted.items()
        )

    return fits


def accepted(answer: httpx.Response) -> Shown:
    assert answer.status_code == 200, answer.text
    found: Shown = answer.json()
    return found


class Visitor:
    """Somebody in front of a browser."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def ask(self, path: str, **params: Any) -> Shown:
        return accepted(await self.client.get(path, params=params))

    async def enter(self, path: str, code: str) -> None:
        """By the link with the code."""
        answer = await self.client.get(path, params={"code": code})
        assert answer.status_code == 303, answer.text

    async def sign_in_at(self, path: str, **fields: str) -> None:
        answer = await self.client.post(path, data=fields)
        assert answer.status_code == 303, answer.text


class Site:
    """The programs of an example, each to be started and ended by itself."""

    example: ClassVar[str]
    private: ClassVar[str | None] = None
    """A word of what people write: no program may print it."""
    # On a slow machine five seconds pass between two clicks; a connection that the server has
    # just closed then looks like a crash.
    web_options: ClassVar[tuple[str, ...]] = (
        *("--timeout-keep-alive", str(PATIENCE_SECONDS)),
        *("--timeout-graceful-shutdown", "8"),
    )

    def __init__(self, dsn: str, folder: Path) -> None:
        self._folder = folder
        self.web_port = free_port()
        self.control_port = free_port()
        self.env = {"PENSTOCK_DSN": dsn, "PENSTOCK_SECRET": SECRET}
        self.programs: list[Program] = []

    @property
    def address(self) -> str:
        return local(self.web_port)

    def configure(self, file: str = "penstock.toml", **settings: str) -> None:
        """A file of the example with these settings instead, for web app and worker."""
        text = (EXAMPLES / self.example / file).read_text()
        for name, value in settings.items():
            text, times = re.subn(
                rf'^{name} = (""".*?"""|.*?$)',
                f"{name} = {value}",
                text,
                flags=re.MULTILINE | re.DOTALL,
            )
            assert times == 1, name
        path = self._folder / "penstock.toml"
        path.write_text(text)
        self.env[f"{self.example.upper()}_CONFIG"] = str(path)

    def start_web(self) -> Program:
        words = ["uvicorn", f"{self.example}.app:web", "--port", str(self.web_port)]
        return self.start("web", [*words, *self.web_options], self.web_port)

    def start_worker(self, name: str = "worker", **env: str) -> Program:
        """With these variables for this worker alone."""
        words = ["penstock", "worker", self.worker_target]
        return self.start(name, words, None, PENSTOCK_WORKER_ID=name, **env)

    @property
    def worker_target(self) -> str:
        return f"{self.example}.jobs:app"

    def start(self, name: str, words: list[str], port: int | None, **env: str) -> Program:
        log = self._folder / f"{name}.log"
        program = Program(["-m", *words], {**self.env, **env}, log, port=port)
        self.programs.append(program)
        return program

    def end(self) -> None:
        """End all at once: a worker waits for its jobs, and those for a model that may hang."""
        for program in self.programs:
            program.ask_to_end()
        for program in self.programs:
            program.end()
        for program in self.programs:
            if self.private:
                assert self.private.lower() not in program.printed.lower(), program.words

    def runs_at(self, port: int) -> bool:
        return any(program.port == port and program.is_running for program in self.programs)

    def command_now(self, path: str, body: Any = None) -> None:
        """As `command`, for fixtures."""
        url = f"{local(self.control_port)}{path}"
        httpx.post(url, json=body, trust_env=False).raise_for_status()

    async def command(self, path: str, body: Any = None, *, method: str = "POST") -> Any:
        """Ask the model or the function at its control port: a fault, or what it has done."""
        async with httpx.AsyncClient(trust_env=False) as client:
            url = f"{local(self.control_port)}{path}"
            return (await client.request(method, url, json=body)).raise_for_status().json()


class SiteWithModel(Site):
    """A site that calls `penstock model`."""

    pace: ClassVar[tuple[str, ...]]
    """How soon the model answers, unless told otherwise."""

    def __init__(self, dsn: str, folder: Path, model_variable: str) -> None:
        super().__init__(dsn, folder)
        self.model_port = free_port()
        self.env[model_variable] = local(self.model_port)
        self.env["MODEL_CONTROL_URL"] = local(self.control_port)

    def start_model(self, *options: str) -> Program:
        at = ("--port", str(self.model_port), "--control", str(self.control_port))
        words = ["penstock", "model", *at, *(options or self.pace)]
        return self.start("model", words, self.model_port)

    def heal(self) -> None:
        for path in ("/_heal", "/_start"):
            self.command_now(path)

    async def order(self, **fault: Any) -> None:
        """Tell the model to misbehave."""
        await self.command("/_order", fault)

    async def report(self) -> Shown:
        """What was asked of the model."""
        found: Shown = await self.command("/_calls", method="GET")
        return found


S = TypeVar("S", bound=Site)


@contextmanager
def opened(site: S, *starts: Callable[[], Program]) -> Iterator[S]:
    """A site with the programs that these start; all of its programs end with it."""
    try:
        # Side by side: most of a start is Python reading files.
        for program in [start() for start in starts]:
            program.wait_ready()
        yield site
    finally:
        site.end()


@asynccontextmanager
async def visiting(site: Site) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=site.address, trust_env=False, timeout=PATIENCE_SECONDS
    ) as client:
        yield client


def local(port: int) -> str:
    return f"http://127.0.0.1:{port}"
