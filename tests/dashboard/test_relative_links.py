"""Paths of the dashboard: under any prefix, its static files, and pages that do not exist."""

import re

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from support.dashboard.visitor import Visitor, text
from support.dashboard.walk import Things
from support.http.site import Site, problem


async def test_it_works_under_a_path_of_another_app(site: Site, things: Things) -> None:
    """An app mounts the dashboard under /tools/queue."""
    await _walk_below(site, Starlette(routes=[Mount("/tools/queue", site.api)]), things)


async def test_it_works_behind_a_proxy_that_strips_its_path(site: Site, things: Things) -> None:
    """The proxy does not report the prefix that it removes."""

    async def proxy(scope: dict[str, object], receive: object, send: object) -> None:
        path = str(scope["path"])
        assert path.startswith("/tools/queue"), f"{path} left the dashboard"
        inside = path.removeprefix("/tools/queue")
        below = dict(scope, path=inside, raw_path=inside.encode())
        await site.api(below, receive, send)  # type: ignore[arg-type]

    await _walk_below(site, proxy, things)


async def _walk_below(site: Site, app: object, things: Things) -> None:
    """Sign in, then check that all links, forms and files of all pages are under the prefix."""
    await site.start()
    transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
    walker = Visitor(site, prefix="/tools/queue")
    walker.http = httpx.AsyncClient(
        transport=transport, base_url="http://penstock.test", headers={"accept": "text/html"}
    )
    async with walker.http:
        asked = await walker.get("/queues")
        assert asked.status_code == 303
        assert asked.url.join(asked.headers["location"]).path == "/tools/queue/login"
        answer = await walker.sign_in(wanted="queues")
        assert answer.url.join(answer.headers["location"]).path == "/tools/queue/queues"
        seen: set[str] = set()
        for path in things.pages(site.api):
            page = await walker.get(path)
            assert page.status_code == 200, path
            for link in re.findall(r'\b(?:href|src|action|hx-get|data-live)="([^"]*)"', page.text):
                led = page.url.join(link.replace("&amp;", "&"))
                if led.host == "penstock.test" and not link.startswith("#"):
                    assert led.path.startswith("/tools/queue/"), f"{path} leads to {link}"
                    seen.add(led.path)
        for path in sorted(seen):
            if path.startswith("/tools/queue/static/"):
                assert (await walker.http.get(path)).status_code == 200, path
        assert any(path.startswith("/tools/queue/static/") for path in seen)
        out = await walker.post("/logout")
        assert out.url.path == "/tools/queue/login"


async def test_the_old_name_of_the_jobs_page_redirects_to_it(operator: Visitor) -> None:
    answer = await operator.get("/ai-queue", follow=True)
    assert answer.url.path == "/jobs"
    assert answer.status_code == 200


async def test_an_unknown_path_shows_a_page_to_people(operator: Visitor) -> None:
    for path in ("/nothing/here", "/jobs/", "/static"):
        answer = await operator.get(path)
        assert answer.status_code == 404, path
        assert answer.headers["content-type"].startswith("text/html")
        assert "Page not found" in text(answer)


async def test_an_unknown_path_returns_a_problem_to_programs(site: Site, operator: Visitor) -> None:
    problem(await operator.get("/v1/nothing"), 404, "not_found")
    problem(await site.anonymous.get("/nothing/here"), 404, "not_found")
    problem(await operator.get("/static/nothing.js"), 404, "not_found")


async def test_an_unknown_path_returns_a_problem_to_programs_under_a_prefix_too(site: Site) -> None:
    client = site.client(None, prefix="/tools/queue")
    for path in ("/v1/nothing", "/static/nothing.js"):
        problem(await client.get(path, headers={"accept": "text/html"}), 404, "not_found")


async def test_a_deep_address_makes_no_large_page(visitor: Visitor) -> None:
    """Every link of the page repeats the relative path to the root."""
    answer = await visitor.get("/a" + "/" * 60_000)
    assert answer.status_code == 404
    assert len(answer.content) < 20_000


async def test_a_404_page_shows_no_menu_to_visitors(visitor: Visitor) -> None:
    answer = await visitor.get("/nothing/here")
    assert answer.status_code == 404
    assert "Sign out" not in text(answer)


# --- files -----------------------------------------------------------------------------------


async def test_static_files_are_cached_and_revalidated(visitor: Visitor) -> None:
    answer = await visitor.get("/static/dashboard.css")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/css")
    assert answer.headers["cache-control"] == "public, max-age=300"
    again = await visitor.get("/static/dashboard.css", if_none_match=answer.headers["etag"])
    assert (again.status_code, again.content) == (304, b"")


async def test_pages_of_other_origins_may_load_the_component(visitor: Visitor) -> None:
    answer = await visitor.get("/static/penstock.js", origin="https://app.example.org")
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["cross-origin-resource-policy"] == "cross-origin"
    assert "javascript" in answer.headers["content-type"]
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "../frame.py",
        "%2e%2e/frame.py",
        "..%2fframe.py",
        "vendor/../../frame.py",
        "%2e%2e%2f%2e%2e%2fsettings.py",
        "/etc/passwd",
        "..\\frame.py",
        "vendor",
        "%00",
    ],
)
async def test_only_static_files_are_served(site: Site, path: str) -> None:
    """The raw path is sent: a client that normalizes it would hide the traversal."""
    client = site.client(None)
    url = httpx.URL("http://penstock.test/static/").copy_with(raw_path=f"/static/{path}".encode())
    answer = await client.get(url)
    assert answer.status_code == 404, f"{url}: {answer.text[:200]}"
