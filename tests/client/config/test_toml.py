"""`penstock.toml`: the options of Python under the same names, and errors with their location."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Misconfigured, Penstock
from penstock.client.config.toml import load
from penstock.errors import WrongApp

Load = Callable[[str], Penstock]

HANDLERS = """
from penstock import Penstock
async def feedback(answer: str, level: int = 1) -> str: return answer
def resize(image: str) -> None: ...
class Thing: ...
app = Penstock()
app.queue("q")
@app.job(queue="q")
def made(n: int) -> None: ...
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file's folder, which is not the working folder."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "own_handlers.py").write_text(HANDLERS)
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("own_handlers", None)


@pytest.fixture
def load_text(folder: Path) -> Load:
    def loaded(text: str) -> Penstock:
        (folder / "penstock.toml").write_text(text)
        return load(folder / "penstock.toml")

    return loaded


def test_a_whole_file(load_text: Load, folder: Path) -> None:
    app = load_text("""
        accounts = "strict"
        [queues.ollama]
        concurrency = 1
        timeout = "2m"
        retry = { attempts = 5, backoff = "constant", delay = "10s", max = 60 }
        inline = true
        [queues.studio]
        rate = "500/min"
        order = "fair"
        retention = "forever"
        [plans.free]
        priority = 50
        concurrency = 1
        per_hour = 10
        default = true
        [jobs.feedback]
        queue = "ollama"
        handler = "own_handlers:feedback"
        dedupe = "answer"
        topic = { constant = "lessons" }
        attempts = 2
        priority_offset = 10
        [jobs.image]
        queue = "studio"
        handler = "own_handlers:resize"
        isolation = "process"
        memory = "512MB"
    """)
    assert app.name == f"{folder.name}/penstock.toml"
    assert app._strict is True
    assert app.queues["ollama"].declared == {
        "concurrency": 1,
        "timeout_seconds": 120,
        "attempts": 5,
        "backoff": "constant",
        "delay_seconds": 10,
        "backoff_max_seconds": 60,
    }
    assert app.queues["ollama"].inline
    assert app.queues["studio"].declared["retention_seconds"] == "forever"
    assert app.plans["free"].declared["default"] is True
    assert app.kinds["feedback"].declared == {
        "attempts": 2,
        "priority_offset": 10,
        "dedupe_field": "answer",
        "topic": "lessons",
    }
    handlers = app.handlers()
    assert {name: handler.mode for name, handler in handlers.items()} == {
        "feedback": "async",
        "image": "process",
    }
    assert handlers["image"].origin == ("own_handlers", "resize")
    assert handlers["feedback"].parameters.names == ("answer", "level")
    assert str(app.queues["ollama"].location) == str(folder / "penstock.toml")


async def test_its_app_works_like_any_other(
    load_text: Load, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DSN", database)
    app = load_text(
        '[queues.q]\n[plans.free]\n[jobs.f]\nqueue = "q"\nhandler = "own_handlers:feedback"'
    )
    ticket = await app.kinds["f"].submit(answer="a")
    assert (await ticket.status())["queue"] == "q"
    await app.close()


def test_variables_of_the_environment_are_replaced(
    load_text: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOW_MANY", "7")
    monkeypatch.setenv("HOW_LONG", "90s")
    monkeypatch.setenv("HERE", "true")
    Path(".env").write_text("TOPIC=from the file\nBY=answer\n")
    app = load_text("""
        [queues.q]
        concurrency = "$HOW_MANY"
        timeout = "$HOW_LONG"
        inline = "$HERE"
        retry = { attempts = "$HOW_MANY" }
        [jobs.f]
        queue = "q"
        handler = "own_handlers:feedback"
        dedupe = "$BY"
        topic = { constant = "$TOPIC" }
        account = { constant = "$$house" }
    """)
    assert app.queues["q"].declared["concurrency"] == 7
    assert app.queues["q"].declared["attempts"] == 7
    assert app.queues["q"].declared["timeout_seconds"] == 90
    assert app.queues["q"].inline
    assert app.kinds["f"].declared == {
        "dedupe_field": "answer",
        "topic": "from the file",
        "account": "$house",
    }


JOB = '[queues.q]\n[jobs.f]\nqueue = "q"\nhandler = "own_handlers:feedback"\n'
WRONG: list[tuple[str, str]] = [
    (
        "[queues.q]\nconcurency = 1",
        ", [queues.q], concurency: is not an option. Did you mean concurrency? Known are concurr",
    ),
    (
        "[queues.q]\nconcurrency = 0",
        ", [queues.q], concurrency: concurrency is 0; it may be a whole",
    ),
    ("[queues.q]\nconcurrency = '1'", ", [queues.q], concurrency: concurrency is '1'"),
    ("[queues.q]\ntimeout = [1]", ", [queues.q], timeout: timeout is [1]"),
    ("[queues.q]\nretry = 3", ", [queues.q], retry: must be a table like { attempts = 3"),
    ("[queues.q.retry]\nattempts = 0", ", [queues.q], retry.attempts: attempts is 0"),
    ("[queues.q.retry]\ntimes = 1", ", [queues.q.retry], times: is not an option. Known are att"),
    ("[queues.q]\nburst = 1", ", [queues.q], burst: burst is 1; it needs a rate"),
    ("[queues.'two words']", ", [queues.two words], queue: the queue name 'two words' must be"),
    ("[queues]\nq = 1", ", queues.q: must be a table: write [queues.q]"),
    ("queues = 1", ", queues: is not an option. Known are name, accounts"),
    ("[queue.q]", ", queue: is not a known table. Did you mean queues? Known are queues, p"),
    ("[bogus]", ", bogus: is not a known table. Known are queues, plans, jobs"),
    ("accounts = 'closed'", ", accounts: accounts is 'closed'; it may be open, strict"),
    ("[plans.p]\nprice = 1", ", [plans.p], price: is not an option. Known are priority"),
    ("[plans.p]\nweight = 0", ", [plans.p], weight: weight is 0"),
    ("[jobs.f]\nhandler = 'a:b'", ", [jobs.f], queue: is missing"),
    ("[queues.q]\n[jobs.f]\nqueue = 'q'", ", [jobs.f], handler: is missing"),
    (
        "[queues.a]\n[jobs.f]\nqueue = 'q'\nhandler = 'a:b'",
        ", [jobs.f], queue: there is no [queues.q]; known are a",
    ),
    (JOB + "name = 'g'", ", [jobs.f], name: is not an option"),
    (JOB + "price = -1", ", [jobs.f], price: price is -1; it may be a whole number from 0"),
    (JOB + "price = { per = 'answer' }", ", [jobs.f], price: price is a table, and without by"),
    (JOB + "split = ['m', 4]", ", [jobs.f], split: split is ['m', 4]; it begins with the name"),
    (JOB + "split = 1", ", [jobs.f], split: split is 1; it may be a parameter and a whole number"),
    (JOB + "dedupe = ''", ", [jobs.f], dedupe: dedupe is ''; as a text it names a parameter, and"),
    (
        JOB + "account = 'lvel'",
        (
            ", [jobs.f], account: account is 'lvel'; as a text it names a parameter, and known are "
            "answer, level. Did you mean level? For one value in all jobs write "
            """account=Constant('lvel'), in TOML account = { constant = "lvel" }"""
        ),
    ),
    (JOB + "topic = {}", ', [jobs.f], topic: as a table it is a constant, like { constant = "h'),
    (JOB + "topic = { constant = 5 }", ", [jobs.f], topic: as a table it is a constant, like"),
    (
        JOB + "topic = { constant = '' }",
        ", [jobs.f], topic: topic is ''; it may be a text of 1 to 200",
    ),
    (JOB + "memory = '1GB'", ", [jobs.f], memory: memory is '1GB'; it needs isolation"),
    (JOB + "isolation = 'process'", ', [jobs.f]: isolation="process" of job kind f needs a plain'),
    (
        JOB + "fields = { answer = 'str' }",
        ", [jobs.f], fields: the parameters of a Python function are its fields",
    ),
    (JOB + "topic = '$NOT_SET'", ", [jobs.f], topic: $NOT_SET is not set in the environment"),
    (JOB + "topic = '$not a name'", ", [jobs.f], topic: '$not a name' names no variable"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_a_mistake_is_named_with_file_table_and_key(
    load_text: Load, folder: Path, text: str, message: str
) -> None:
    with pytest.raises(Misconfigured, match=r".") as caught:
        load_text(text)
    assert str(caught.value).startswith(f"{folder / 'penstock.toml'}{message}")


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        ("'Ollama'", "is 'Ollama'; known are ollama, openai, http, dispatch, or module:function"),
        ("5", "is 5; known are ollama, openai, http, dispatch, or module:function"),
        ("'nowhere_at_all:f'", "There is no module nowhere_at_all in"),
        ("'own_handlers:nope'", "Module own_handlers has no `nope`"),
        ("'own_handlers:Thing'", "own_handlers:Thing is a type and not a function"),
        ("'own_handlers:made'", "own_handlers:made is a Kind and not a function"),
    ],
)
def test_a_wrong_handler_is_refused(load_text: Load, handler: str, message: str) -> None:
    with pytest.raises(Misconfigured, match=r"\[jobs.f\], handler: ") as caught:
        load_text(f"[queues.q]\n[jobs.f]\nqueue = 'q'\nhandler = {handler}")
    assert message in str(caught.value)


def test_an_unknown_option_of_a_job_is_named_with_all_known_ones(load_text: Load) -> None:
    with pytest.raises(WrongApp, match=r"oops: is not an option\. Known are queue, ") as caught:
        load_text(JOB + "oops = 1")
    assert str(caught.value).endswith("isolation, memory, price, split, webhook, handler")


@pytest.mark.parametrize(
    ("written", "declared"),
    [
        ("price = 3", {"price": 3}),
        ("price = 0", {"price": 0}),
        (
            "price = { field = 'level', trusted = true }",
            {"price": {"field": "level", "trusted": True}},
        ),
        ("price = '$PRICE'", {"price": 12}),
        (
            "price = { per = 'level', by = 'answer', standard = 1, high = 3 }",
            {"price": {"per": "level", "by": "answer", "standard": 1, "high": 3}},
        ),
        ("split = ['level', 4]", {"split_field": "level", "split_most": 4}),
    ],
)
def test_prices_and_splits_are_written_as_in_python(
    load_text: Load, monkeypatch: pytest.MonkeyPatch, written: str, declared: dict[str, Any]
) -> None:
    """G18"""
    monkeypatch.setenv("PRICE", "12")
    assert load_text(JOB + written).kinds["f"].declared == declared


def test_a_price_in_the_payload_is_refused_with_its_table(load_text: Load) -> None:
    with pytest.raises(WrongApp, match=r"\[jobs.f\], price: price is taken from the parameter"):
        load_text(JOB + "price = 'level'")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (b"\n[queues\n", "is not TOML: .*line 2"),
        (b"\xff", "cannot be read: UnicodeDecodeError"),
    ],
)
def test_invalid_toml_is_refused(folder: Path, written: bytes, message: str) -> None:
    (folder / "x.toml").write_bytes(written)
    with pytest.raises(Misconfigured, match=message):
        load(folder / "x.toml")
