"""A visitor of the pages without a browser: keeps cookies, and sends the pages' forms."""

import html
import re
from collections.abc import Mapping
from urllib.parse import urlencode

import httpx

from support.http.site import SECRET, Site

# As browsers request a page.
ACCEPT = "text/html,application/xhtml+xml,*/*;q=0.8"
_TOKEN = re.compile(r'name="form_token" value="([^"]+)"')


class Visitor:
    """`await visitor.sign_in()`, then `get` pages and `post` forms; redirects are not followed."""

    def __init__(self, site: Site, *, address: str = "192.0.2.7", prefix: str = "") -> None:
        self.site = site
        self._prefix = prefix
        self.http = site.client(None, address=address)
        self.http.headers["accept"] = ACCEPT
        self._token: str | None = None

    async def get(self, path: str, *, follow: bool = False, **headers: str) -> httpx.Response:
        return await self.http.get(
            self._prefix + path, headers=_named(headers), follow_redirects=follow
        )

    async def read(self, path: str) -> str:
        """The text of a page that has to exist, without tags and with single blanks."""
        answer = await self.get(path)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:500]}"
        return text(answer)

    async def post(
        self,
        path: str,
        form: Mapping[str, object] | None = None,
        *,
        follow: bool = True,
        **headers: str,
    ) -> httpx.Response:
        """Send a form of a page of this session; lists become repeated fields."""
        return await self.send(
            path, {"form_token": await self.token()} | dict(form or {}), follow=follow, **headers
        )

    async def send(
        self, path: str, form: Mapping[str, object], *, follow: bool = False, **headers: str
    ) -> httpx.Response:
        """Send these fields and no others."""
        return await self.http.post(
            self._prefix + path,
            content=urlencode(form, doseq=True),
            headers={"content-type": "application/x-www-form-urlencoded"} | _named(headers),
            follow_redirects=follow,
        )

    async def token(self) -> str:
        """The form token of this session; every page has it for signing out."""
        if self._token is None:
            self._token = token_of(await self.get("/"))
        return self._token

    async def sign_in(self, key: str = SECRET, *, wanted: str = "") -> httpx.Response:
        """Sign in with the form; return the answer."""
        form = await self.get("/login")
        self._token = None
        return await self.send("/login", {"form_token": token_of(form), "key": key, "next": wanted})


def token_of(answer: httpx.Response) -> str:
    found = _TOKEN.search(answer.text)
    assert found, f"no form at {answer.url}: {answer.status_code} {answer.text[:500]}"
    return html.unescape(found[1])


def text(answer: httpx.Response) -> str:
    """What a person reads on the page, with single blanks."""
    body = re.sub(r"<(script|style)\b.*?</\1>", " ", answer.text, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
