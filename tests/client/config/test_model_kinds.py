"""Jobs of a `penstock.toml` without Python: ollama, openai, http."""

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from penstock import Misconfigured, Penstock
from penstock.client.config import model_kinds
from penstock.client.config.toml import load
from penstock.errors import Invalid, WrongApp
from penstock.models.simulated.model import simulated
from support.signing import SECRET
from support.waiting import eventually
from support.worker.crew import until_finished, working

Load = Callable[..., Penstock]
MARK = "Zanzibar-1964"


@pytest.fixture
def load_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Load an app from the text of its file; further files are given by name."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(sys, "path", list(sys.path))

    def loaded(text: str, **beside: str) -> Penstock:
        for name, content in beside.items():
            (tmp_path / name.replace("_dot_", ".")).write_text(content)
        (tmp_path / "penstock.toml").write_text(text)
        return load(tmp_path / "penstock.toml")

    return loaded


HEAD = '[queues.q]\n[jobs.f]\nqueue = "q"\n'
FIELDS = 'fields = { answer = "str", level = "int?" }\n'
OLLAMA = f'{HEAD}handler = "ollama"\nurl = "http://127.0.0.1:11434"\nmodel = "llama3"\n'
ASKS = OLLAMA + FIELDS + 'prompt = "Give feedback on: {answer}"\n'
OPENAI = (
    f'{HEAD}handler = "openai"\nurl = "http://127.0.0.1:1"\nmodel = "m"\n{FIELDS}prompt = "p"\n'
)
HTTP = f'{HEAD}handler = "http"\nurl = "http://127.0.0.1:1"\n{FIELDS}'
DISPATCH = HTTP.replace('"http"', '"dispatch"')


def test_a_model_job_is_a_kind_like_any_other(load_text: Load, tmp_path: Path) -> None:
    app = load_text(
        ASKS
        + """
        system = "You are kind to {answer}"
        num_ctx = 4096
        num_predict = 300
        temperature = 0.5
        seed = 7
        keep_alive = "10m"
        first_token_timeout = "2m"
        stall_timeout = 20
        format = "json"
        dedupe = "answer"
        topic = { constant = "lessons" }
        account = "level"
        priority_offset = 10
        timeout = "3m"
        attempts = 2
        """
    )
    kind = app.kinds["f"]
    assert kind.declared == {
        "attempts": 2,
        "timeout_seconds": 180,
        "priority_offset": 10,
        "dedupe_field": "answer",
        "topic": "lessons",
        "account_field": "level",
    }
    assert kind.handler.mode == "async"
    assert kind.parameters.names == ("answer", "level")
    assert str(kind.location) == str(tmp_path / "penstock.toml")
    assert kind.__name__ == "f"


def test_its_fields_are_checked_like_those_of_a_function(load_text: Load) -> None:
    fields = """prompt = "x"
    fields = { answer = { type = "str", max_length = 5 }, level = "int?", job = "dict?" }
    """
    check = load_text(OLLAMA + fields).kinds["f"].parameters.check
    assert check({"answer": "a"}) == {"answer": "a"}
    assert check({"answer": "a", "level": None, "job": {"a": 1}})["job"] == {"a": 1}
    for given, message in (
        ({}, "answer of job kind f is required"),
        ({"answer": 5}, "answer of job kind f must be a valid string"),
        ({"answer": "a", "level": "x"}, "level of job kind f must be a valid integer"),
        ({"answer": "a", "nope": 1}, "nope of job kind f is not a field; known are answer, level"),
        ({"answer": "abcdef"}, "answer of job kind f String should have at most 5 characters"),
        ({"answer": "a", "_job": 1}, "_job of job kind f is not a field"),
    ):
        with pytest.raises(Invalid, match=r".") as caught:
            check(given)
        assert str(caught.value).startswith(message)


def test_prompt_and_schema_may_be_files(load_text: Load) -> None:
    text = OLLAMA + FIELDS + 'prompt_file = "feedback.md"\nschema = "shape.json"\n'
    load_text(text, feedback_dot_md="Mark {answer}", shape_dot_json='{"type": "object"}')
    with pytest.raises(WrongApp, match=r"prompt_file: prompt_file names the field nope"):
        load_text(text, feedback_dot_md="Mark {nope}")
    with pytest.raises(WrongApp, match=r"schema: shape.json is not JSON"):
        load_text(text, feedback_dot_md="Mark", shape_dot_json="{")


WRONG: list[tuple[str, str]] = [
    (ASKS + "oops = 1", "oops: is not an option. Known are queue, dedupe, topic, account, "),
    (ASKS + "api_key = '$K'", "api_key: is not an option. Known are queue"),
    (ASKS + "isolation = 'process'", "isolation: is not an option"),
    (HTTP + "model = 'm'", "model: is not an option. Known are queue"),
    (
        ASKS + "price = 'cost'",
        "price: price is 'cost'; it names a parameter, and known are answer, level",
    ),
    (ASKS + "price = 1.5", "price: price is 1.5; it may be a whole number from 0"),
    (ASKS + "split = ['answer', 0]", "split: split is ['answer', 0]; it may be a parameter and"),
    (OLLAMA + "prompt = 'p'", 'fields: is missing: name them, like { answer = "str"'),
    (OLLAMA + FIELDS, "prompt: give one of prompt and prompt_file"),
    (ASKS + "prompt_file = 'x'", "prompt: give one of prompt and prompt_file"),
    (OLLAMA + FIELDS + "prompt_file = 'gone.md'", "prompt_file: "),
    (
        OLLAMA + FIELDS + "prompt = '{nope}'",
        "prompt: prompt names the field nope, which fields does not declare",
    ),
    (
        ASKS + "system = '{a.b}'",
        "system: system has {a.b}: braces may hold only the name of a field",
    ),
    (OLLAMA + "prompt = 'p'\nfields = { a = 'text' }", "fields.a: fields.a is 'text'; it may be"),
    (HEAD + "handler = 'ollama'", "url: is missing"),
    (HEAD + "handler = 'ollama'\nurl = 'http://h'", "model: is missing"),
    (ASKS.replace("http://127.0.0.1:11434", "ftp://h"), "url: url must begin with http://"),
    (ASKS.replace("http://127.0.0.1:11434", "http://h:x"), "url: url is not an address"),
    (ASKS.replace("127.0.0.1:11434", "u:secret@h"), "url: url contains a password, which all"),
    (ASKS.replace(":11434", ":11434/v1"), "url: url ends in /v1, which is Ollama's OpenAI API"),
    (ASKS.replace("http://127.0.0.1:11434", "$NOT_SET"), "url: $NOT_SET is not set"),
    (ASKS + "num_ctx = 0", "num_ctx: num_ctx is 0; it may be a whole number from 1"),
    (ASKS + "num_predict = -1", "num_predict: num_predict is -1; it may be"),
    (ASKS + "temperature = 'hot'", "temperature: temperature is 'hot'; it may be a number"),
    (ASKS + "stall_timeout = 0", "stall_timeout: stall_timeout is 0; it may be"),
    (ASKS + "format = 'xml'", "format: format is 'xml'; it may be json"),
    (ASKS + "format = 'json'\nschema = {}", "format: is not needed beside schema"),
    (ASKS + "schema = { type = 'x' }", "schema: schema is not a valid JSON Schema, at type"),
    (ASKS + "schema = 'gone.json'", "schema: "),
    (OPENAI + "api_key = 'sk-secret'", "api_key: must name a variable of the environment, like"),
    (OPENAI + "api_key = '$sk secret'", "api_key: must name a variable of the environment"),
    (OPENAI + "api_key = '$$secret'", "api_key: must name a variable of the environment"),
    (OPENAI + "api_key = '$NOT_SET'", "api_key: $NOT_SET is not set in the environment"),
    (OPENAI + "proxy = 'http://secret@p'", "proxy: must name a variable of the environment"),
    (HTTP + "secret = 'whsec_secret'", "secret: must name a variable of the environment"),
    (HTTP + "headers = { Authorization = 'secret' }", "headers.Authorization: must name a variab"),
    (HTTP + "headers = { webhook-id = 'x' }", "headers.webhook-id: is set by Penstock itself"),
    (HTTP + "headers = { 'a b' = 'x' }", "headers.a b: is not the name of a header"),
    (HTTP + 'headers = { a = "b\\r\\nc" }', "headers.a: must be a text of one line"),
    (HTTP + "headers = 5", "headers: must be a table like"),
    (HEAD + "handler = []", "handler: is []; known are ollama, openai, http, dispatch, or module:"),
    (ASKS.replace('queue = "q"', "queue = []"), "queue: there is no [queues.[]]; known are q"),
    (ASKS + "schema = { const = 2026-01-01 }", "schema: schema is not JSON"),
    (HEAD + "handler = 'dispatch'", "url: is missing"),
    (DISPATCH + "model = 'm'", "model: is not an option. Known are queue"),
    (DISPATCH + "secret = 'x'", "secret: must name a variable of the environment"),
    (DISPATCH + "answer_timeout = '3m'", "answer_timeout: is '3m', but the job is stopped after"),
    (DISPATCH + "webhook = 'nowhere'", "webhook: webhook must begin with http:// or https://"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_a_mistake_is_named_with_file_table_and_key(
    load_text: Load, tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(Misconfigured, match=r".") as caught:
        load_text(text)
    assert str(caught.value).startswith(f"{tmp_path / 'penstock.toml'}, [jobs.f], {message}")
    assert "secret@" not in str(caught.value)
    assert "sk-secret" not in str(caught.value)
    assert "whsec_secret" not in str(caught.value)


@pytest.mark.parametrize("handler", model_kinds.HANDLERS)
def test_an_unknown_option_names_those_of_that_handler(load_text: Load, handler: str) -> None:
    with pytest.raises(WrongApp, match="oops: is not an option") as caught:
        load_text(f'{HEAD}handler = "{handler}"\noops = 1')
    known = str(caught.value).partition("Known are ")[2].split(", ")
    own = {"ollama": "num_ctx", "openai": "api_key", "http": "headers", "dispatch": "headers"}
    assert {name for name in own.values() if name in known} == {own[handler]}
    assert {"queue", "dedupe", "attempts", "url", "fields", "handler"} <= set(known)
    assert {"price", "split", "webhook"} <= set(known)
    assert not {"isolation", "memory", "read"} & set(known)


def config_of(app: Penstock) -> Any:
    """Return the configuration of a handler."""
    call = app.kinds["f"].function
    handler = dict(zip(call.__code__.co_freevars, call.__closure__ or (), strict=True))["handler"]
    built: Any = handler.cell_contents
    return dict(zip(built.__code__.co_freevars, built.__closure__, strict=True))[
        "config"
    ].cell_contents


def test_options_reach_the_handler(load_text: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", "http://me:pass@127.0.0.1:11434/")
    monkeypatch.setenv("WINDOW", "2048")
    monkeypatch.setenv("KEY", "k")
    given = ASKS.replace("http://127.0.0.1:11434", "$WHERE")
    found = config_of(load_text(given + "num_ctx = '$WINDOW'\nkeep_alive = 'forever'\n"))
    assert (found.num_ctx, found.num_predict, found.keep_alive) == (2048, 2048, -1)
    assert (found.first_token_seconds, found.stall_seconds) == (None, 30)
    assert found.endpoint.url == "http://127.0.0.1:11434/api/chat"
    assert found.endpoint.authorization.reveal() == "Basic bWU6cGFzcw=="
    found = config_of(
        load_text(OPENAI + "api_key = '$KEY'\nstall_timeout = '1m'\nproxy = '$WHERE'")
    )
    assert (found.api_key.reveal(), found.stall_seconds) == ("k", 60)
    assert found.endpoint.proxy.reveal() == "http://me:pass@127.0.0.1:11434/"


def test_the_handler_may_be_a_variable(load_text: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHICH", "ollama")
    app = load_text(ASKS.replace('handler = "ollama"', 'handler = "$WHICH"'))
    assert config_of(app).num_ctx == 8192


def test_calls_of_functions_are_signed_if_there_is_a_secret(
    load_text: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert config_of(load_text(HTTP)).signer is None
    monkeypatch.setenv("PENSTOCK_SECRET", SECRET)
    house = config_of(load_text(HTTP)).signer
    monkeypatch.setenv("OWN", "of this function")
    own = config_of(load_text(HTTP + "secret = '$OWN'")).signer
    assert house.sign("i", 1, b"") != own.sign("i", 1, b"")


async def test_from_submit_to_result(
    load_text: Load, database: str, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E5: a queue in front of Ollama without Python."""
    monkeypatch.setenv("PENSTOCK_DSN", database)
    async with simulated(tokens=20) as model, answering_function() as url:
        monkeypatch.setenv("OLLAMA_URL", model.url)
        monkeypatch.setenv("FUNCTION_URL", url)
        app = load_text("""
            [queues.ollama]
            concurrency = 1
            local_only = true
            [jobs.feedback]
            queue = "ollama"
            handler = "ollama"
            url = "$OLLAMA_URL"
            model = "llama3"
            prompt = "Give feedback on: {answer} {tone}"
            fields = { answer = "str", level = "int?", tone = { type = "str", default = "kindly" } }
            [jobs.score]
            queue = "ollama"
            handler = "openai"
            url = "$OLLAMA_URL"
            model = "llama3"
            prompt = "Score: {answer}"
            fields = { answer = "str" }
            [jobs.score.schema]
            type = "object"
            required = ["score"]
            properties = { score = { type = "integer" } }
            [jobs.resize]
            queue = "ollama"
            handler = "http"
            url = "$FUNCTION_URL"
            fields = { image = "str", size = { type = "int", default = 64 } }
        """)
        tickets = [
            await app.kinds["feedback"].submit(answer="an essay"),
            await app.kinds["score"].submit(answer="an essay"),
            await app.kinds["resize"].submit(image="cat"),
        ]
        async with working(database, app):
            rows = await until_finished(conn, [ticket.id for ticket in tickets])
        assert [row["status"] for row in rows] == ["succeeded"] * 3, [row["error"] for row in rows]
        feedback, score, resize = (row["result"] for row in rows)
        assert feedback["model"] == "llama3"
        assert feedback["text"]
        assert type(score["score"]) is int
        assert resize == {"payload": {"image": "cat", "size": 64}}
        assert rows[0]["usage"]["completion_tokens"] == 20
        assert model.most_at_once == 1
        assert model.calls[0].prompt_chars == len("Give feedback on: an essay kindly")
        await app.close()


@asynccontextmanager
async def answering_function() -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        result = {"payload": body["payload"]}
        return web.json_response(
            {"job_id": body["job_id"], "token": body["token"], "status": "succeeded"}
            | {"result": result}
        )

    app = web.Application()
    app.router.add_post("/resize", answer)
    server = TestServer(app)
    await server.start_server()
    try:
        yield f"http://127.0.0.1:{server.port}/resize"
    finally:
        await server.close()


@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
async def test_a_secret_is_only_in_the_call(
    load_text: Load,
    database: str,
    conn: asyncpg.Connection,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    *,
    monkeypatch: pytest.MonkeyPatch,
    debug: bool,
) -> None:
    """It is not in the database, a log line, a repr or an error."""
    caplog.set_level(logging.DEBUG)
    for name in ("asyncio", "aiohttp", "aiohttp.client", "asyncpg", "penstock"):
        caplog.set_level(logging.DEBUG, logger=name)
    loop = asyncio.get_running_loop()
    loop.set_debug(debug)
    loop.slow_callback_duration = 0.0
    monkeypatch.setenv("PENSTOCK_DSN", database)
    for name in ("KEY", "TOKEN", "SIGNING"):
        monkeypatch.setenv(name, f"{MARK}-{name}")
    async with simulated(api_key=f"{MARK}-KEY") as model:
        monkeypatch.setenv("MODEL_URL", f"{model.url}/v1")
        monkeypatch.setenv("LOCKED_URL", model.url.replace("//", f"//me:{MARK}@"))
        app = load_text("""
            [queues.q]
            retry = { attempts = 1 }
            [jobs.good]
            queue = "q"
            handler = "openai"
            url = "$MODEL_URL"
            api_key = "$KEY"
            model = "m"
            prompt = "{text}"
            fields = { text = "str" }
            [jobs.bad]
            queue = "q"
            handler = "http"
            url = "$LOCKED_URL"
            headers = { X-Api-Key = "$TOKEN" }
            secret = "$SIGNING"
            fields = { text = "str" }
        """)
        good = await app.kinds["good"].submit(text="hello")
        await app.kinds["bad"].submit(text="hello")
        async with working(database, app):
            rows = await until_finished(conn, [good.id])
            await _until_called(model)
        assert rows[0]["status"] == "succeeded"
        shown = [repr(app), *map(repr, app.kinds.values()), *map(repr, app.handlers().values())]
        shown += [repr(config_of_kind(app, kind)) for kind in ("good", "bad")]
        await app.close()
    loop.set_debug(False)
    out, err = capfd.readouterr()
    formatter = logging.Formatter("%(message)s %(args)s")
    shown += [*out.splitlines(), *err.splitlines()]
    for record in caplog.records:
        shown += [formatter.format(record), str(vars(record))]
    shown += await _everything_in(conn)
    assert [line for line in shown if MARK in line] == []
    assert any(
        "MODEL_URL" in line or "good" in line for line in shown
    )  # the searched texts are not empty


def config_of_kind(app: Penstock, kind: str) -> Any:
    app.kinds["f"] = app.kinds[kind]
    try:
        return config_of(app)
    finally:
        del app.kinds["f"]


async def _until_called(model: Any) -> None:
    async def both() -> bool:
        return sum(call.ended_at is not None for call in model.calls) >= 2

    await eventually(both, "both are called")


async def _everything_in(conn: asyncpg.Connection) -> list[str]:
    tables = await conn.fetch(
        "select c.oid::regclass::text as name from pg_class c join pg_namespace n"
        " on n.oid = c.relnamespace where n.nspname = 'penstock' and c.relkind in ('r', 'p')"
    )
    found = []
    for table in tables:
        rows = await conn.fetch(f"select t::text as row from {table['name']} t")
        found += [row["row"] for row in rows]
    assert any(json.dumps("q")[1:-1] in row for row in found)
    return found
