"""Signing in and out: with the operator's secret, an admin key, or the link printed once."""

from http import HTTPStatus
from urllib.parse import quote, unquote

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.dashboard.frame import (
    ROUTES,
    action,
    backend,
    came_from_us,
    go,
    outside,
    read_form,
    refuse_form,
    render,
    told,
)
from penstock.dashboard.session import (
    SESSION_SECONDS,
    doors,
    fits_visit,
    remember,
    sign_out,
    signed_in,
    visit_token,
)
from penstock.http.auth.caller import Auth

# Before anybody is signed in a form has a token all the same: no other site signs people in here.
_VISIT = "penstock_visit"
_VISIT_SECONDS = 3_600
USED = "This link was used already, or is too old. Sign in with a key."
WRONG = "This key is not known, is revoked, or its time is over."
NOT_OPERATORS = (
    "This key is of kind {kind}; the dashboard shows everybody's jobs, so it takes a key of kind "
    "admin: penstock key create --kind admin"
)


async def ask(request: Request) -> Response:
    """The form; or straight in, by a link that signs in once."""
    wanted = _next(request.query_params.get("next", ""))
    code = request.query_params.get("code")
    # Also by who needs none: it was opened, and stays in the history of a browser.
    is_good = code is not None and doors(request).use_link(code)
    if await signed_in(request) is not None:
        return go(request, wanted)
    if is_good:
        return await _enter(request, None, wanted)
    if code is not None:
        return _form(request, wanted, said=USED, status=HTTPStatus.UNAUTHORIZED)
    return _form(request, wanted)


async def enter(request: Request) -> Response:
    form = await read_form(request)
    wanted = _next(str(form.get("next", "")))
    visit = request.cookies.get(_VISIT, "")
    fits = fits_visit(visit, str(form.get("form_token", "")))
    if not fits or not came_from_us(request):
        return await refuse_form(request)
    given = str(form.get("key", "")).strip()
    auth: Auth = backend(request).auth
    found = await auth.identify(request, given)  # refuses those who try too often
    if found is None:
        return _form(request, wanted, said=WRONG, status=HTTPStatus.UNAUTHORIZED)
    if found.who != "admin":
        said = NOT_OPERATORS.format(kind=found.who)
        return _form(request, wanted, said=said, status=HTTPStatus.FORBIDDEN)
    return await _enter(request, found.key, wanted)


@action("/logout")
async def leave(request: Request, _form: FormData) -> Response:
    await sign_out(request)
    response = go(request, "login", notice="You are signed out.")
    response.delete_cookie(doors(request).cookie)
    return response


async def _enter(request: Request, key: str | None, wanted: str) -> Response:
    await sign_out(request)  # of the session before, whose cookie is replaced
    _, cookie = doors(request).open(key)
    response = go(request, wanted)
    remember(request, response, doors(request).cookie, cookie, SESSION_SECONDS)
    return response


def _form(request: Request, wanted: str, *, said: str | None = None, status: int = 200) -> Response:
    token = visit_token(request.cookies.get(_VISIT, ""))
    public = backend(request).settings.public_url or ""
    # Cookies are for https then: a browser that came another way would not keep them.
    plainly = request.url.scheme == "http" and public.startswith("https:")
    response = render(
        request,
        "login.html",
        status=status,
        wanted=wanted,
        said=said,
        visit_token=token,
        public=public if plainly else None,
    )
    remember(request, response, _VISIT, token, _VISIT_SECONDS)
    return response


def _next(wanted: str) -> str:
    """A page of ours, counted from the root; whatever else somebody wrote there is not followed."""
    path, mark, query = wanted.partition("?")
    # Unquoted: to a browser %2e%2e is a way up, too.
    parts = [unquote(part) for part in path.split("/")]
    sane = all(part not in ("", ".", "..") for part in parts) and "\\" not in path
    if not sane or ":" in path.split("/")[0]:
        return ""
    return quote(path, safe="/%") + (mark + quote(query, safe="=&%+") if query else "")


async def _told_ask(request: Request) -> Response:
    return await told(request, ask(request))


async def _told_enter(request: Request) -> Response:
    return await told(request, enter(request))


ROUTES.append(Route("/login", outside(_told_ask), methods=["GET"], name="login"))
ROUTES.append(Route("/login", outside(_told_enter), methods=["POST"], name="sign in"))
