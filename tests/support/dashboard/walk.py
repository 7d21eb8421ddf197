"""Every page and form of the dashboard, found by its routes: a new one cannot be left out."""

import re
from collections.abc import Iterator

from starlette.applications import Starlette
from starlette.routing import Route

from penstock.http.app import ROUTES

_API = {id(route) for route in ROUTES}
# Seen by anybody: the way in, and what leads on without showing anything.
OPEN = {"/login", "/ai-queue"}
# Not pages: a stream that tells of changes, and files that are saved.
STREAM = "/live"
DOWNLOADS = {"/uploads/{upload_id:uuid}", "/ledger.csv"}
# Pages that take what they show from their query.
_QUERIES = {"/account": "?name={account}"}


def routes(app: Starlette, method: str) -> list[str]:
    """The paths that take this method: all that the API did not bring."""
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
    """One of each that a path may name."""

    def __init__(self, **values: object) -> None:
        """By the names that paths have for them: job_id, batch_id, queue, account, plan."""
        self._values = {name: str(value) for name, value in values.items()} | {"part": "payload"}

    def fill(self, path: str) -> str:
        def value(found: re.Match[str]) -> str:
            name = found[1].split(":")[0]
            if name == "name":  # what of, stands in front of it
                name = path.split("/")[1].removesuffix("s")
            assert name in self._values, f"say here what {{{name}}} of {path} may be"
            return self._values[name]

        return re.sub(r"\{([^}]+)\}", value, path)

    @property
    def fields(self) -> dict[str, object]:
        """What forms ask for, of all of them: enough for most to have an effect."""
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
        """All that an operator looks at."""
        for path in routes(app, "GET"):
            if path not in OPEN | DOWNLOADS | {STREAM}:
                yield self.fill(path + _QUERIES.get(path, ""))

    def forms(self, app: Starlette) -> Iterator[str]:
        """All that takes a form of theirs."""
        for path in routes(app, "POST"):
            if path not in OPEN:
                yield self.fill(path)
