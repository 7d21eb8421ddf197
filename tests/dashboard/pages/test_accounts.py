"""The pages of accounts: search, creation, plans, credits by hand, keys, erasure."""

import csv
import io
import re
from typing import Any
from urllib.parse import quote

import asyncpg
import httpx
import pytest

from browser.scene import Scene
from support import factory
from support.dashboard.visitor import Visitor, text
from support.http.site import Site

ODD = [
    "a/b",
    "/lead and trail/",
    "grant",
    "x/grant",
    "<script>alert(1)</script>",
    "\"quoted\" & 'so'",
    "ä ö ü 漢字 🦉",
    "100%25",
    "a?b=c#d",
    ".",
    "..",
    "two\nlines",
    "é" * 200,
]


def at(name: str) -> str:
    """Return the path of its page; a name that cannot be in a path is in the query."""
    odd = name in (".", "..") or "\n" in name
    return ("/account?name=" if odd else "/accounts/") + quote(name, safe="")


async def move(operator: Visitor, verb: str, name: str, **fields: Any) -> httpx.Response:
    """Send a form of the page."""
    return await operator.post(f"/account/{verb}", {"account": quote(name, safe=""), **fields})


async def balance(conn: asyncpg.Connection, name: str) -> int:
    found: int = await conn.fetchval("select balance from penstock.account where name = $1", name)
    return found


async def test_without_accounts_the_page_says_how_to_create_one(operator: Visitor) -> None:
    assert "No accounts yet. The first job for an account creates it" in await operator.read(
        "/accounts"
    )


async def test_accounts_are_listed_with_plan_balance_and_usage(
    operator: Visitor, scene: Scene
) -> None:
    await scene.plan("free", concurrency=2, per_hour=10)
    await scene.account("u1", 1_234)
    await scene.running(account="u1")
    await scene.queued(account="u1")
    assert "u1 free 1,234 1 of 2 1 2 of 10" in await operator.read("/accounts")


async def test_accounts_are_found_by_the_beginning_of_their_name(
    operator: Visitor, conn: asyncpg.Connection
) -> None:
    for name in ("school-1", "school-2", "School-3", "other", "100%_"):
        await conn.execute("select penstock.create_account($1)", name)
    page = await operator.get("/accounts?q=school")
    assert re.findall(r'<tr id="account-([^"]*)"', page.text) == ["school-1", "school-2"]
    page = await operator.get("/accounts?q=school-2")
    assert re.findall(r'<tr id="account-([^"]*)"', page.text) == ["school-2"]
    page = await operator.get("/accounts?q=100%25_")
    assert page.text.count('<tr id="account-') == 1
    page = await operator.get("/accounts?q=%3Cscript%3E")
    assert "No account's name begins with “<script>”." in text(page)
    assert "<script>”" not in page.text


async def test_many_accounts_have_pages(operator: Visitor, conn: asyncpg.Connection) -> None:
    await conn.execute(
        "select penstock.create_account('u' || to_char(n, 'FM000')) from generate_series(1, 120) n"
    )
    seen: list[str] = []
    path = "/accounts?q=u"
    while path:
        page = await operator.get(path)
        seen += re.findall(r'<tr id="account-([^"]*)"', page.text)
        following = re.search(r'href="\./([^"]*)" rel="next"', page.text)
        path = "/" + following[1].replace("&amp;", "&") if following else ""
        assert path or "First page" in text(page)
    assert seen == [f"u{n:03}" for n in range(1, 121)]


@pytest.mark.parametrize("name", ODD)
async def test_an_account_of_any_name_can_be_created_shown_and_granted_credits(
    operator: Visitor, conn: asyncpg.Connection, name: str
) -> None:
    await conn.execute("select penstock.create_account($1)", name)
    listed = await operator.get("/accounts")
    href = re.search(r'<tr id="account-[^"]*">\s*<td><a href="\./([^"]*)"', listed.text)
    assert href
    page = await operator.get("/" + href[1])
    assert page.status_code == 200
    assert " ".join(name.split()) in text(page)
    assert "<script>alert" not in page.text
    hidden = re.search(r'name="account" value="([^"]*)"', page.text)
    assert hidden
    granted = await operator.post(
        "/account/grant", {"account": hidden[1], "amount": "7", "ref": "r1"}, follow=False
    )
    assert granted.status_code == 303, text(granted)
    assert await balance(conn, name) == 7
    back = await operator.http.get(granted.next_request.url if granted.next_request else "")
    assert back.status_code == 200
    assert "the balance is 7." in text(back)


async def test_an_account_is_created_with_a_plan(operator: Visitor, scene: Scene) -> None:
    await scene.plan("free")
    await scene.plan("pro", default=False, concurrency=9)
    done = await operator.post("/accounts", {"account": "ü/1", "plan": "pro"})
    assert "Account ü/1 was created with plan pro and no credits." in text(done)
    assert "It has plan pro" in await operator.read(at("ü/1"))


async def test_an_invalid_new_account_is_reported_beside_its_field(
    operator: Visitor, conn: asyncpg.Connection
) -> None:
    await conn.execute("select penstock.create_account('u1')")
    for name, page_text in (
        ("", "The name must have 1 to 200 characters."),
        ("x" * 201, "The name must have 1 to 200 characters."),
        ("u1", "Account u1 exists already."),
    ):
        answer = await operator.post("/accounts", {"account": name})
        assert answer.status_code == 422
        assert page_text in text(answer)
        assert f'name="account" value="{name}"' in answer.text
        assert "hx-get" not in answer.text
    answer = await operator.post("/accounts", {"account": "new", "plan": "nowhere"})
    assert answer.status_code == 404
    assert await conn.fetchval("select count(*) from penstock.account where id <> 0") == 1


async def test_an_unknown_account_answers_404(operator: Visitor) -> None:
    answer = await operator.get("/accounts/nobody")
    assert answer.status_code == 404
    assert "There is no account nobody" in text(answer)
    for verb in ("grant", "deduct", "refund", "plan", "erase", "revoke"):
        answer = await move(
            operator, verb, "nobody", amount="5", ref="r", plan="free", confirm="yes"
        )
        assert answer.status_code == 404, verb


async def test_an_account_shows_its_usage_beside_its_limits(
    operator: Visitor, scene: Scene
) -> None:
    await scene.plan("free", concurrency=3, per_hour=2)
    await scene.running(account="u1")
    await scene.queued(account="u1")
    page = await operator.get("/accounts/u1")
    shown = text(page)
    assert "1 running, of 3 at once" in shown
    assert "2 submits in the last hour, of 2; the next is possible in" in shown
    assert "jobs?account=u1" in page.text


async def test_a_change_of_plan_applies_at_once(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection
) -> None:
    await scene.plan("free", concurrency=1)
    await scene.plan("pro", default=False, concurrency=9)
    await scene.account("u1")
    done = await move(operator, "plan", "u1", plan="pro")
    assert "Account u1 now has plan pro. Its limits apply at once." in text(done)
    assert await conn.fetchval("select concurrency from penstock.account where name = 'u1'") == 9
    answer = await move(operator, "plan", "u1", plan="gold")
    assert answer.status_code == 404
    assert "There is no plan gold" in text(answer)


async def test_credits_are_granted_once_per_reference(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection
) -> None:
    """A double click sends the same form twice."""
    await scene.account("u1")
    page = await operator.get("/accounts/u1")
    ref = re.search(r'id="grant-ref" name="ref" value="([^"]+)"', page.text)
    assert ref
    assert "data-dirty" in page.text[ref.end() : ref.end() + 40], "a refresh must not change it"
    form = {"amount": "1,000", "reason": "a <b>present</b>", "ref": ref[1]}
    done = await move(operator, "grant", "u1", **form)
    assert "Granted 1,000 credits to u1; the balance is 1,000." in text(done)
    again = await move(operator, "grant", "u1", **form)
    assert "was used before, so no credits were moved" in text(again)
    assert await balance(conn, "u1") == 1_000
    page = await operator.get("/accounts/u1")
    assert "Granted +1,000 1,000" in text(page)
    assert "a <b>present</b>" in text(page)
    assert "<b>present" not in page.text
    other = re.search(r'id="grant-ref" name="ref" value="([^"]+)"', page.text)
    assert other
    assert other[1] != ref[1]


async def test_a_reference_with_another_amount_is_refused_beside_its_field(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection
) -> None:
    await scene.account("u1")
    await move(operator, "grant", "u1", amount="5", ref="r1")
    answer = await move(operator, "grant", "u1", amount="6", ref="r1", reason="typed by me")
    assert answer.status_code == 422
    assert "Reference r1 was used for another amount, 5" in text(answer)
    assert 'id="grant-ref-problem"' in answer.text
    assert 'value="typed by me"' in answer.text
    assert await balance(conn, "u1") == 5


@pytest.mark.parametrize(
    ("fields", "field", "page_text"),
    [
        ({"amount": "", "ref": "r"}, "amount", "The amount must be a whole number from 1"),
        ({"amount": "-5", "ref": "r"}, "amount", "The amount must be a whole number from 1"),
        ({"amount": "1.5", "ref": "r"}, "amount", "The amount must be a whole number from 1"),
        ({"amount": "9" * 30, "ref": "r"}, "amount", "The amount must be a whole number"),
        ({"amount": "5"}, "ref", "The reference must have 1 to 200 characters."),
        ({"amount": "5", "ref": "r" * 201}, "ref", "The reference must have 1 to 200"),
        ({"amount": "5", "ref": "r", "reason": "x" * 501}, "reason", "at most 500 characters"),
    ],
)
async def test_an_invalid_move_is_reported_beside_its_field_and_moves_no_credits(
    operator: Visitor, scene: Scene, fields: dict[str, str], field: str, page_text: str
) -> None:
    await scene.account("u1", 10)
    for verb in ("grant", "deduct"):
        answer = await move(operator, verb, "u1", confirm="yes", **fields)
        assert answer.status_code == 422
        assert "No credits were moved" in text(answer)
        assert page_text in text(answer)
        assert f'id="{verb}-{field}-problem"' in answer.text
    assert await balance(scene.conn, "u1") == 10


async def test_a_deduction_needs_confirmation_and_happens_once(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection
) -> None:
    await scene.account("u/1", 10)
    form = {"amount": "4", "ref": "export-3", "reason": "a print"}
    asked = await move(operator, "deduct", "u/1", **form)
    assert "Deduct 4 credits from u/1?" in text(asked)
    assert "The balance will change from 10 to 6." in text(asked)
    assert await balance(conn, "u/1") == 10
    sent = {
        name: value
        for name, value in re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', asked.text)
        if name != "form_token"
    }
    assert sent == {"account": "u%2F1", "confirm": "yes", **form}
    for page_text in ("Deducted 4 credits from u/1; the balance is 6.", "was used before"):
        done = await operator.post("/account/deduct", sent)
        assert page_text in text(done)
    assert await balance(conn, "u/1") == 6


async def test_a_deduction_above_the_balance_is_refused(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection
) -> None:
    await scene.account("u1", 3)
    answer = await move(operator, "deduct", "u1", amount="4", ref="r1")
    assert answer.status_code == 422
    assert "The account has 3 credits; you cannot deduct more." in text(answer)
    answer = await move(operator, "deduct", "u1", amount="4", ref="r1", confirm="yes")
    assert "Account u1 has 3 credits, and this needs 4." in text(answer)
    assert await balance(conn, "u1") == 3


async def test_a_deduction_is_refunded_once(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection
) -> None:
    await scene.account("u1", 10)
    await move(operator, "deduct", "u1", amount="4", ref="export-3", confirm="yes")
    done = await move(operator, "refund", "u1", ref="export-3", reason="it was empty")
    assert "Refunded 4 credits to u1; the balance is 10." in text(done)
    again = await move(operator, "refund", "u1", ref="export-3")
    assert "was used before" in text(again)
    assert await balance(conn, "u1") == 10
    answer = await move(operator, "refund", "u1", ref="never")
    assert answer.status_code == 422
    assert 'id="refund-ref-problem"' in answer.text
    answer = await move(operator, "refund", "u1")
    assert "The reference must have 1 to 200 characters." in text(answer)


async def test_the_ledger_has_pages_and_links_to_jobs(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection
) -> None:
    await scene.account("u1", 100)
    await scene.queue("line")
    await conn.execute("select penstock.declare_kind('priced', 'line', '{\"price\": 3}')")
    job = await factory.submit(conn, "priced", account="u1")
    for n in range(30):
        await conn.execute("select penstock.grant_credits('u1', 1, null, $1)", f"r{n}")
    page = await operator.get("/accounts/u1")
    assert page.text.count('<tr id="line-') == 15
    older = re.search(r'href="([^"]*)" rel="next"', page.text)
    assert older
    second = await operator.get("/accounts/" + older[1].split("accounts/")[1])
    assert second.text.count('<tr id="line-') == 15
    assert 'rel="first"' in second.text
    older = re.search(r'href="([^"]*)" rel="next"', second.text)
    assert older
    last = await operator.get("/accounts/" + older[1].split("accounts/")[1])
    assert last.text.count('<tr id="line-') == 2
    assert 'rel="next"' not in last.text
    assert f'href="../jobs/{job}"' in last.text
    assert "Reserved for a job -3 97" in text(last)
    assert (await operator.get("/accounts/u1?before=odd")).status_code == 200


async def test_the_ledger_can_be_downloaded_as_csv_oldest_first(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection
) -> None:
    await scene.account("a/b")
    await conn.execute("select penstock.grant_credits('a/b', 5, 'ü \"so\", 1', 'r1')")
    await conn.execute("select penstock.deduct_credits('a/b', 2, '=1+1', e'\\n=r2')")
    answer = await operator.get("/ledger.csv?account=a%2Fb")
    assert answer.headers["content-type"].startswith("text/csv")
    assert "attachment" in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["amount"] for row in rows] == ["5", "-2"]
    assert rows[0]["reason"] == 'ü "so", 1'
    assert rows[1]["reason"] == "'=1+1", "no spreadsheet runs it as a formula"
    assert rows[1]["ref"] == "'\n=r2"
    missing = await operator.get("/ledger.csv?account=nobody")
    assert missing.status_code == 404


async def test_the_last_jobs_of_an_account_are_shown(operator: Visitor, scene: Scene) -> None:
    await scene.account("u2")
    assert "No jobs." in await operator.read("/accounts/u2")
    for _ in range(11):
        await scene.queued(account="u1")
    failed = await scene.failed(account="u1", cls="quota")
    page = await operator.get("/accounts/u1")
    assert page.text.count('<tr id="job-') == 10
    assert f'id="job-{failed}"' in page.text
    assert "the provider's quota or credit is used up" in text(page)


async def test_keys_are_shown_and_revoked_after_confirmation(
    operator: Visitor, site: Site, scene: Scene
) -> None:
    await scene.account("a b")
    page = await operator.read("/accounts/a%20b")
    assert "This account has no keys." in page
    assert "penstock key create --account 'a b'" in page
    customer = await site.account_client("a b")
    assert (await customer.get("/v1/accounts/a%20b")).status_code == 200
    [key] = await site.engine.keys.list(account="a b")
    page = await operator.read("/accounts/a%20b")
    assert key["id"] in page
    assert "never" in page
    asked = await move(operator, "revoke", "a b", key=key["id"])
    assert f"Revoke key {key['id']}?" in text(asked)
    assert (await customer.get("/v1/accounts/a%20b")).status_code == 200
    done = await move(operator, "revoke", "a b", key=key["id"], confirm="yes")
    assert f"Key {key['id']} was revoked." in text(done)
    assert (await customer.get("/v1/accounts/a%20b")).status_code == 401
    assert "Revoke…" not in text(done)


async def test_a_key_of_another_account_is_not_revoked(
    operator: Visitor, site: Site, scene: Scene
) -> None:
    await scene.account("u1")
    await site.make_key("account", "u2")
    [key] = await site.engine.keys.list(account="u2")
    answer = await move(operator, "revoke", "u1", key=key["id"], confirm="yes")
    assert answer.status_code == 404
    [key] = await site.engine.keys.list(account="u2")
    assert key["revoked_at"] is None


@pytest.mark.parametrize("name", ["u1", "<script>", " two\nlines ", "..", "a/b"])
async def test_an_account_is_erased_after_its_name_was_typed(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection, name: str
) -> None:
    await conn.execute("select penstock.create_account($1)", name)
    await conn.execute("select penstock.grant_credits($1, 5, 'welcome')", name)
    await scene.succeeded(account=name)
    await scene.queued(account=name)
    asked = await move(operator, "erase", name)
    page_text = text(asked)
    assert "This cannot be undone." in page_text
    assert "1 waiting job, cancelled and refunded first" in page_text
    assert "its balance of 5 credits" in page_text
    wrong = await move(operator, "erase", name, confirm="yes", typed="other")
    assert wrong.status_code == 409
    assert "That is not the account's name. Nothing was erased." in text(wrong)
    assert await conn.fetchval("select count(*) from penstock.finished") == 1
    done = await move(operator, "erase", name, confirm="yes", typed=" ".join(name.split()))
    page_text = text(done)
    assert done.status_code == 200
    assert "Jobs removed 2" in page_text
    assert re.search(r"erased-\d+: 1 line, 1 of them with a reference or reason", page_text)
    assert "<script>" not in done.text
    assert await conn.fetchval("select count(*) from penstock.finished") == 0
    assert (await operator.get(at(name))).status_code == 404


async def test_erasure_waits_for_running_jobs_and_can_be_repeated(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection
) -> None:
    await scene.queue("line")
    start = await scene.started(account="u1")
    own = await operator.site.account_client("u1")
    assert (await own.get("/v1/jobs")).status_code == 200
    answer = await move(operator, "erase", "u1", confirm="yes", typed="u1")
    assert answer.status_code == 409
    assert (await own.get("/v1/jobs")).status_code == 401, "its key is revoked at once"
    page_text = text(answer)
    assert (
        "Not finished yet: 1 of the account's jobs still run; they were asked to stop" in page_text
    )
    assert 'name="typed" value="u1"' in answer.text
    await scene.end(start, "cancelled")
    done = await move(operator, "erase", "u1", confirm="yes", typed="u1")
    assert "Account u1 is erased" in text(done)
    assert await conn.fetchval("select count(*) from penstock.account where name = 'u1'") == 0


@pytest.mark.parametrize("verb", ["grant", "deduct", "refund", "plan", "erase", "revoke"])
async def test_a_form_without_its_token_changes_no_account(
    operator: Visitor, scene: Scene, verb: str
) -> None:
    await scene.account("u1", 10)
    before = await factory.contents(scene.conn)
    form: dict[str, object] = {
        "account": "u1",
        "amount": "5",
        "ref": "r",
        "plan": "free",
        "typed": "u1",
        "confirm": "yes",
    }
    answer = await operator.send(f"/account/{verb}", form)
    assert answer.status_code == 403
    assert await factory.contents(scene.conn) == before
