"""A declaration may move within an app; a different one by another app is refused."""

import socket
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from penstock import Conflict, Penstock
from penstock.client.config.declare import moved

APP = """
from penstock import Penstock

app = Penstock({dsn!r}, name={name!r})
app.queue("mail")


@app.job(queue="mail", attempts={attempts})
async def {kind}(to: str) -> None: ...
"""


class Folder:
    def __init__(self, path: Path, dsn: str) -> None:
        self._path = path
        self._dsn = dsn

    def write(self, file: str, kind: str, attempts: int) -> None:
        text = APP.format(dsn=self._dsn, name=file, kind=kind, attempts=attempts)
        self.path(file).write_text(text)

    async def start(self, file: str) -> None:
        """Declare what the file has now, as when the app starts."""
        scope: dict[str, Any] = {"__name__": file}
        path = self.path(file)
        exec(compile(path.read_text(), str(path), "exec"), scope)  # noqa: S102  # ours
        app: Penstock = scope["app"]
        try:
            await app.engine()
        finally:
            await app.close()

    def path(self, file: str) -> Path:
        return self._path / f"{file}.py"


@pytest.fixture
def folder(tmp_path: Path, database: str) -> Folder:
    return Folder(tmp_path, database)


async def attempts(conn: asyncpg.Connection) -> int:
    found: int = await conn.fetchval("select max_attempts from penstock.kind where name = 'send'")
    return found


async def test_a_kind_that_moved_to_another_module_is_accepted(
    folder: Folder, conn: asyncpg.Connection
) -> None:
    folder.write("shop", "send", 2)
    folder.write("letters", "send", 3)
    await folder.start("shop")
    with pytest.raises(Conflict) as caught:
        await folder.start("letters")
    assert caught.value.message == (
        f'kind send is declared differently by shop at {folder.path("shop")}:8 ({{"queue": "mail",'
        f' "attempts": 2}}) and by letters at {folder.path("letters")}:8 ({{"queue": "mail",'
        ' "attempts": 3})'
    )
    assert caught.value.hint == (
        "Make both declarations equal, or rename one. If the first is gone or was moved, `penstock"
        " queues reset mail` lets the next app that starts declare it. All programs of one app use"
        ' one name: Penstock(name="shop").'
    )
    folder.write("shop", "sell", 2)  # the kind has moved from there
    await folder.start("letters")
    await folder.start("shop")
    assert await attempts(conn) == 3


async def test_a_module_that_was_renamed_is_the_same_app(
    folder: Folder, conn: asyncpg.Connection
) -> None:
    folder.write("shop", "send", 2)
    await folder.start("shop")
    folder.path("shop").unlink()
    folder.write("letters", "send", 3)
    await folder.start("letters")
    assert await attempts(conn) == 3


async def test_a_file_on_another_host_proves_nothing(
    folder: Folder, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two containers may have different apps at the same path."""
    folder.write("shop", "send", 2)
    await folder.start("shop")
    folder.path("shop").unlink()
    folder.write("letters", "send", 3)
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    with pytest.raises(Conflict):
        await folder.start("letters")
    assert await attempts(conn) == 2
    await conn.execute("select penstock.reset_queue('mail')")  # as the message says
    await folder.start("letters")
    assert await attempts(conn) == 3


async def test_the_recorded_location_follows_the_code(
    folder: Folder, conn: asyncpg.Connection
) -> None:
    folder.write("shop", "send", 2)
    await folder.start("shop")
    read = "select declared_in from penstock.kind"
    before = await conn.fetchval(read)
    path = folder.path("shop")
    assert before == {
        "file": str(path),
        "line": 8,
        "host": socket.gethostname(),
        "app": str(path),
    }
    path.write_text(f"# two\n# lines more\n{path.read_text()}")
    await folder.start("shop")
    assert (await conn.fetchval(read))["line"] == 10
    stamp = "select xmin::text from penstock.kind"
    written = await conn.fetchval(stamp)
    await folder.start("shop")
    assert await conn.fetchval(stamp) == written, "nothing is written without a change"


HOST = socket.gethostname()
NOW = {"file": "/srv/app.py", "line": 3, "host": HOST, "app": "/srv/app.py"}


@pytest.mark.parametrize(
    ("by", "now_by", "same"),
    [("shop", "pkg.shop", True), ("pkg.shop", "shop", True), ("shop", "school", False)],
)
def test_one_file_as_script_and_as_module_is_one_app(by: str, now_by: str, same: bool) -> None:
    before = {**NOW, "line": 9}
    assert moved(before, by, NOW, now_by, "q") is same
    assert not moved({**before, "host": "other"}, by, NOW, now_by, "q")


def test_an_unclear_case_does_not_count_as_moved(tmp_path: Path) -> None:
    assert not moved(None, "shop", NOW, "school", "q")
    cell = {"file": "<ipython-input-3>", "host": HOST, "app": "<ipython-input-1>"}
    assert not moved(cell, "shop", NOW, "school", "q"), "a notebook's cell is no file"
    shared = {**NOW, "app": "/srv/other.py"}
    assert not moved(shared, "shop", NOW, "school", "q"), "both use one file of handlers"
    unreadable = {**NOW, "file": str(tmp_path), "app": "/srv/other.py"}
    assert not moved(unreadable, "shop", NOW, "school", "q")


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("app.queue('r')", True),
        ("app.queue('q')", False),
        ("app.queue('q-2')", False),
        ("app.queue('my-q')", True),
        ("# no q here any more", False),
        ("app.queue(f'{x}')", False),
        ("app.plan(NAME)", False),
        ("app.job(queue=other, name=NAME)", False),
        ("app.job(queue=other)", True),
        ("app.queue(**options)", False),
        ("no Python at all", False),
    ],
)
def test_a_file_has_to_name_its_declarations_literally(
    tmp_path: Path, text: str, gone: bool
) -> None:
    file = tmp_path / "old.py"
    file.write_text(text)
    before = {"file": str(file), "host": HOST, "app": str(file)}
    assert moved(before, "old", NOW, "new", "q") is gone
