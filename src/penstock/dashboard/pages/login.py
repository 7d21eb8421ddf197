"""Sign-in with the operator's secret, an admin key or a one-time link; sign-out."""

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
    fits_visit,
    remember,
    sign_in_tokens,
    sign_out,
    signed_in,
    visit_token,
)

# The sign-in form has a token, too, so that no other site can sign people in.
_VISIT = "penstock_visit"
_VISIT_SECONDS = 3_600
USED = "This link was already used or has expired. Sign in with a key."
WRONG = "This key is unknown, revoked or expired."
NOT_OPERATORS = (
    "This key is of kind {kind}. The dashboard shows the jobs of all accounts, so it needs a key "
    "of kind admin: penstock key create --kind admin"
)


@refusals_as_pages
async def _ask(request: Request) -> Response:
    """Show the sign-in form, or sign in at once by a one-time link."""
    wanted = _next(request.query_params.get("next", ""))
    code = request.query_params.get("code")
    # Used up even if there is a session already: the link stays in the history of a browser.
    is_good = code is not None and sign_in_tokens(request).use_link(code)
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
    caller = await backend(request).auth.identify(request, key)  # refuses too many tries
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
    response.delete_cookie(sign_in_tokens(request).cookie)
    return response


async def _enter(request: Request, key: str | None, wanted: str) -> Response:
    await sign_out(request)  # ends the previous session, whose cookie is replaced
    _, cookie = sign_in_tokens(request).open(key)
    response = go(request, wanted)
    remember(request, response, sign_in_tokens(request).cookie, cookie, SESSION_SECONDS)
    return response


def _form(
    request: Request,
    wanted: str,
    *,
    problem: str | None = None,
    status: int = HTTPStatus.UNAUTHORIZED,
) -> Response:
    """Render the sign-in form; `status` is that of the answer if there is a problem."""
    token = visit_token(request.cookies.get(_VISIT, ""))
    public = backend(request).settings.public_url or ""
    # Cookies are then for https only: a browser that came over http would not keep them.
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
    """Return the path of a dashboard page, or "" for anything else: no redirect leaves the site."""
    path, mark, query = wanted.partition("?")
    # Unquoted, because a browser reads %2e%2e as "..", too.
    parts = [unquote(part) for part in path.split("/")]
    sane = all(part not in ("", ".", "..") for part in parts) and "\\" not in path
    if not sane or ":" in path.split("/")[0]:
        return ""
    return quote(path, safe="/%") + (mark + quote(query, safe="=&%+") if query else "")


ROUTES += [
    Route("/login", with_headers(_ask), methods=["GET"], name="login"),
    Route("/login", with_headers(_sign_in), methods=["POST"], name="sign in"),
]
