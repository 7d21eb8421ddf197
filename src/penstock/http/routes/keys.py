"""Keys and browsers' short tokens over HTTP: create, list, rotate, revoke."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import ConfigDict, Field

from penstock.engine.encoding.encode import refuse_nul
from penstock.errors import Invalid
from penstock.http.auth import tokens
from penstock.http.auth.caller import Operator, Submitter, unknown_account
from penstock.http.backend import Backend
from penstock.http.routing import Body, Routes, Strict
from penstock.http.schemas import answers, cursors
from penstock.http.schemas.cursors import Cursor, Limit

routes = Routes("keys")

OVERLAP_SECONDS = 86_400


class CreateKey(Strict):
    """A key: `admin` for operators, `app` for a backend, `account` for one customer, `process`."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"kind": "account", "account": "u1", "name": "laptop"}]}
    )

    kind: Literal["admin", "process", "app", "account"]
    account: str | None = None
    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    expires_seconds: Annotated[float, Field(gt=0, le=3650 * 86_400)] | None = None


class RotateKey(Strict):
    """How long the old key stays valid beside the new one."""

    overlap_seconds: Annotated[float, Field(ge=0, le=90 * 86_400)] = OVERLAP_SECONDS


@routes.add(
    "POST",
    "/v1/keys",
    status=201,
    summary="Create a key",
    answer=answers.NewKey,
    about="The key, shown this once",
    refuses=(404,),
)
async def create(
    _: Operator, backend: Backend, form: Annotated[CreateKey, Body()]
) -> dict[str, Any]:
    expires = None if form.expires_seconds is None else timedelta(seconds=form.expires_seconds)
    key, row = await backend.engine.keys.create(
        form.kind, account=form.account, name=form.name, expires=expires
    )
    return {"key": key, **row}


@routes.add(
    "GET",
    "/v1/keys",
    summary="List keys, newest first",
    answer=answers.KeyPage,
    about="Without their secrets",
    refuses=(404,),
)
async def page(
    _: Operator,
    backend: Backend,
    account: str | None = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> dict[str, Any]:
    keys = await backend.engine.keys.list(
        account=account, limit=limit, after=cursors.read_text(cursor)
    )
    return cursors.page(keys, limit)


@routes.add(
    "POST",
    "/v1/keys/{key_id}/revoke",
    summary="Revoke a key",
    answer=answers.Key,
    about="The key, which is not accepted any more",
)
async def revoke(key_id: str, _: Operator, backend: Backend) -> dict[str, Any]:
    """All servers refuse it, and the tokens it made, within a second. Safe to repeat."""
    revoked = await backend.engine.keys.revoke(key_id)
    backend.auth.forget(key_id)
    return revoked


@routes.add(
    "POST",
    "/v1/keys/{key_id}/rotate",
    status=201,
    summary="Rotate a key",
    answer=answers.NewKey,
    about="The new key, shown this once",
    refuses=(409,),
)
async def rotate(
    key_id: str,
    _: Operator,
    backend: Backend,
    form: Annotated[RotateKey, Body(empty=True)],
) -> dict[str, Any]:
    """Replace a key. The old one stays valid for `overlap_seconds`, by default a day."""
    key, row = await backend.engine.keys.rotate(
        key_id, overlap=timedelta(seconds=form.overlap_seconds)
    )
    backend.auth.forget(key_id)
    return {"key": key, **row}


DEFAULT_SECONDS = 3_600


class CreateToken(Strict):
    """What a browser may see: one account, one job, or the jobs of one topic."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"account": "u1", "ttl_seconds": 600, "allow": ["read", "cancel"]}]
        }
    )

    account: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    job: UUID | None = None
    topic: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    ttl_seconds: Annotated[int, Field(ge=1, le=tokens.LONGEST_SECONDS)] = DEFAULT_SECONDS
    allow: Annotated[list[Literal["read", "cancel"]], Field(min_length=1, max_length=2)] = Field(
        default=["read"]
    )


@routes.add(
    "POST",
    "/v1/tokens",
    operation="issuing_create",
    status=201,
    summary="Create a short token for a browser",
    answer=answers.Token,
    about="The token, also accepted as `?token=`",
    refuses=(404,),
)
async def create_token(
    principal: Submitter,
    backend: Backend,
    form: Annotated[CreateToken, Body()],
) -> dict[str, Any]:
    """The token is valid until it expires or the key that made it is revoked."""
    named = [name for name in ("account", "job", "topic") if getattr(form, name) is not None]
    if len(named) != 1:
        raise Invalid(
            "a token is for one of account, job and topic: name exactly one",
            code="invalid_request",
            field=named[1] if named else "account",
        )
    if principal.account is not None and form.account not in (None, principal.account):
        raise unknown_account(form.account)
    for name in ("account", "topic"):
        refuse_nul(getattr(form, name), name, code="invalid_request")
    if form.job is not None:
        await backend.engine.texts.job(form.job, principal.scope)
    expires = tokens.expiry(form.ttl_seconds)
    claims = tokens.Claims(
        account=form.account,
        job=None if form.job is None else str(form.job),
        topic=form.topic,
        allow=frozenset(form.allow),
        expires=expires,
        issuer=principal.key or "",
        of=principal.account,
    )
    return {
        "token": tokens.make(backend.roots, claims),
        "expires_at": f"{datetime.fromtimestamp(expires, UTC):%Y-%m-%dT%H:%M:%SZ}",
    }
