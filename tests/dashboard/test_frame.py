"""Checks of every page: session, form tokens, headers. All routes are walked."""

import json
import re
from urllib.parse import quote
from uuid import UUID

import asyncpg
from starlette.applications import Starlette

from browser.scene import Scene
from penstock.security import signed
from support import factory
from support.dashboard.visitor import Visitor, text, token_of
from support.dashboard.walk import OPEN, STREAM, Things
from support.http.site import Site

# --- sessions -----------------------------------------------------------------------------


async def test_every_page_needs_a_session(site: Site, visitor: Visitor, things: Things) -> None:
    walked = 0
    for path in things.pages(site.api):
        answer = await visitor.get(path)
        assert answer.status_code == 303, f"{path}: {answer.status_code}"
        led = answer.request.url.join(answer.headers["location"])
        assert led.path == "/login", path
        assert not answer.text, f"{path} shows something"
        walked += 1
    assert walked >= 6
    for path in (f"/uploads/{UUID(int=7)}", "/ledger.csv?account=u1"):
        assert (await visitor.get(path)).status_code == 303
    # An EventSource would follow the redirect to the form and reconnect for ever.
    assert (await visitor.get(STREAM)).status_code == 204


async def test_every_page_is_shown_to_an_operator(
    site: Site, operator: Visitor, things: Things
) -> None:
    for path in things.pages(site.api):
        answer = await operator.get(path)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:300]}"
        assert re.search(r"<title>[^<]+ · Penstock</title>", answer.text), path
        assert answer.text.count("<h1") == 1, path


async def test_head_requests_are_answered(site: Site, operator: Visitor, things: Things) -> None:
    for path in things.pages(site.api):
        assert (await operator.http.head(path)).status_code == 200, path


# --- forms -----------------------------------------------------------------------------------


async def test_no_form_is_accepted_without_its_token(
    site: Site, operator: Visitor, things: Things, conn: asyncpg.Connection
) -> None:
    """E14: every form of every page, without a token, with wrong ones, with another session's."""
    other = Visitor(site)
    await other.sign_in()
    strangers = await other.token()
    own = await operator.token()
    assert own != strangers
    visit = token_of(await Visitor(site).get("/login"))
    wrong: dict[str, dict[str, object]] = {
        "none": {},
        "an empty one": {"form_token": ""},
        "a wrong one": {"form_token": own[:-2] + ("AA" if own[-2:] != "AA" else "BB")},
        "another session's": {"form_token": strangers},
        "the sign-in form's": {"form_token": visit},
        "two of them": {"form_token": [strangers, strangers]},
    }
    before = await factory.contents(conn)
    for path in ["/login", *things.forms(site.api)]:
        for what, fields in wrong.items():
            answer = await operator.send(path, things.fields | fields)
            assert answer.status_code == 403, f"{path} with {what}: {answer.status_code}"
            assert "nothing was changed" in text(answer)
        if path not in OPEN:
            answer = await operator.send(f"{path}?form_token={own}", things.fields)
            assert answer.status_code == 403, f"{path} with its token in the address"
    assert await factory.contents(conn) == before
    assert (await operator.get("/")).status_code == 200, "still signed in"


async def test_no_form_is_accepted_without_a_session(
    site: Site, operator: Visitor, visitor: Visitor, things: Things, conn: asyncpg.Connection
) -> None:
    token = await operator.token()
    before = await factory.contents(conn)
    for path in things.forms(site.api):
        answer = await visitor.send(path, things.fields | {"form_token": token})
        assert answer.status_code == 303, f"{path}: {answer.status_code}"
        assert answer.request.url.join(answer.headers["location"]).path == "/login"
    assert await factory.contents(conn) == before


async def test_every_form_is_accepted_with_its_token(
    site: Site, things: Things, conn: asyncpg.Connection
) -> None:
    """This proves that the token alone causes the refusals above."""
    effects = 0
    for path in things.forms(site.api):
        operator = Visitor(site)
        await operator.sign_in()
        before = await factory.contents(conn)
        answer = await operator.post(path, things.fields, follow=False)
        assert answer.status_code in {200, 303, 404, 409, 422}, f"{path}: {answer.status_code}"
        effects += before != await factory.contents(conn)
    assert effects >= 5, "the fields of this test have no effect any more"


async def test_no_form_is_accepted_from_another_site(
    site: Site, operator: Visitor, things: Things, conn: asyncpg.Connection
) -> None:
    """Browsers send Sec-Fetch-Site; another site is refused even with a valid token."""
    token = await operator.token()
    before = await factory.contents(conn)
    for path in ["/login", *things.forms(site.api)]:
        for page_text in ("cross-site", "same-site", "nonsense"):
            fields = things.fields | {"form_token": token}
            answer = await operator.send(path, fields, sec_fetch_site=page_text)
            assert answer.status_code == 403, f"{path}: {answer.status_code}"
    assert await factory.contents(conn) == before


async def test_a_get_request_changes_nothing(
    site: Site, operator: Visitor, things: Things, conn: asyncpg.Connection
) -> None:
    """No action can be triggered by a link."""
    before = await factory.contents(conn)
    for path in set(things.forms(site.api)) - set(things.pages(site.api)):
        answer = await operator.get(path)
        assert answer.status_code in {404, 405}, f"{path}: {answer.status_code}"
    assert await factory.contents(conn) == before


# --- headers ---------------------------------------------------------------------------------


async def test_every_page_has_its_headers(
    site: Site, operator: Visitor, visitor: Visitor, things: Things
) -> None:
    paths = [*things.pages(site.api), *OPEN, "/no/such/page"]
    answers = [await who.get(path) for path in paths for who in (operator, visitor)]
    answers += [await operator.send(path, {}) for path in ["/login", *things.forms(site.api)]]
    for answer in answers:
        where = f"{answer.request.method} {answer.url.path}"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy, where
        assert "frame-ancestors 'none'" in policy, where
        assert "form-action 'self'" in policy, where
        assert "base-uri 'none'" in policy, where
        assert "unsafe" not in policy, where
        assert "*" not in policy, where
        assert answer.headers["x-content-type-options"] == "nosniff", where
        assert answer.headers["referrer-policy"] == "same-origin", where
        assert answer.headers["cache-control"] == "no-store", where


async def test_no_page_contains_what_the_policy_forbids(
    site: Site, operator: Visitor, things: Things
) -> None:
    """Otherwise only a person with a browser would notice."""
    for path in things.pages(site.api):
        body = (await operator.get(path)).text
        assert not re.search(r"\sstyle\s*=", body), f"{path} has a style attribute"
        assert not re.search(r"\son[a-z]+\s*=\s*[\"']", body), f"{path} has an inline handler"
        assert not re.search(r"<style\b", body), f"{path} has inline styles"
        assert not re.search(r"<script(?![^>]*\bsrc=)", body), f"{path} has an inline script"
        assert "hx-on" not in body, path


# --- errors -----------------------------------------------------------------


async def test_a_form_that_is_too_large_is_refused_on_a_page(operator: Visitor) -> None:
    answer = await operator.post("/logout", {"much": "x" * 300_000}, follow=False)
    assert answer.status_code == 413
    assert "<h1" in answer.text


async def test_a_malformed_form_is_refused(operator: Visitor) -> None:
    answer = await operator.http.post("/logout", content=b"\xff\xfe\x00")
    assert answer.status_code == 403


async def test_html_from_callers_is_escaped(operator: Visitor, scene: Scene) -> None:
    """E14: callers choose the names of accounts, topics and kinds."""
    await scene.plan()
    evil = "<img src=x onerror=alert(1)>"
    await scene.queued(account=evil, topic=evil, payload={"a": evil})
    for path in ("/", "/jobs", "/accounts"):
        assert evil not in (await operator.get(path)).text, path


async def test_the_openapi_document_has_no_pages(site: Site) -> None:
    assert isinstance(site.api, Starlette)
    document = (await site.anonymous.get("/openapi.json")).json()
    assert not [path for path in document["paths"] if path in {"/", "/jobs", "/login"}]


# --- notices ---------------------------------------------------------------------------------


async def test_a_notice_without_a_valid_signature_is_not_shown(
    operator: Visitor, scene: Scene
) -> None:
    """Another site on the domain can set cookies, and could show messages in our name."""
    await scene.queue("line")
    own = "; ".join(f"{one.name}={one.value}" for one in operator.http.cookies.jar)
    page_text = json.dumps({"text": "Send your key to evil.example", "bad": True, "x": 2**33})
    forged = signed.sign(b"another key", json.loads(page_text))
    for notice in (quote(page_text), forged, "[" * 5_000, "x", '"'):
        answer = await operator.get("/queues", cookie=f"{own}; penstock_notice={notice}")
        assert answer.status_code == 200, notice[:40]
        assert "evil.example" not in answer.text
    assert "Nothing was changed." in text(await operator.post("/queues/line/edit"))
