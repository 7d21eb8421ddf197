"""Signing in and out: with the operator's secret, an admin key, or the link printed once."""

from urllib.parse import quote, unquote

from penstock.dashboard.frame import (
    ROUTES,
    FormData,
    HTTPStatus,
    Request,
    Response,
    Route,
    action,
    backend,
    came_from_us,
    go,
    read_form,
    refusals_as_pages,
    refuse_form,
    render,
    with_headers,
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

# Before anybody is signed in a form has a token all the same: no other site signs people in here.
_VISIT = "penstock_visit"
_VISIT_SECONDS = 3_600
USED = "This link was used already, or is too old. Sign in with a key."
WRONG = "This key is not known, is revoked, or its time is over."
NOT_OPERATORS = (
    "This key is of kind {kind}; the dashboard shows everybody's jobs, so it takes a key of kind "
    "admin: penstock key create --kind admin"
)


@refusals_as_pages
async def _ask(request: Request) -> Response:
    """The form; or straight in, by a link that signs in once."""
    wanted = _next(request.query_params.get("next", ""))
    code = request.query_params.get("code")
    # Also by who needs none: it was opened, and stays in the history of a browser.
    is_good = code is not None and doors(request).use_link(code)
    if await signed_in(request) is not None:
        return go(request, wanted)
    if is_good:
        return await _enter(request, None, wanted)
    return _form(request, wanted) if code is None else _form(request, wanted, problem=USED)


@refusals_as_pages
async def _sign_in(request: Request) -> Response:
    form = await read_form(request)
    wanted = _next(str(form.get("next", "")))
    fits = fits_visit(request.cookies.get(_VISIT, ""), str(form.get("form_token", "")))
    if not fits or not came_from_us(request):
        return refuse_form(request)
    key = str(form.get("key", "")).strip()
    caller = await backend(request).auth.identify(request, key)  # refuses who tries too often
    if caller is None:
        return _form(request, wanted, problem=WRONG)
    if caller.who != "admin":
        problem = NOT_OPERATORS.format(kind=caller.who)
        return _form(request, wanted, problem=problem, status=HTTPStatus.FORBIDDEN)
    return await _enter(request, caller.key, wanted)


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


def _form(
    request: Request,
    wanted: str,
    *,
    problem: str | None = None,
    status: int = HTTPStatus.UNAUTHORIZED,
) -> Response:
    """`status`: of the answer where there is a problem."""
    token = visit_token(request.cookies.get(_VISIT, ""))
    public = backend(request).settings.public_url or ""
    # Cookies are for https then: a browser that came another way would not keep them.
    plainly = request.url.scheme == "http" and public.startswith("https:")
    response = render(
        request,
        "login.html",
        status=HTTPStatus.OK if problem is None else status,
        wanted=wanted,
        problem=problem,
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


ROUTES += [
    Route("/login", with_headers(_ask), methods=["GET"], name="login"),
    Route("/login", with_headers(_sign_in), methods=["POST"], name="sign in"),
]
