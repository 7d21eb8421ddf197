"""The files of the pages, and `penstock.js` for the pages of others."""

from pathlib import Path

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

# Asked again after that, and answered with 304 while nothing has changed.
_FRESH_SECONDS = 300


class Static(StaticFiles):
    def __init__(self) -> None:
        super().__init__(directory=Path(__file__).with_name("static"))

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = f"public, max-age={_FRESH_SECONDS}"
        # A module of another origin loads only with this; there is nothing secret in it.
        response.headers["Access-Control-Allow-Origin"] = "*"
        response.headers["Cross-Origin-Resource-Policy"] = "cross-origin"
        return response
