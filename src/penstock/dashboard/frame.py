"""What all pages share: the check of the session, relative paths, headers, templates.

A page registers with `@page`, the target of a form with `@action`. These decorators check the
session and the form token, so no page can forget to. Only sign-in (login.py) and the event stream
(app.py) do without them.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from penstock.dashboard.components import job_words, options, words
from penstock.dashboard.session import Session, remember, sign_in_tokens, signed_in
from penstock.errors import PenstockError, Refused, Unavailable
from penstock.http.backend import Backend
from penstock.http.routing import read_body

__all__ = [  # everything that a page needs from the web framework, in one import
    "ROUTES",
    "FormData",
    "HTTPStatus",
    "Request",
    "Response",
    "Route",
    "action",
    "ask_to_sign_in",
    "backend",
    "came_from_us",
    "confirm",
    "go",
    "here",
    "page",
    "read_form",
    "refusals_as_pages",
    "refuse_form",
    "render",
    "with_headers",
]
ROUTES: list[Route] = []
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        " img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
# A form has a few fields, and one for each selected job of a page.
MOST_FIELDS = 2_000
FORM_BYTES = 262_144
NOTICE = "penstock_notice"
NOTICE_SECONDS = 30
# No path of the dashboard has more slashes: the name of an account may have 200 characters.
_DEEPEST = 300

Page = Callable[..., Awaitable[Response]]
"""A function of the request, with the parameters of the path as keyword arguments."""
Action = Callable[..., Awaitable[Response]]
"""A Page that also takes the fields of the form, as its second argument."""

_templates = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=select_autoescape(["html", "svg"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.globals.update(
    words=words, show=options.show, quote=lambda text: quote(str(text), safe="")
)
_templates.filters.update(words.FILTERS, note=job_words.note, took=job_words.took)


def page(path: str) -> Callable[[Page], Page]:
    """Register a page at this path; people without a session are sent to the sign-in form."""

    def register(show: Page) -> Page:
        ROUTES.append(
            Route(path, with_headers(_guarded(show)), methods=["GET"], name=f"page {path}")
        )
        return show

    return register


def action(path: str) -> Callable[[Action], Action]:
    """Register the target of a form; it needs a session and the form token of that session."""

    def register(act: Action) -> Action:
        async def check_token(request: Request, **_path: object) -> Response:
            form = await read_form(request)
            given = str(form.get("form_token", ""))
            if not came_from_us(request) or not sign_in_tokens(request).fits(
                request.state.session.nonce, given
            ):
                return refuse_form(request)
            return await act(request, form, **request.path_params)

        ROUTES.append(
            Route(
                path, with_headers(_guarded(check_token)), methods=["POST"], name=f"action {path}"
            )
        )
        return act

    return register


def _guarded(show: Page) -> Page:
    async def guarded(request: Request) -> Response:
        request.state.session = await signed_in(request)
        if request.state.session is None:
            return ask_to_sign_in(request)
        return await refusals_as_pages(show)(request, **request.path_params)

    return guarded


def with_headers(show: Page) -> Page:
    """Add the security headers to every answer; answer 503 if the database is unavailable."""

    async def answer(request: Request) -> Response:
        try:
            response = await show(request)
        except Unavailable:
            response = render(
                request, "errors/unavailable.html", status=HTTPStatus.SERVICE_UNAVAILABLE
            )
            response.headers["Retry-After"] = "2"
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    return answer


def refusals_as_pages(show: Page) -> Page:
    """Show a refusal on a page, with what can be done."""

    async def answer(request: Request, **path: object) -> Response:
        try:
            return await show(request, **path)
        except Refused as error:
            return render(request, "errors/refused.html", status=error.status, error=error)

    return answer


async def read_form(request: Request) -> FormData:
    """Read the fields of a URL-encoded form of bounded size."""
    content = await read_body(request, FORM_BYTES)
    try:
        fields = parse_qsl(content.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
        return FormData([*fields])
    except ValueError:
        return FormData()


def came_from_us(request: Request) -> bool:
    """Whether the browser says that a page of this site sent the form.

    Old browsers send no such header; the form token protects them.
    """
    return request.headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")


def refuse_form(request: Request) -> Response:
    error = PenstockError(
        "This form did not come from a valid page of your session, so nothing was changed."
        " Reload the page and try again."
    )
    return render(request, "errors/refused.html", status=HTTPStatus.FORBIDDEN, error=error)


def render(request: Request, template: str, *, status: int = 200, **context: Any) -> Response:
    """Render a template, with the notice that the last action left."""
    session: Session | None = getattr(request.state, "session", None)
    cookie = request.cookies.get(NOTICE)
    notice = sign_in_tokens(request).read_notice(cookie) if cookie else None
    text = _templates.get_template(template).render(
        request=request,
        base=base(request),
        here=here(request),
        session=session,
        form_token=sign_in_tokens(request).form_tokens(session.nonce)[0] if session else "",
        notice=notice,
        **context,
    )
    response = HTMLResponse(text, status_code=status)
    if notice is not None:
        response.delete_cookie(NOTICE)
    return response


def confirm(  # noqa: PLR0913  # one per part of the page
    request: Request,
    *,
    heading: str,
    effects: Sequence[str],
    button: str,
    fields: Mapping[str, str] | None = None,
    section: str,
    target: str,
    back: str,
) -> Response:
    """Show a confirmation page; `effects` says what will happen, one sentence each.

    `section`: the entry in the menu. `target` of the form and the link `back` are paths from the
    dashboard's root.
    """
    return render(
        request,
        "parts/confirm.html",
        heading=heading,
        effects=effects,
        button=button,
        fields=fields or {},
        section=section,
        target=target,
        back=back,
    )


def go(request: Request, path: str, *, notice: str | None = None, bad: bool = False) -> Response:
    """Redirect to another page; `path` is relative to the dashboard's root, as `jobs/…`."""
    response = Response(status_code=HTTPStatus.SEE_OTHER)
    response.headers["Location"] = base(request) + path
    if notice is not None:
        cookie = sign_in_tokens(request).make_notice(notice[:1_000], NOTICE_SECONDS, bad=bad)
        remember(request, response, NOTICE, cookie, NOTICE_SECONDS)
    return response


def base(request: Request) -> str:
    """Return the relative path from this page to the dashboard's root: `../`.

    Relative, so that it works under any path of a proxy. Slashes are counted before decoding, as
    browsers do.
    """
    return "../" * min(_raw_path(request).count("/") - 1, _DEEPEST) or "./"


def here(request: Request) -> str:
    """Return the path of the page from the dashboard's root, with its query."""
    path = _raw_path(request).removeprefix("/")
    query = request.url.query
    return f"{path}?{query}" if query else path


def backend(request: Request) -> Backend:
    behind: Backend = request.app.state.backend
    return behind


def ask_to_sign_in(request: Request) -> Response:
    """Redirect to the sign-in form, which leads back here."""
    after = here(request) if request.method == "GET" else ""
    return go(request, f"login?next={quote(after, safe='')}" if after else "login")


def _raw_path(request: Request) -> str:
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    path = raw.split(b"?")[0].decode("latin-1")
    return path.removeprefix(request.scope.get("root_path", ""))
