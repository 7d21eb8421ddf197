"""The world of the campaign: every process of an installation, and the services they use.

Postgres is a child process; each worker and each API has its own relay to it (relay.py), so that a
single one can be cut off. Faults are in weather/, load in clients/; the world only starts and stops
the processes, and knows their names.
"""

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from fire import pgbouncer
from fire.logs import OUTPUTS, Log
from fire.processes import Child
from fire.relay import Relay
from penstock.db.connections.pool import prepare
from penstock.db.embedded.files import TENANT
from penstock.db.schema import migrations
from penstock.security.roots import Roots
from penstock.security.signature import of_webhooks
from support.http.serving import free_port
from support.servers.postmaster import Postmaster
from support.signing import SECRET as SECRET  # noqa: PLC0414  # others take it from here
from support.waiting import eventually

ROLE = DATABASE = "fire"
WORKERS = ("w1", "w2", "w3")
APIS = ("a1", "a2")
SUBMITTER = "submitter"
POOLER = "pgbouncer"
# Processes that connect through PgBouncer, if it is installed.
POOLED = ("a2", SUBMITTER)
LINES = (*WORKERS, *APIS, SUBMITTER)
CONNECTIONS = 120

START_SECONDS = 60.0
POLL_SECONDS = 0.2

ACCOUNTS = {f"u{n}": ("single", "three", "none")[n % 3] for n in range(12)}
FIRST_CREDITS = 100

_TABLES = """
create table public.fire_done (job_id uuid primary key, attempt integer not null);
create table public.fire_note (tag text primary key);
"""


class World:
    def __init__(self, folder: Path, room: Path, seed: int) -> None:
        """`folder`: the logs of all witnesses; `room`: the files of Postgres."""
        self.folder = folder
        self.seed = seed
        self.log = Log(folder)
        (folder / OUTPUTS).mkdir()
        settings = {"max_connections": str(CONNECTIONS)}
        self.postgres = Postmaster(room / "server", free_port(), settings=settings)
        self._ports = {
            name: free_port() for name in (*APIS, "model", "control", "receiver", POOLER)
        }
        self.relays = {
            name: Relay(
                "127.0.0.1",
                self._ports[POOLER] if pgbouncer.PROGRAM and name in POOLED else self.postgres.port,
            )
            for name in LINES
        }
        self.children: dict[str, Child] = {}
        self.brief = False
        """Whether faults must be short."""
        self.held: set[str] = set()
        """The victims of current faults: no other fault may affect them."""
        self.gone: set[str] = set()
        """Processes that are deliberately stopped: they are not restarted."""
        self._watching: asyncio.Task[None] | None = None
        self.http = httpx.AsyncClient(timeout=10, trust_env=False)

    @property
    def dsn(self) -> str:
        """The address for a superuser, past every relay."""
        return self.postgres.dsn.removesuffix("/postgres") + f"/{DATABASE}"

    @property
    def app_dsn(self) -> str:
        """The address for the app's role, past every relay."""
        return f"postgresql://{ROLE}@127.0.0.1:{self.postgres.port}/{DATABASE}"

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{self._ports[name]}" for name in APIS]

    def chance(self, name: str) -> random.Random:
        return random.Random(f"{self.seed} {name}")

    def client(self, url: str) -> httpx.AsyncClient:
        """A caller of one of the APIs."""
        return httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {SECRET}"},
            timeout=15,
            trust_env=False,
        )

    async def connect(self, dsn: str | None = None) -> asyncpg.Connection:
        conn = await asyncpg.connect(dsn or self.dsn, timeout=10)
        await prepare(conn)
        return conn

    @contextmanager
    def holding(self, *names: str) -> Iterator[None]:
        assert not self.held & set(names), f"{names} is held already"
        self.held |= set(names)
        try:
            yield
        finally:
            self.held -= set(names)

    def free(self, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if name not in self.held]

    # Starting and stopping

    async def start(self) -> None:
        await asyncio.to_thread(lambda: self.postgres.make().start())
        await self._prepare()
        for relay in self.relays.values():
            await relay.open()
        self._make_children()
        if pgbouncer.PROGRAM:
            self.children[POOLER].start()
            await self.until_open(POOLER)
        for name in (*APIS, *WORKERS, "model", "receiver"):
            self.children[name].start()
        await asyncio.gather(*(self.until_served(name) for name in APIS))
        await asyncio.gather(self.until_open("control"), self.until_open("receiver"))
        # Otherwise the first submit would create them with the default plan.
        await self._make_accounts()
        self.children[SUBMITTER].start()
        await eventually(self._working, "all workers are there", seconds=START_SECONDS, poll=0.1)
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def _prepare(self) -> None:
        admin = await asyncpg.connect(self.postgres.dsn)
        await admin.execute(f"create role {ROLE} login nosuperuser")
        await admin.execute(f"create role {TENANT}")
        await admin.execute(f"grant {TENANT} to {ROLE}")
        await admin.execute(f"create database {DATABASE} owner {ROLE}")
        await admin.close()
        conn = await asyncpg.connect(self.app_dsn)
        await migrations.up(conn)
        await conn.execute(_TABLES)
        await conn.close()

    def _make_children(self) -> None:
        model = f"http://127.0.0.1:{self._ports['model']}"
        receiver = f"http://127.0.0.1:{self._ports['receiver']}"
        common = {
            "FIRE_FOLDER": str(self.folder),
            "FIRE_MODEL": model,
            "FIRE_RECEIVER": receiver,
            "FIRE_SEED": str(self.seed),
            "FIRE_BRIEF": "1" if self.brief else "",
            "PENSTOCK_SECRET": SECRET,
            "PENSTOCK_PUBLIC_URL": self.urls[0],
            "PENSTOCK_ALLOW_PRIVATE": "1",
            "PENSTOCK_LOG_LEVEL": "info",
        }

        def add(name: str, *words: str) -> None:
            environment = common
            if name in self.relays:
                port = self.relays[name].port
                environment = common | {
                    "PENSTOCK_DSN": f"postgresql://{ROLE}@127.0.0.1:{port}/{DATABASE}",
                    "PENSTOCK_WORKER_ID": name,
                }
            self.children[name] = Child(name, words, self.folder, environment)

        for name in WORKERS:
            add(name, "penstock", "worker", "fire.app:app")
        for name in APIS:
            add(name, "penstock", "serve", "fire.app:app", "--port", str(self._ports[name]))
        add(
            *("model", "penstock", "model", "--port", str(self._ports["model"])),
            *("--control", str(self._ports["control"]), "--slots", "8", "--tokens", "10"),
            *("--latency", "0.05s", "--log", str(self.folder / "calls.jsonl")),
        )
        [secret] = of_webhooks(Roots((SECRET,)), None, trusted=True).written
        add(
            *("receiver", "fire.receiver", "--port", str(self._ports["receiver"])),
            *("--log", str(self.folder), "--secret", secret, "--seed", str(self.seed)),
        )
        add(SUBMITTER, "fire.submitter")
        if pgbouncer.PROGRAM:
            program = pgbouncer.words(
                self.folder, self._ports[POOLER], self.postgres.port, DATABASE, ROLE
            )
            self.children[POOLER] = Child(POOLER, program, self.folder, {}, python=False)

    async def _make_accounts(self) -> None:
        conn = await self.connect()
        for name, plan in ACCOUNTS.items():
            await conn.execute("select penstock.create_account($1, $2)", name, plan)
            await conn.execute(
                "select penstock.grant_credits($1, $2, 'first', 'first')", name, FIRST_CREDITS
            )
        await conn.close()

    async def close_processes(self) -> None:
        """Stop everything in good order, except Postgres, which is still to be checked."""
        if self._watching is not None:
            self._watching.cancel()
        for relay in self.relays.values():
            relay.heal()
        for child in self.children.values():
            child.signal(signal.SIGCONT)
        programs = [child for name, child in self.children.items() if name != POOLER]
        await asyncio.gather(*(asyncio.to_thread(child.stop) for child in programs))
        if POOLER in self.children:
            # Its exit code after a stop is 1.
            await asyncio.to_thread(self.children[POOLER].kill)

    async def sweep(self) -> None:
        """Kill everything that is left."""
        if self._watching is not None:
            self._watching.cancel()
        for child in self.children.values():
            child.sweep()
        for relay in self.relays.values():
            await relay.close()
        await self.http.aclose()
        await asyncio.to_thread(self.postgres.kill)

    # Conditions

    async def until_open(self, name: str) -> None:
        async def opened() -> bool:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self._ports[name])
            except OSError:
                return False
            writer.close()
            return True

        await eventually(opened, f"{name} listens", seconds=START_SECONDS, poll=0.05)

    async def until_served(self, name: str) -> None:
        async def ready() -> bool:
            # The supervisor restarts it as soon as it watches.
            assert self._watching or self.children[name].runs, self.children[name].said
            try:
                answer = await self.http.get(f"http://127.0.0.1:{self._ports[name]}/readyz")
            except httpx.TransportError:
                return False
            return answer.status_code == httpx.codes.OK

        await eventually(ready, f"{name} is ready", seconds=START_SECONDS, poll=0.1)

    async def _working(self) -> bool:
        conn = await self.connect()
        try:
            alive = await conn.fetchval(
                "select count(*) from penstock.worker_health where alive and worker_id = any ($1)",
                list(WORKERS),
            )
        finally:
            await conn.close()
        return bool(alive == len(WORKERS))

    # Used by faults

    async def order(self, path: str, **fields: Any) -> None:
        """Send a command to the model."""
        url = f"http://127.0.0.1:{self._ports['control']}{path}"
        answer = await self.http.post(url, json=fields)
        assert answer.status_code == httpx.codes.OK, answer.text

    async def receive(self, mode: str) -> None:
        url = f"http://127.0.0.1:{self._ports['receiver']}/control"
        answer = await self.http.post(url, json={"mode": mode})
        assert answer.status_code == httpx.codes.OK, answer.text

    @asynccontextmanager
    async def kept_stopped(self, *names: str) -> AsyncIterator[None]:
        """Keep processes stopped until the end of the block."""
        self.gone |= set(names)
        try:
            yield
        finally:
            self.gone -= set(names)
            for name in names:
                if not self.children[name].runs:
                    self.children[name].start()

    async def _watch(self) -> None:
        """Log processes that end unexpectedly, and restart them like a supervisor."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            for name, child in self.children.items():
                if name not in self.gone and not child.runs:
                    child.note_end()
                    child.start()

    async def calm(self) -> None:
        """End all faults: start every process and remove every obstacle."""
        for relay in self.relays.values():
            relay.heal()
        if not self.postgres.runs:
            await asyncio.to_thread(self.postgres.start)
        for child in self.children.values():
            child.signal(signal.SIGCONT)
            if not child.runs:
                child.note_end()
                child.start()
        await self.until_open("control")
        await self.order("/_heal")
        await self.order("/_start")
        await self.receive("ok")
        for name in APIS:
            await self.until_served(name)
        await eventually(self._working, "all workers are there", seconds=START_SECONDS, poll=0.2)
