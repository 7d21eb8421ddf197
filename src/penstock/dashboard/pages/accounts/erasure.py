"""Removing a person: asked twice, by name; and the receipt of what was removed."""

from http import HTTPStatus

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response

from penstock.dashboard.frame import action, backend, render
from penstock.dashboard.pages.accounts.account import account_at, account_of
from penstock.errors import Conflict

MISTYPED = "That is not the account's name; nothing was removed."


@action("/account/erase")
async def erase(request: Request, form: FormData) -> Response:
    name = account_of(form)
    if form.get("confirm") != "yes":
        return await _ask(request, name)
    if _plain(str(form.get("typed", ""))) != _plain(name):
        return await _ask(request, name, said=MISTYPED)
    try:
        receipt = await backend(request).patient.erasure.erase(name)
    except Conflict as error:
        if error.code != "account_busy":
            raise
        # What waits is cancelled by now: the same again goes on from here.
        return await _ask(request, name, said=f"Not through yet: {error}", typed=name)
    finally:  # its keys end first, also where some of its jobs still run
        backend(request).auth.forget_account(name)
    return render(request, "accounts/erased.html", name=name, receipt=receipt)


async def _ask(
    request: Request, name: str, *, said: str | None = None, typed: str = ""
) -> Response:
    account = await backend(request).engine.accounts.show(name)
    status = HTTPStatus.OK if said is None else HTTPStatus.CONFLICT
    return render(
        request,
        "accounts/erase.html",
        status=status,
        account=account,
        back=account_at(name),
        said=said,
        typed=typed,
    )


def _plain(name: str) -> str:
    """A field of one line keeps no line ends, and nobody sees blanks at the end."""
    return " ".join(name.split())
