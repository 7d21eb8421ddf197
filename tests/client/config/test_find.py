"""Finding the app of a command: every error says what to give, or which line is wrong."""

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import Misconfigured, Penstock
from penstock.client.config.find import find_app

APP = "from penstock import Penstock\napp = Penstock()\n"
Write = Callable[[str], str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


@pytest.fixture
def write(folder: Path) -> Write:
    """Write a module; return its name, which no other test uses."""
    numbers = itertools.count()

    def written(text: str) -> str:
        name = f"mod{abs(hash(folder))}_{next(numbers)}"
        (folder / f"{name}.py").write_text(text)
        return name

    return written


def failure(given: str | None) -> str:
    with pytest.raises(Misconfigured, match=r".") as caught:
        find_app(given)
    return str(caught.value)


def test_an_app_is_found_from_the_working_folder(write: Write, folder: Path) -> None:
    module = write(APP)
    found = find_app(f"{module}:app")
    assert isinstance(found, Penstock)
    assert found.name == module
    (folder / "package").mkdir()
    (folder / "package" / "inner.py").write_text(APP + "class box: inside = app\n")
    assert find_app("package.inner:box.inside") is sys.modules["package.inner"].app


def test_without_a_name_the_folders_toml_is_used(folder: Path) -> None:
    assert failure(None) == (
        f"No app was given, and there is no penstock.toml in {folder}: give module:app, like "
        "`marking:app`, or the path of a penstock.toml."
    )
    (folder / "penstock.toml").write_text("[queues.q]\n")
    assert list(find_app(None).queues) == ["q"]
    assert list(find_app("penstock.toml").queues) == ["q"]
    assert list(find_app(str(folder / "penstock.toml")).queues) == ["q"]


def test_a_missing_toml_is_named(folder: Path) -> None:
    assert failure("other.toml") == f"There is no file {folder / 'other.toml'}."


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("marking", "Did you mean `marking:app`?"),
        ("marking.py", "Did you mean `marking:app`?"),
        ("shop/marking.py:queue", "Did you mean `marking:queue`?"),
        ("marking:", "Did you mean `marking:app`?"),
        (":app", ""),
        ("", ""),
    ],
)
def test_a_name_of_no_app_is_refused_with_a_hint(given: str, hint: str) -> None:
    message = failure(given)
    assert message.startswith(f"{given!r} names no app: give module:app, like `marking:app`")
    assert message.endswith(hint)


def test_an_unknown_module_is_named(folder: Path) -> None:
    assert failure("nowhere:app") == (
        f"There is no module nowhere in {folder} or among the installed packages."
    )
    (folder / "here").mkdir()
    assert "There is no module here.nowhere in" in failure("here.nowhere:app")


def test_a_missing_import_is_named_with_its_line(write: Write) -> None:
    module = write("\nimport tensors_of_tomorrow\n")
    assert failure(f"{module}:app") == (
        f"Module {module} cannot be loaded: it needs tensors_of_tomorrow, which is not installed "
        f"({module}.py:2)."
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import below\nbelow.fail()\n", "ValueError: it is so ({}.py:2)."),
        ("x = 1\ny = {}['key']\n", "KeyError: 'key' ({}.py:2)."),
        ("raise RuntimeError('set\\n  THE_KEY')\n", "RuntimeError: set THE_KEY ({}.py:1)."),
        ("raise RuntimeError('x' * 9999)\n", "xxx… ({}.py:1)."),
        ("assert False\n", "AssertionError ({}.py:1)."),
        ("x = (\n", "SyntaxError: '(' was never closed ({}.py:1)."),
        ("if 1:\nx = 1\n", "IndentationError: expected an indented block after 'if'"),
        ("raise SystemExit(3)\n", "ended the program while it was loaded, at {}.py:1"),
    ],
)
def test_an_exception_in_the_module_is_shown_with_message_and_line(
    write: Write, folder: Path, text: str, expected: str
) -> None:
    installed = folder / ".venv" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "below.py").write_text("def fail(): raise ValueError('it is so')\n")
    sys.path.insert(0, str(installed))
    module = write(text)
    message = failure(f"{module}:app")
    assert message.startswith(f"Module {module} ")
    assert expected.format(module) in message
    assert len(message) < 1000


def test_a_wrong_declaration_is_shown_with_its_line_and_our_message(write: Write) -> None:
    module = write(f"{APP}\n\napp.queue('q', concurrency=0)\n")
    assert failure(f"{module}:app") == (
        f"{module}.py:5: concurrency is 0; it may be a whole number from 1 to 1000000"
    )


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            "app.queue('q', concurency=2)",
            "app.queue(...) has no option concurency. Did you mean concurrency? Known are name, ",
        ),
        (
            "app.job('q', retry=5)",
            "app.job(...) has no option retry. It is one of app.queue(...). Known are queue, ",
        ),
        (
            "app.plan('p', perhour=5)",
            "app.plan(...) has no option perhour. Did you mean per_hour? Known are name, ",
        ),
        (
            "Penstock(nam='x')",
            "Penstock(...) has no option nam. Did you mean name? Known are dsn, ",
        ),
    ],
)
def test_an_unknown_option_is_shown_with_its_line_and_the_known_ones(
    write: Write, call: str, says: str
) -> None:
    module = write(f"{APP}{call}\n")
    assert failure(f"{module}:app").startswith(f"{module}.py:3: {says}")


def test_an_unknown_name_in_the_module_is_shown_with_the_apps_there(write: Write) -> None:
    module = write(APP)
    assert failure(f"{module}:queue") == (
        f"Module {module} has no `queue`. Did you mean `{module}:app`?"
    )
    empty = write("x = 5\n")
    assert failure(f"{empty}:app") == (
        f"Module {empty} has no `app`. Create one there: `app = Penstock()`, and give "
        f"`{empty}:app`."
    )


def test_an_object_that_is_no_penstock_is_named_by_its_class(write: Write) -> None:
    module = write(APP + "web = dict()\n")
    assert failure(f"{module}:web") == (
        f"{module}:web is a dict and not a Penstock. Did you mean `{module}:app`?"
    )
