"""Kinds of job: what `@app.job` takes, what it returns, and what it refuses at once."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from penstock import Constant, Invalid, Job, Misconfigured, NotFound, Penstock


def plain(n: int) -> int:
    return n + 1


async def waiting(n: int) -> int:
    return n + 1


@pytest.fixture
def app() -> Penstock:
    app = Penstock("postgresql://nowhere")
    app.queue("q")
    return app


def make(app: Penstock, function: Callable[..., Any] = plain, **options: Any) -> Any:
    return app.job(**{"queue": "q", **options})(function)


async def test_a_kind_is_called_like_its_function(app: Penstock) -> None:
    """Apps can test their handlers as plain functions."""

    @app.job(queue="q")
    def add(n: int, m: int = 1) -> int:
        """Adds."""
        return n + m

    @app.job(queue="q")
    async def later(n: int) -> int:
        return n + 1

    assert add(1) == 2
    assert add(1, m=5) == 6
    assert await later(1) == 2
    assert (add.__name__, add.__doc__) == ("add", "Adds.")
    assert repr(add).startswith("<job kind add of queue q, ")


def test_handlers_have_what_a_worker_needs(app: Penstock) -> None:
    make(app)
    make(app, waiting, name="other", isolation=None)
    make(app, name="apart", isolation="process", memory="512MB")
    handlers = app.handlers()
    assert {name: handler.mode for name, handler in handlers.items()} == {
        "plain": "thread",
        "other": "async",
        "apart": "process",
    }
    assert all(handler.queue == "q" for handler in handlers.values())
    assert handlers["apart"].memory_bytes == 512 * 2**20
    assert handlers["apart"].origin == (__name__, "plain")
    assert handlers["plain"].function is plain
    assert handlers["plain"].parameters.names == ("n",)


def test_a_decorated_handler_is_read_through_its_decorator(app: Penstock) -> None:
    def traced(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            return function(*args, **options)

        return call

    kind = make(app, traced(waiting))
    assert kind.handler.mode == "async"
    assert kind.parameters.names == ("n",)


async def test_the_options_of_a_kind_reach_the_database(
    database: str, conn: asyncpg.Connection
) -> None:
    app = Penstock(database)
    queue = app.queue("q")

    @app.job(
        queue=queue,
        name="mark.v2",
        dedupe="sid",
        topic="lesson",
        account=Constant("school"),
        priority_offset=-5,
        timeout="90s",
        attempts=7,
    )
    async def mark(sid: str, lesson: str, job: Job) -> None: ...

    @app.job(queue="q", dedupe=lambda payload: payload["n"], account=lambda _: "a")
    def other(n: int) -> None: ...

    @other.on_finish
    async def store(job: Any, conn: Any) -> None: ...

    await app.engine()
    rows = await conn.fetch("select name, declared from penstock.kind")
    assert {row["name"]: row["declared"] for row in rows} == {
        "mark.v2": {
            "queue": "q",
            "dedupe_field": "sid",
            "topic_field": "lesson",
            "account": "school",
            "priority_offset": -5,
            "timeout_seconds": 90,
            "attempts": 7,
        },
        "other": {"queue": "q", "computed": ["dedupe", "account"], "has_on_finish": True},
    }
    await app.close()


async def test_an_undeclared_queue_is_refused(database: str) -> None:
    app = Penstock(database)
    app.queue("q")
    make(app, queue="nope")
    with pytest.raises(NotFound, match="there is no queue nope") as caught:
        await app.engine()
    line = inspect.unwrap(plain).__code__.co_firstlineno
    assert caught.value.message == (
        f"there is no queue nope, which job kind plain ({__file__}:{line}) names; known are q."
    )
    assert caught.value.hint == 'Name one of these, or declare it first: app.queue("nope").'
    assert (caught.value.code, caught.value.field) == ("unknown_queue", "queue")


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"name": "a b"}, Invalid, "the kind name 'a b' must be"),
    ({"queue": 5}, Invalid, "queue is 5; it may be what app.queue"),
    ({"queue": "a b"}, Invalid, "the queue name 'a b'"),
    ({"dedupe": ""}, Invalid, "dedupe is ''; as a text it names a parameter, and known are n"),
    ({"dedupe": Constant("")}, Invalid, "dedupe is ''; it may be a text of 1 to 200"),
    ({"account": Constant(None)}, Invalid, "account is ''; it may be a text of 1 to 200"),  # type: ignore[arg-type]
    ({"account": Constant(5)}, Invalid, "account is 5; it may be a text of 1 to 200"),  # type: ignore[arg-type]
    ({"dedupe": "m"}, Invalid, r"dedupe is 'm'; as a .* known are n\. For .*=Constant\('m'\), in"),
    ({"dedupe": 5}, Invalid, "dedupe is 5; it may be the name of a parameter"),
    ({"topic": ""}, Invalid, "topic is ''; as a text it names a parameter, and known are n"),
    ({"topic": waiting}, Invalid, "topic is .*a plain function of the payload"),
    ({"account": "x" * 201}, Invalid, r"account is a str; as a text it names .* are n\.$"),
    ({"priority_offset": 1001}, Invalid, "priority_offset is 1001"),
    ({"timeout": "soon"}, Invalid, "timeout is 'soon'"),
    ({"attempts": 0}, Invalid, "attempts is 0"),
    ({"isolation": "thread"}, Invalid, "isolation is 'thread'; it may be process"),
    ({"memory": "1GB"}, Invalid, "memory is '1GB'; it needs isolation"),
    ({"isolation": "process", "memory": "lots"}, Invalid, "memory is 'lots'; it may be 32MB"),
    ({"isolation": "process", "memory": 5}, Invalid, "memory is 5; it may be 32MB or more"),
    ({"isolation": "process", "memory": True}, Invalid, "memory is True"),
]


@pytest.mark.parametrize(("options", "kind", "message"), WRONG)
def test_a_wrong_option_is_refused_at_once(
    app: Penstock, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        make(app, **options)
    assert app.kinds == {}


@pytest.mark.parametrize(
    ("written", "size"),
    [("512MB", 2**29), ("1 GiB", 2**30), ("0.5gb", 2**29), ("65536KB", 2**26), (2**26, 2**26)],
)
def test_memory_is_read_in_common_forms(app: Penstock, written: str | int, size: int) -> None:
    kind = make(app, isolation="process", memory=written)
    assert kind.handler.memory_bytes == size


def test_a_queue_of_another_app_is_refused(app: Penstock) -> None:
    theirs = Penstock().queue("theirs")
    with pytest.raises(
        Misconfigured, match=r"queue theirs \(.*\) was declared by another Penstock"
    ):
        make(app, queue=theirs)


def gives(n: int) -> Any:
    yield n


class Called:
    def __call__(self, n: int) -> int:
        return n


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (gives, "handler gives has a `yield`: return the result"),
        (Called(), "a handler must be a function, not Called"),
        (Called, "a handler must be a function, not type"),
        (lambda n: n, "the kind name '<lambda>'"),
        (5, "a handler must be a function, not int"),
    ],
)
def test_a_wrong_handler_is_refused(app: Penstock, handler: Any, message: str) -> None:
    with pytest.raises((Misconfigured, Invalid), match=message):
        make(app, handler)


def test_a_declaration_without_parentheses_is_refused(app: Penstock) -> None:
    bare: Any = app.job
    with pytest.raises(Misconfigured, match=r"@app.job above plain needs parentheses"):
        bare(plain)


def test_one_function_is_not_two_kinds(app: Penstock) -> None:
    with pytest.raises(Misconfigured, match="is already job kind plain"):
        make(app, make(app))


def test_process_isolation_needs_a_plain_function_of_a_module(app: Penstock) -> None:
    with pytest.raises(Misconfigured, match="needs a plain `def`"):
        make(app, waiting, isolation="process")

    def inside(n: int) -> None: ...

    with pytest.raises(Misconfigured, match="needs a function at the top level of a module"):
        make(app, inside, isolation="process")


def test_two_kinds_of_one_name_are_refused_with_both_locations(app: Penstock) -> None:
    make(app, plain)
    with pytest.raises(Misconfigured) as caught:
        make(app, waiting, name="plain")
    assert str(caught.value).startswith("job kind plain is declared twice: at ")
    assert str(caught.value).count("test_kind.py:") == 2
    assert app.kinds["plain"].function is plain


def test_the_same_function_may_be_declared_again(app: Penstock) -> None:
    first, second = make(app), make(app)
    assert app.kinds == {"plain": second}
    assert first is not second


def test_on_finish_needs_an_async_function_of_job_and_connection(app: Penstock) -> None:
    kind = make(app)

    def blocking(job: Any, conn: Any) -> None: ...
    async def short(job: Any) -> None: ...
    async def long(job: Any, conn: Any, more: Any) -> None: ...
    async def store(job: Any, conn: Any) -> None: ...

    with pytest.raises(Misconfigured, match=r"must be `async def store\(job, conn\)`"):
        kind.on_finish(blocking)
    for wrong in (short, long):
        with pytest.raises(Misconfigured, match="must take two arguments"):
            kind.on_finish(wrong)
    assert kind.on_finish(store) is store
    assert kind.handler.on_finish is store
    with pytest.raises(Misconfigured, match="has an on_finish already"):
        kind.on_finish(store)


def test_inline_is_set_by_the_queue_or_by_the_environment(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.queue("here", inline=True)
    assert make(app, name="a", queue="here").inline
    assert not make(app, name="b").inline
    monkeypatch.setenv("PENSTOCK_INLINE", "1")
    other = Penstock()
    assert make(other, name="c").inline


async def test_a_constant_dedupe_is_one_key_for_all(database: str) -> None:
    """M9: a nightly report, one at a time."""
    app = Penstock(database, name="nightly")
    queue = app.queue("q")

    @app.job(queue=queue, dedupe=Constant("nightly"))
    async def report(day: str) -> str:
        return day

    first = await report.submit(day="monday")
    again = await report.submit(day="tuesday")
    assert (again.id, again.deduplicated) == (first.id, True)
    await app.close()


def test_a_priority_offset_may_be_none(app: Penstock) -> None:
    """None: an app may pass on an option that is not set."""
    queue = app.queue("plain")

    @app.job(queue=queue, priority_offset=None)  # type: ignore[arg-type]
    async def plain() -> None: ...

    assert "priority_offset" not in plain.declared
