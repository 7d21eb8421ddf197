"""Sessions: sign-in by key or one-time link, redirects, and how sessions end (G14 for pages)."""

import re
import time
from urllib.parse import quote, unquote

import pytest

from penstock.dashboard import session
from penstock.dashboard.session import SignInTokens
from penstock.engine.accounts.keys import parts
from penstock.http.auth import caller
from penstock.security.roots import Roots
from support.dashboard.visitor import Visitor, text, token_of
from support.http.site import SECRET, Site
from support.signing import NEXT_SECRET
from support.waiting import eventually

OURS = SignInTokens(Roots((SECRET,)))


async def is_in(visitor: Visitor) -> bool:
    """Whether the overview is shown; otherwise the sign-in form must be."""
    answer = await visitor.get("/")
    if answer.status_code == 200:
        return True
    assert answer.status_code == 303, answer.text[:500]
    assert answer.headers["location"] == "./login"
    return False


def bring(visitor: Visitor, cookie: str) -> None:
    """Replace the visitor's session cookie."""
    visitor.http.cookies.set(OURS.cookie, cookie, domain="penstock.test")


# --- signing in ------------------------------------------------------------------------------


async def test_the_operators_secret_signs_in(visitor: Visitor) -> None:
    assert not await is_in(visitor)
    answer = await visitor.sign_in(SECRET)
    assert (answer.status_code, answer.headers["location"]) == (303, "./")
    assert await is_in(visitor)


async def test_an_admin_key_signs_in(site: Site, visitor: Visitor) -> None:
    await visitor.sign_in(f"  {await site.make_key('admin')}\n")  # with blanks, as pasted
    assert await is_in(visitor)


@pytest.mark.parametrize(
    "given", ["", "nonsense", SECRET + "x", "ps_admin_aaaaaaaaaaaa_" + "a" * 51, "x" * 5_000, "ä\0"]
)
async def test_a_wrong_key_is_refused_with_a_sentence(visitor: Visitor, given: str) -> None:
    answer = await visitor.sign_in(given)
    assert answer.status_code == 401
    assert "This key is unknown, revoked or expired." in text(answer)
    assert not given or given not in answer.text, "it is not repeated on the page"
    assert not await is_in(visitor)


async def test_wrong_keys_count_together_with_those_of_the_api(
    site: Site, visitor: Visitor
) -> None:
    for _ in range(caller.FAILURES // 2):
        assert (await site.client("nonsense").get("/v1/jobs")).status_code == 401
    form = token_of(await visitor.get("/login"))
    for _ in range(caller.FAILURES - caller.FAILURES // 2):
        wrong = await visitor.send("/login", {"form_token": form, "key": "nonsense"})
        assert wrong.status_code == 401
    refused = await visitor.send("/login", {"form_token": form, "key": "nonsense"})
    assert refused.status_code == 429
    assert "Too many wrong keys" in text(refused)
    elsewhere = Visitor(site, address="192.0.2.8")
    assert (await elsewhere.sign_in("nonsense")).status_code == 401


@pytest.mark.parametrize("kind", ["app", "account", "process"])
async def test_keys_of_other_kinds_do_not_sign_in(site: Site, visitor: Visitor, kind: str) -> None:
    key = await site.make_key(kind, "u1" if kind == "account" else None)
    answer = await visitor.sign_in(key)
    assert answer.status_code == 403
    assert f"This key is of kind {kind}" in text(answer)
    assert "penstock key create --kind admin" in text(answer)
    assert not await is_in(visitor)


async def test_a_browser_token_does_not_sign_in(site: Site, visitor: Visitor) -> None:
    await site.make_account("u1")
    made = await site.admin.post("/v1/tokens", json={"account": "u1"})
    token = made.json()["token"]
    assert (await visitor.sign_in(token)).status_code == 403
    assert not await is_in(visitor)
    assert (await visitor.get(f"/jobs?token={token}")).status_code == 303


async def test_bearer_keys_open_no_pages(visitor: Visitor) -> None:
    """A page that accepts a header could be read by a site that makes the browser send one."""
    answer = await visitor.get("/jobs", authorization=f"Bearer {SECRET}")
    assert answer.status_code == 303


async def test_a_link_signs_in_once(site: Site, visitor: Visitor) -> None:
    code = OURS.make_link()
    answer = await visitor.get(f"/login?code={code}")
    assert (answer.status_code, answer.headers["location"]) == (303, "./")
    assert await is_in(visitor)
    second = Visitor(site)
    refused = await second.get(f"/login?code={code}")
    assert refused.status_code == 401
    assert "This link was already used or has expired. Sign in with a key." in text(refused)
    assert not await is_in(second)


async def test_a_link_expires(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "LINK_SECONDS", -1)
    refused = await visitor.get(f"/login?code={OURS.make_link()}")
    assert refused.status_code == 401
    assert not await is_in(visitor)


async def test_a_link_is_used_up_even_by_a_signed_in_operator(
    site: Site, operator: Visitor
) -> None:
    """It is now in the history of a browser."""
    code = OURS.make_link()
    assert (await operator.get(f"/login?code={code}")).status_code == 303
    assert (await Visitor(site).get(f"/login?code={code}")).status_code == 401


async def test_a_link_is_invalid_in_another_process(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process has the same secret, but does not know which links were used."""
    code = OURS.make_link()
    monkeypatch.setattr(session, "_PROCESS", "the next one")
    assert (await visitor.get(f"/login?code={code}")).status_code == 401
    assert not await is_in(visitor)


@pytest.mark.parametrize("code", ["", ".", "a.b", "a.b.c", "ä.ä", "=.=", "e30.e30", "%00"])
async def test_a_forged_link_is_refused(visitor: Visitor, code: str) -> None:
    assert (await visitor.get(f"/login?code={quote(code)}")).status_code == 401
    assert not await is_in(visitor)


async def test_a_session_cookie_is_no_link_and_a_link_no_cookie(visitor: Visitor) -> None:
    _, cookie = OURS.open(None)
    assert (await visitor.get(f"/login?code={cookie}")).status_code == 401
    bring(visitor, OURS.make_link())
    assert not await is_in(visitor)


# --- redirects ----------------------------------------------------------------------


async def test_the_requested_page_is_shown_after_sign_in(visitor: Visitor) -> None:
    asked = await visitor.get("/jobs?status=failed&account=u%201")
    assert asked.status_code == 303
    form = await visitor.get(asked.headers["location"].removeprefix("."))
    wanted = re.search(r'name="next" value="([^"]*)"', form.text)
    assert wanted
    led = await visitor.sign_in(wanted=wanted[1].replace("&amp;", "&"))
    assert led.headers["location"] == "./jobs?status=failed&account=u%201"


@pytest.mark.parametrize(
    "wanted",
    [
        "//evil.example",
        "///evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "https://evil.example",
        "https:evil.example",
        "javascript:alert(1)",
        "../../evil",
        "./../evil",
        "jobs/../../evil",
        "%2e%2E/.%2e/evil",
        "jobs\r\nSet-Cookie: a=b",
        "\tjavascript:alert(1)",
        "?next=//evil.example",
    ],
)
async def test_sign_in_redirects_to_dashboard_pages_only(
    site: Site, visitor: Visitor, wanted: str
) -> None:
    answers = [
        await visitor.sign_in(wanted=wanted),  # by the form
        await visitor.get(f"/login?next={quote(wanted)}"),  # by a signed-in operator
        await Visitor(site).get(f"/login?code={OURS.make_link()}&next={quote(wanted)}"),
    ]
    for answer in answers:
        assert answer.status_code == 303
        led = answer.request.url.join(answer.headers["location"])
        assert led.host == "penstock.test", f"{wanted!r} leads to {led}"
        assert led.scheme == "http"
        assert ".." not in unquote(answer.headers["location"])
        assert "a" not in answer.cookies


# --- cookies and keys --------------------------------------------------------------------


async def test_the_cookie_is_hidden_from_scripts_and_other_sites(visitor: Visitor) -> None:
    answer = await visitor.sign_in()
    [page_text] = [one for one in answer.headers.get_list("set-cookie") if OURS.cookie in one]
    assert "httponly" in page_text.lower()
    assert "samesite=lax" in page_text.lower()
    assert "secure" not in page_text.lower(), "it would be lost over plain http"


async def test_over_https_the_cookie_is_secure(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a proxy that terminates TLS, the request itself comes over http."""
    monkeypatch.setenv("PENSTOCK_PUBLIC_URL", "https://queue.example.org")
    assert "Open this installation at https://queue.example.org" in await visitor.read("/login")
    answer = await visitor.get(f"/login?code={OURS.make_link()}")
    [page_text] = [one for one in answer.headers.get_list("set-cookie") if OURS.cookie in one]
    assert "secure" in page_text.lower()


async def test_a_forged_cookie_is_refused(visitor: Visitor) -> None:
    _, cookie = OURS.open(None)
    body, mac = cookie.split(".")
    forged = {
        "another secret": SignInTokens(Roots(("another-secret-of-16",))).open(None)[1],
        "a changed body": f"{body[:-2]}AA.{mac}",
        "a changed mac": f"{body}.{mac[:-2]}{'AA' if mac[-2:] != 'AA' else 'BB'}",
        "no mac": body,
        "an empty mac": f"{body}.",
        "nonsense": "nonsense",
        "three parts": f"{cookie}.x",
    }
    for what, one in forged.items():
        bring(visitor, one)
        assert not await is_in(visitor), what
    bring(visitor, cookie)
    assert await is_in(visitor)


async def test_a_session_expires(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = time.time()
    await visitor.sign_in()
    monkeypatch.setattr(time, "time", lambda: begun + session.SESSION_SECONDS - 60)
    assert await is_in(visitor)
    monkeypatch.setattr(time, "time", lambda: begun + session.SESSION_SECONDS + 2)
    assert not await is_in(visitor)


async def test_the_old_secret_works_during_a_rotation(
    site: Site, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rotation ends no sessions; removing the old secret does."""
    monkeypatch.setenv("PENSTOCK_SECRET", f"{NEXT_SECRET},{SECRET}")
    await visitor.sign_in(SECRET)
    assert await is_in(visitor)
    bring(visitor, OURS.open(None)[1])
    assert await is_in(visitor)
    assert site


async def test_a_revoked_key_ends_its_sessions(site: Site, visitor: Visitor) -> None:
    key = await site.make_key("admin")
    await visitor.sign_in(key)
    assert await is_in(visitor)
    found = parts(key)
    assert found
    await site.engine.keys.revoke(found[0])  # as another process does it

    async def out() -> bool:
        return not await is_in(visitor)

    await eventually(out, "the revoked key opens no page", seconds=caller.FRESH_SECONDS + 2)
    refused = await visitor.send("/logout", {})
    assert refused.headers["location"] == "./login"


async def test_sign_out_ends_the_session(visitor: Visitor) -> None:
    await visitor.sign_in()
    answer = await visitor.post("/logout")
    assert "You are signed out." in text(answer)
    assert not await is_in(visitor)
    assert "You are signed out." not in text(await visitor.get("/login")), "shown once"


async def test_another_site_cannot_sign_somebody_in(visitor: Visitor) -> None:
    """Otherwise a person would unknowingly work in somebody else's session."""
    form = token_of(await visitor.get("/login"))
    for fields in ({}, {"form_token": ""}, {"form_token": form[::-1]}):
        refused = await visitor.send("/login", fields | {"key": SECRET})
        assert refused.status_code == 403, fields
    stranger = Visitor(visitor.site)
    assert (await stranger.send("/login", {"form_token": form, "key": SECRET})).status_code == 403
    assert not await is_in(visitor)


async def test_a_visitor_learns_no_token_of_a_session(operator: Visitor, visitor: Visitor) -> None:
    """A visitor can choose the visit cookie, and its form contains a token made from it."""
    found = OURS.read(operator.http.cookies[OURS.cookie])
    assert found
    form = await visitor.get("/login", cookie=f"penstock_visit={found.nonce}")
    refused = await operator.send("/logout", {"form_token": token_of(form)})
    assert refused.status_code == 403


@pytest.mark.parametrize("visit", ["x", "x" * 4_000, '"\\015\\012Set-Cookie: a=b"', "a.b", ";"])
async def test_an_invalid_visit_cookie_is_replaced(visitor: Visitor, visit: str) -> None:
    form = await visitor.get("/login", cookie=f"penstock_visit={visit}")
    made = form.cookies["penstock_visit"]
    assert re.fullmatch(r"[\w-]{22}", made)
    wrong = await visitor.send("/login", {"form_token": token_of(form), "key": "nonsense"})
    assert wrong.status_code == 401, "the form is accepted"
