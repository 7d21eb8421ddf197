"""Accounts over HTTP: create, read, grant, deduct; each account sees only itself."""

from typing import Any

import httpx
import pytest

from support.http.site import Site, problem


@pytest.fixture(autouse=True)
def _plans(site: Site) -> None:
    site.penstock.plan("free", priority=50, concurrency=1, per_hour=10)
    site.penstock.plan("pro", priority=10, concurrency=4)


async def token(site: Site, **claims: Any) -> httpx.AsyncClient:
    answer = await site.admin.post("/v1/tokens", json={"ttl_seconds": 60, **claims})
    assert answer.status_code in (200, 201), answer.text
    return site.client(answer.json()["token"])


async def test_an_account_is_created_read_and_moved_to_another_plan(site: Site) -> None:
    made = await site.app_client.post("/v1/accounts", json={"id": "u1", "plan": "pro"})
    assert made.status_code == 201
    account = made.json()
    assert (
        account.items()
        >= {"id": "u1", "plan": "pro", "balance": 0, "running": 0, "submitted_last_hour": 0}.items()
    )
    assert (await site.admin.get("/v1/accounts/u1")).json() == account
    edited = await site.admin.patch("/v1/accounts/u1", json={"plan": "free"})
    assert (edited.status_code, edited.json()["plan"]) == (200, "free")
    defaulted = await site.admin.post("/v1/accounts", json={"id": "u2"})
    assert defaulted.json()["plan"] == "free"
    problem(await site.admin.post("/v1/accounts", json={"id": "u1"}), 409, "account_exists")
    problem(await site.admin.patch("/v1/accounts/u1", json={"plan": "no"}), 404, "unknown_plan")
    problem(await site.admin.patch("/v1/accounts/x", json={"plan": "pro"}), 404, "unknown_account")
    problem(await site.admin.get("/v1/accounts/x"), 404, "unknown_account")


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "invalid_account", "id"),
        ({"id": ""}, "invalid_account", "id"),
        ({"id": "x" * 201}, "invalid_account", "id"),
        ({"id": 7}, "invalid_account", "id"),
        ({"id": "a\0b"}, "invalid_account", "account"),
        ({"id": "u1", "balance": 100}, "invalid_account", "balance"),
    ],
)
async def test_the_wrong_field_of_an_account_is_named(
    site: Site, body: dict[str, Any], code: str, field: str
) -> None:
    refusal = problem(await site.admin.post("/v1/accounts", json=body), 422, code)
    assert refusal["field"] == field


async def test_credits_change_once_for_each_reference(site: Site) -> None:
    url = "/v1/accounts/u1"
    granted = await site.admin.post(f"{url}/credits", json={"amount": 100, "ref": "p1"})
    assert granted.status_code == 200
    assert granted.json().items() >= {"id": "u1", "balance": 100, "replayed": False}.items()
    again = await site.app_client.post(f"{url}/credits", json={"amount": 100, "ref": "p1"})
    assert (again.json()["balance"], again.json()["replayed"]) == (100, True)
    other = await site.admin.post(f"{url}/credits", json={"amount": 7, "ref": "p1"})
    problem(other, 409, "ref_reused")
    taken = await site.app_client.post(
        f"{url}/deduct", json={"amount": 30, "ref": "x1", "reason": "export"}
    )
    assert (taken.json()["balance"], taken.json()["amount"]) == (70, -30)
    short = problem(
        await site.admin.post(f"{url}/deduct", json={"amount": 71, "ref": "x2"}),
        402,
        "insufficient_credits",
    )
    assert (short["balance"], short["required"]) == (70, 71)
    back = await site.admin.post(f"{url}/refund", json={"ref": "x1"})
    assert (back.json()["balance"], back.json()["amount"]) == (100, 30)
    assert (await site.admin.post(f"{url}/refund", json={"ref": "x1"})).json()["replayed"]
    problem(await site.admin.post(f"{url}/refund", json={"ref": "no"}), 404, "unknown_ref")


@pytest.mark.parametrize("amount", [0, -1, 1.5, "5", 10**13, None, True])
async def test_an_amount_is_a_whole_number_above_zero(site: Site, amount: Any) -> None:
    for what in ("credits", "deduct"):
        answer = await site.admin.post(
            f"/v1/accounts/u1/{what}", json={"amount": amount, "ref": "r"}
        )
        assert problem(answer, 422, "invalid_request")["field"] == "amount"


async def test_the_ledger_comes_in_pages_newest_first(site: Site) -> None:
    for n in range(1, 6):
        await site.admin.post(
            "/v1/accounts/u1/credits", json={"amount": n, "ref": f"p{n}", "reason": "bought"}
        )
    items: list[dict[str, Any]] = []
    cursor = None
    while True:
        query = {"limit": 2} | ({} if cursor is None else {"cursor": cursor})
        page = (await site.admin.get("/v1/accounts/u1/ledger", params=query)).json()
        items += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert [one["amount"] for one in items] == [5, 4, 3, 2, 1]
    assert items[0].keys() >= {
        *("at", "kind", "amount", "job", "ref", "reason", "balance_after"),
    }
    assert items[0]["balance_after"] == sum(one["amount"] for one in items) == 15
    for wrong in ("x", "", "AgB4", "AjE4NDQ2NzQ0MDczNzA5NTUxNjE1"):
        query = {"cursor": wrong}
        answer = await site.admin.get("/v1/accounts/u1/ledger", params=query)
        problem(answer, 422, "invalid_cursor")
    assert (await site.admin.get("/v1/accounts/u1/ledger?limit=1000")).status_code == 200
    problem(await site.admin.get("/v1/accounts/u1/ledger?limit=1001"), 422, "invalid_request")


async def test_accounts_are_listed_by_name(site: Site) -> None:
    for name in ("b", "a", "é", "c"):
        await site.admin.post("/v1/accounts", json={"id": name})
    first = (await site.app_client.get("/v1/accounts?limit=3")).json()
    rest = (
        await site.app_client.get(
            "/v1/accounts", params={"limit": 3, "cursor": first["next_cursor"]}
        )
    ).json()
    assert [one["id"] for one in first["items"] + rest["items"]] == sorted("abcé")
    assert rest["next_cursor"] is None


async def test_an_account_sees_itself_and_changes_nothing(site: Site) -> None:
    own = await site.account_client("u1")
    await site.make_account("u2", credits=50)
    assert (await own.get("/v1/accounts/u1")).json()["id"] == "u1"
    assert (await own.get("/v1/accounts/u1/ledger")).status_code == 200
    for name in ("u1", "u2", "nobody"):
        for what, body in (
            ("credits", {"amount": 1}),
            ("deduct", {"amount": 1, "ref": "r"}),
            ("refund", {"ref": "r"}),
            ("erase", {}),
        ):
            answer = await own.post(f"/v1/accounts/{name}/{what}", json=body)
            problem(answer, 403, "not_allowed")
        problem(await own.patch(f"/v1/accounts/{name}", json={"plan": "pro"}), 403, "not_allowed")
    problem(await own.post("/v1/accounts", json={"id": "u3"}), 403, "not_allowed")
    problem(await own.get("/v1/accounts"), 403, "not_allowed")


async def test_another_account_gets_the_same_answer_as_an_unknown_one(site: Site) -> None:
    own = await site.account_client("u1")
    await site.make_account("u2", credits=50)
    for path in ("", "/ledger"):
        theirs = problem(await own.get(f"/v1/accounts/u2{path}"), 404, "unknown_account")
        none = problem(await own.get(f"/v1/accounts/u9{path}"), 404, "unknown_account")
        asked = problem(await site.admin.get(f"/v1/accounts/u9{path}"), 404, "unknown_account")
        assert none == asked
        assert str(theirs).replace("u2", "u9") == str(none)


async def test_a_token_shows_its_account(site: Site) -> None:
    await site.make_account("u1", credits=50)
    await site.make_account("u2")
    own = await token(site, account="u1", allow=["read"])
    assert (await own.get("/v1/accounts/u1")).json()["balance"] == 50
    assert len((await own.get("/v1/accounts/u1/ledger")).json()["items"]) == 1
    problem(await own.get("/v1/accounts/u2"), 404, "unknown_account")
    problem(await own.post("/v1/accounts/u1/credits", json={"amount": 1}), 403, "not_allowed")
    cancels = await token(site, account="u1", allow=["cancel"])
    problem(await cancels.get("/v1/accounts/u1"), 403, "not_allowed")
    topic = await token(site, topic="a1", allow=["read"])
    problem(await topic.get("/v1/accounts/u1"), 403, "not_allowed")


async def test_other_callers_are_refused(site: Site) -> None:
    await site.make_account("u1")
    drives = site.client(await site.make_key("process"))
    for path in ("/v1/accounts", "/v1/accounts/u1", "/v1/accounts/u1/ledger"):
        problem(await site.anonymous.get(path), 401, "unauthorized")
        problem(await drives.get(path), 403, "not_allowed")
