"""Middleware: a person who opens an unknown address gets a page instead of JSON.

Scripts still get JSON: they do not accept HTML, or they call an API.
"""

from collections.abc import Callable
from html import escape
from string import Template

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_APIS = ("/api/", "/v1/", "/penstock/v1/")
_MISSING = (404, 405)
_PAGE = Template("""<!doctype html>
<html lang="$lang">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<link rel="stylesheet" href="$style">
</head>
<body>
<main class="narrow">
  <h1>$title</h1>
  <p>$sentence</p>
  <p><a href="/">$link</a></p>
</main>
</body>
</html>
""")


class Missing:
    """Answers unknown addresses of the app, or of its Penstock, with a page in the app's style."""

    def __init__(  # the texts of the page
        self,
        app: ASGIApp,
        *,
        style: str,
        link: str,
        title: str = "Page not found",
        sentence: str = "The address may be mistyped, or the page was removed.",
        lang: str = "en-GB",
        keeps: Callable[[str], bool] = lambda _path: True,
    ) -> None:
        """`keeps`: whether the app's own HTML answer at a path is left as it is."""
        self._app = app
        self._keeps = keeps
        words = {"style": style, "link": link, "title": title, "sentence": sentence, "lang": lang}
        self._page = _PAGE.substitute({name: escape(text) for name, text in words.items()}).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _is_a_person(scope):
            await self._app(scope, receive, send)
            return
        replaced = False

        async def send_page(message: Message) -> None:
            nonlocal replaced
            if message["type"] == "http.response.start" and message["status"] in _MISSING:
                is_page = b"text/html" in dict(message["headers"]).get(b"content-type", b"")
                replaced = not (is_page and self._keeps(scope["path"]))
                if replaced:
                    message = {**message, "headers": self._headers()}
            elif replaced:
                if message.get("more_body"):
                    return
                message = {"type": "http.response.body", "body": self._page}
            await send(message)

        await self._app(scope, receive, send_page)

    def _headers(self) -> list[tuple[bytes, bytes]]:
        return [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"content-length", str(len(self._page)).encode()),
        ]


def _is_a_person(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] != "GET" or scope["path"].startswith(_APIS):
        return False
    return b"text/html" in dict(scope["headers"]).get(b"accept", b"")
