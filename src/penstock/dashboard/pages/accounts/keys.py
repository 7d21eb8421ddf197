"""Keys of an account, revoked by hand; they are made on the command line, which shows them once."""

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response

from penstock.dashboard.frame import action, backend, go, render
from penstock.dashboard.pages.accounts.account import account_at, account_of, brief
from penstock.errors import NotFound


@action("/account/revoke")
async def revoke(request: Request, form: FormData) -> Response:
    name = account_of(form)
    key = str(form.get("key", ""))
    behind = backend(request)
    found = await behind.engine.keys.list(account=name)
    if key not in (one["id"] for one in found):
        raise NotFound(f"account {brief(name)} has no key {key[:40]}", code="unknown_key")
    if form.get("confirm") != "yes":
        return render(
            request,
            "parts/confirm.html",
            section="Accounts",
            heading=f"Revoke key {key}?",
            says=[
                "Whoever uses it is refused within a second, and so are the tokens it made.",
                "There is no way back; a new key has to be made in its place.",
            ],
            target="account/revoke",
            fields={"account": str(form.get("account", "")), "key": key},
            button="Revoke the key",
            back=account_at(name),
        )
    await behind.engine.keys.revoke(key)
    behind.auth.forget(key)
    return go(request, account_at(name), notice=f"Key {key} opens nothing any more.")
