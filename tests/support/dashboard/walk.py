"""Every page and form of the dashboard, found by its routes: a new one cannot be left out."""

import re
from collections.abc import Iterator

from starlette.applications import Starlette
from starlette.routing import Route

from penstock.http.app import ROUTES

_API = {id(route) for route in ROUTES}
# Pages for everyone: signing in, and redirects that show nothing.
OPEN = {"/login", "/ai-queue"}
# Not pages: a stream of changes, and files to save.
STREAM = "/live"
DOWNLOADS = {"/uploads/{upload_id:uuid}", "/ledger.csv"}
# Pages that take their subject from their query.
_QUERIES = {"/account": "?name={account}"}


def routes(app: Starlette, method: str) -> list[str]:
    """The paths of this method, without those of the API."""
    found = [
        route.path
        for route in app.router.routes
        if isinstance(route, Route)
        and id(route) not in _API
        and method in (route.methods or ())
        and route.path != "/openapi.json"
    ]
    assert found, "the walk finds nothing"
    return found


class Things:
    """One of each thing that a path may name."""

    def __init__(self, **values: object) -> None:
        """By their names in paths: job_id, batch_id, queue, account, plan."""
        self._values = {name: str(value) for name, value in values.items()} | {"part": "payload"}

    def fill(self, path: str) -> str:
        def value(found: re.Match[str]) -> str:
            name = found[1].split(":")[0]
            if name == "name":  # of the thing before it in the path
                name = path.split("/")[1].removesuffix("s")
            assert name in self._values, f"add here what {{{name}}} of {path} may be"
            return self._values[name]

        return re.sub(r"\{([^}]+)\}", value, path)

    @property
    def fields(self) -> dict[str, object]:
        """The fields of all forms: enough for most forms to have an effect."""
        return {
            "account": self._values["account"],
            "job": self._values["job_id"],
            "act": "cancel",
            "confirm": "yes",
            "plan": self._values["plan"],
            "id": "somebody-new",
            "amount": "3",
            "reason": "a test",
            "ref": "a-test",
            "concurrency": "7",
        }

    def pages(self, app: Starlette) -> Iterator[str]:
        """All pages of operators."""
        for path in routes(app, "GET"):
            if path not in OPEN | DOWNLOADS | {STREAM}:
                yield self.fill(path + _QUERIES.get(path, ""))

    def forms(self, app: Starlette) -> Iterator[str]:
        """All paths that take a form of operators."""
        for path in routes(app, "POST"):
            if path not in OPEN:
                yield self.fill(path)
