"""Prices of jobs: declared, determined on the server, and reserved by the submit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import asyncpg
import pytest

from penstock import Constant, Field, InsufficientCredits, Invalid, Kind, NotFound, Penstock
from penstock.client.config.toml import load
from support.caller_connections import BORROWERS

MAX = 10**12


@pytest.fixture
async def paid(app: Penstock) -> Penstock:
    """An app whose account u1 has 100 credits."""
    app.queue("q")
    await app.accounts.grant("u1", 100)
    return app


def made(app: Penstock, **options: Any) -> Kind[..., Any]:
    """A kind with a field of each type from which a price may be read."""

    @app.job(queue="q", account=Constant("u1"), **options)
    async def draw(
        images: int | list[str] = 2,
        quality: Literal["standard", "high"] = "standard",
        cost: Any = 7,
    ) -> None: ...

    return draw


async def reserved(conn: asyncpg.Connection, job_id: Any) -> int:
    found: int = await conn.fetchval("select reserved from penstock.job where id = $1", job_id)
    return found


PER = {"per": "images", "by": "quality", "standard": 1, "high": 3}
COST = Field("cost", trusted=True)
PRICES: list[tuple[Any, dict[str, Any], int]] = [
    (5, {}, 5),
    (0, {}, 0),
    (COST, {"cost": 9}, 9),
    (COST, {"cost": 0}, 0),
    ({"field": "cost", "trusted": True}, {}, 7),
    (lambda payload: 2 * payload["images"] + 1, {"images": 3}, 7),
    (lambda _: 0, {}, 0),
    (PER, {"images": 4, "quality": "high"}, 12),
    (PER, {"images": ["a", "b", "c"], "quality": "high"}, 9),
    (PER, {"images": 4}, 4),
    (PER, {}, 2),
    ({"per": "images", "each": 2}, {"images": 5}, 10),
    ({"by": "quality", "standard": 1, "high": 3}, {"quality": "high"}, 3),
]


@pytest.mark.parametrize(("price", "payload", "costs"), PRICES)
async def test_the_declaration_determines_the_price(
    paid: Penstock, conn: asyncpg.Connection, price: Any, payload: dict[str, Any], costs: int
) -> None:
    """G18: from number, field, function and table; default values of the handler count."""
    ticket = await made(paid, price=price).submit(**payload)
    assert await reserved(conn, ticket.id) == costs
    assert ticket.balance == 100 - costs
    assert (await paid.accounts.show("u1"))["balance"] == 100 - costs
    job = await ticket.status()
    expected = {"reserved": costs, "charged": 0, "refunded": 0}
    assert {key: (job["credits"] or expected)[key] for key in expected} == expected


async def test_a_toml_kind_has_its_price(database: str, tmp_path: Path) -> None:
    """G18: a job without Python."""
    path = tmp_path / "penstock.toml"
    path.write_text("""
        [queues.q]
        [jobs.image]
        queue = "q"
        handler = "http"
        url = "http://127.0.0.1:1"
        account = "user"
        fields = { user = "str", images = "int", quality = "str" }
        price = { per = "images", by = "quality", standard = 1, high = 3 }
        split = ["images", 4]
    """)
    app = load(path)
    await app.move(database)
    await app.accounts.grant("u1", 30)
    ticket = await app.kinds["image"].submit(user="u1", images=8, quality="high")
    assert ticket.balance == 6
    assert (await ticket.status())["total"] == 2
    with pytest.raises(Invalid, match="quality must be one of high, standard") as caught:
        await app.kinds["image"].submit(user="u1", images=1, quality="odd")
    assert (caught.value.code, caught.value.field) == ("invalid_payload", "quality")
    await app.close()


async def test_declared_prices_reach_the_database(paid: Penstock, conn: asyncpg.Connection) -> None:
    def kind(name: str, **options: Any) -> None:
        @paid.job(queue="q", name=name, **options)
        def work(n: int, size: str = "s") -> None: ...

    kind("fixed", price=3)
    kind("field", price=Field("n", trusted=True))
    kind("table", price={"per": "n", "by": "size", "s": 1}, split=("n", 4))
    kind("computed", price=lambda _: 1, topic=lambda _: "t")
    await paid.engine()
    rows = await conn.fetch("select name, declared - 'queue' as declared from penstock.kind")
    assert {row["name"]: row["declared"] for row in rows} == {
        "fixed": {"price": 3},
        "field": {"price": {"field": "n", "trusted": True}},
        "table": {
            "price": {"per": "n", "by": "size", "s": 1},
            "split_field": "n",
            "split_most": 4,
        },
        "computed": {"computed": ["topic", "price"]},
    }


@pytest.mark.parametrize(
    "price", ["n", Field("n"), {"field": "n"}, {"field": "n", "trusted": False}]
)
def test_a_price_in_the_payload_has_to_be_declared_trusted(paid: Penstock, price: Any) -> None:
    """G18: an account's key could submit at 0."""
    with pytest.raises(Invalid, match="taken from the parameter n, so the submitter") as caught:

        @paid.job(queue="q", price=price)
        def work(n: int) -> None: ...

    assert (caught.value.code, caught.value.field) == ("invalid_option", "price")
    assert 'price=Field("n", trusted=True)' in str(caught.value)


async def later(payload: dict[str, Any]) -> int:
    return len(payload)


NUMBER = "it may be a whole number from 0 to 1000000000000, a table like"
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"price": -1}, f"price is -1; {NUMBER}"),
    ({"price": 1.5}, f"price is 1.5; {NUMBER}"),
    ({"price": 3.0}, f"price is 3.0; {NUMBER}"),
    ({"price": True}, f"price is True; {NUMBER}"),
    ({"price": MAX + 1}, f"price is 1000000000001; {NUMBER}"),
    ({"price": float("nan")}, f"price is nan; {NUMBER}"),
    ({"price": float("inf")}, f"price is inf; {NUMBER}"),
    ({"price": [1]}, r"price is \[1\]; it may be"),
    ({"price": later}, "price is <function later.*a plain function of the payload, or Field"),
    ({"price": "nope"}, "price is 'nope'; it names a parameter, and known are n, size"),
    ({"price": ""}, "price is ''; it names a parameter"),
    ({"price": Field("nope", trusted=True)}, "price is 'nope'; it names a parameter"),
    ({"price": {"field": 5, "trusted": True}}, "price is 5; it names a parameter"),
    ({"price": {"field": "n", "trusted": 1}}, "a field is written as"),
    ({"price": {"field": "n", "trusted": True, "each": 1}}, "a field is written as"),
    ({"price": {}}, "price is a table, and it needs per or by"),
    ({"price": {"standard": 1}}, "price is a table, and it needs per or by"),
    ({"price": {"per": "n"}}, "price is a table, and without by it has per and each alone"),
    ({"price": {"per": "n", "each": 1, "high": 2}}, "without by it has per and each alone"),
    ({"price": {"by": "size"}}, "price is a table, and it has no price for any value of size"),
    ({"price": {"by": "size", "each": 1}}, "each excludes by: name a price for each value of size"),
    ({"price": {"per": "n", "by": "n", "a": 1}}, "per and by must name two parameters"),
    ({"price": {"per": "m", "each": 1}}, "per must name a parameter, and known are n, size"),
    ({"price": {"by": 5, "a": 1}}, "by must name a parameter, and known are n, size"),
    ({"price": {"per": "n", "each": -1}}, "each must be a whole number from 0 to 1000000000000"),
    ({"price": {"by": "size", "a": True}}, "a must be a whole number from 0"),
    ({"price": {"by": "size", "a": 0.5}}, "a must be a whole number from 0"),
    ({"price": {"by": "size", 512: 1}}, "a value of by must be a text"),
    ({"split": ("n", 0)}, r"split is \('n', 0\); it may be a parameter and a whole number from 1"),
    ({"split": ("n", -4)}, "it may be a parameter and a whole number from 1"),
    ({"split": ("n", True)}, "it may be a parameter and a whole number from 1"),
    ({"split": ("n", 4.0)}, "it may be a parameter and a whole number from 1"),
    ({"split": ("n", 10**7)}, "a whole number from 1 to 1000000"),
    ({"split": ("n",)}, "it may be a parameter and a whole number"),
    ({"split": "n4"}, "split is 'n4'; it may be a parameter and a whole number"),
    ({"split": 4}, "split is 4; it may be a parameter and a whole number"),
    ({"split": ("m", 4)}, r"split is \('m', 4\); it begins with the name of a parameter; known"),
    ({"split": ("n", 4), "dedupe": "size"}, "split is .*; it excludes dedupe"),
    ({"split": ("n", 4), "dedupe": len}, "split is .*; it excludes dedupe"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_a_wrong_price_is_refused_at_once(options: dict[str, Any], message: str) -> None:
    """G18"""
    app = Penstock("postgresql://nowhere")
    app.queue("q")

    def work(n: int, size: str) -> None: ...

    with pytest.raises(Invalid, match=message) as caught:
        app.job(queue="q", **options)(work)
    assert (caught.value.code, app.kinds) == ("invalid_option", {})
    assert caught.value.field == next(iter(options))


ODD: list[Callable[[dict[str, Any]], Any]] = [
    lambda _: None,
    lambda _: True,
    lambda _: 2.0,
    lambda _: "3",
    lambda _: -1,
    lambda _: MAX + 1,
]


@pytest.mark.parametrize("function", ODD)
async def test_a_function_that_returns_no_price_is_refused(
    paid: Penstock, conn: asyncpg.Connection, function: Callable[[dict[str, Any]], Any]
) -> None:
    kind = made(paid, price=function)
    with pytest.raises(Invalid, match=r"price must .*a whole number from 0 to 10") as caught:
        await kind.submit()
    assert (caught.value.code, caught.value.field) == ("invalid_job", "price")
    with pytest.raises(Invalid, match=r"^row 1: .*price must .*a whole number") as caught:
        await kind.submit_many([{}, {}])
    assert caught.value.field == "price"
    assert await conn.fetchval("select count(*) from penstock.job") == 0


async def test_a_kind_whose_price_is_a_function_is_not_for_plain_sql(
    paid: Penstock, conn: asyncpg.Connection
) -> None:
    """G1: there is no other way to get it for free."""
    made(paid, price=lambda _: 3)
    await paid.engine()
    with pytest.raises(asyncpg.PostgresError) as caught:
        await conn.execute("select penstock.submit_job('draw', '{}', account => 'u1')")
    assert caught.value.sqlstate == "PS422"


async def test_a_price_of_using_overrides_the_kind(
    paid: Penstock, conn: asyncpg.Connection
) -> None:
    for n, price in enumerate((9, COST, PER, lambda _: 9)):
        kind = made(paid, name=f"draw{n}", price=price)
        ticket = await kind.using(price=2).submit()
        assert await reserved(conn, ticket.id) == 2
        assert await reserved(conn, (await kind.using(price=0).submit()).id) == 0
        many = await kind.using(price=1).submit_many([{}, {}])
        assert [await reserved(conn, one.id) for one in many] == [1, 1]


@pytest.mark.parametrize("price", [-1, MAX + 1, 2**70, 1.5, True, "3", float("nan")])
async def test_an_odd_price_is_refused_by_name(paid: Penstock, price: Any) -> None:
    using = made(paid).using(price=price)
    for submit in (using.submit(), using.submit_many([{}])):
        with pytest.raises(Invalid, match=r"^price must be a whole number from 0 to 10") as caught:
            await submit
        assert (caught.value.code, caught.value.field) == ("invalid_job", "price")


async def test_too_few_credits_are_refused_with_balance_and_price(
    paid: Penstock, conn: asyncpg.Connection
) -> None:
    """G2: nothing is queued."""
    kind = made(paid, price=60)
    assert (await kind.submit()).balance == 40
    with pytest.raises(InsufficientCredits) as caught:
        await kind.submit()
    assert (caught.value.balance, caught.value.required) == (40, 60)
    assert (caught.value.status, caught.value.code) == (402, "insufficient_credits")
    with pytest.raises(InsufficientCredits) as caught:
        await kind.using(price=25).submit_many([{}, {}])
    assert (caught.value.balance, caught.value.required) == (40, 50)
    assert await conn.fetchval("select count(*) from penstock.job") == 1
    assert (await paid.accounts.show("u1"))["balance"] == 40


async def test_a_priced_job_needs_an_account(paid: Penstock) -> None:
    @paid.job(queue="q", price=COST)
    async def work(cost: int) -> None: ...

    with pytest.raises(Invalid, match="account") as caught:
        await work.submit(cost=1)
    assert (caught.value.code, caught.value.field) == ("account_required", "account")
    free = await work.submit(cost=0)
    assert free.balance is None
    assert (await work.using(account="u1").submit(cost=1)).balance == 99


@pytest.mark.parametrize(
    ("price", "payload", "field"),
    [
        (COST, {"cost": -1}, "cost"),
        (COST, {"cost": "3"}, "cost"),
        (COST, {"cost": 1.5}, "cost"),
        (PER, {"images": 0}, "images"),
        (PER, {"images": []}, "images"),
    ],
)
async def test_a_payload_without_a_price_is_refused_with_its_field(
    paid: Penstock, price: Any, payload: dict[str, Any], field: str
) -> None:
    kind = made(paid, price=price)
    with pytest.raises(Invalid, match=field) as caught:
        await kind.submit(**payload)
    assert (caught.value.code, caught.value.field) == ("invalid_payload", field)
    with pytest.raises(Invalid, match=f"^row 2: {field}") as caught:
        await kind.submit_many([{}, payload])
    assert caught.value.field == field


async def test_many_are_priced_one_by_one(paid: Penstock, conn: asyncpg.Connection) -> None:
    await paid.accounts.grant("u2", 10)

    @paid.job(queue="q", account="who", price=lambda payload: payload["n"])
    async def work(who: str, n: int) -> None: ...

    tickets = await work.submit_many(
        [{"who": "u1", "n": 5}, {"who": "u2", "n": 3}, {"who": "u1", "n": 0}]
    )
    assert [await reserved(conn, one.id) for one in tickets] == [5, 3, 0]
    assert [one.balance for one in tickets] == [95, 7, 95]
    with pytest.raises(InsufficientCredits) as caught:
        await work.submit_many([{"who": "u1", "n": 5}, {"who": "u2", "n": 8}])
    assert (caught.value.balance, caught.value.required) == (7, 8)
    assert (await paid.accounts.show("u1"))["balance"] == 95


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "psycopg async", "DB-API"])
@pytest.mark.parametrize("commits", [True, False])
async def test_credits_are_part_of_the_callers_transaction(
    paid: Penstock, database: str, driver: str, commits: bool
) -> None:
    """G1: after a rollback nothing is reserved."""
    kind = made(paid, price=30, split=("images", 4))
    async with BORROWERS[driver](database) as own:
        ticket = await kind.using(conn=own.conn).submit(images=8)
        many = await kind.using(conn=own.conn, price=1).submit_many([{}, {}])
        assert (ticket.balance, many[1].balance) == (70, 68)
        await own.end(commits=commits)
    assert (await paid.accounts.show("u1"))["balance"] == (68 if commits else 100)
    if not commits:
        with pytest.raises(NotFound):
            await ticket.status()
