"""Short tokens for browsers: who may have which."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import ConfigDict, Field

from penstock.engine.encoding.encode import refuse_nul
from penstock.errors import Invalid, NotFound
from penstock.http.auth import tokens
from penstock.http.auth.caller import Principal, Submitter
from penstock.http.backend import Backend
from penstock.http.routing import Routes
from penstock.http.schemas import answers
from penstock.http.schemas.body import Body, Strict

routes = Routes("keys", noun="issuing")

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
    status=201,
    summary="Make a short token for a browser",
    answer=answers.Token,
    about="Also good as `?token=`",
    refuses=(404,),
)
async def create(
    principal: Submitter,
    backend: Backend,
    form: Annotated[CreateToken, Body()],
) -> dict[str, Any]:
    """It opens nothing when its time is over, or the key that made it is revoked."""
    named = [name for name in ("account", "job", "topic") if getattr(form, name) is not None]
    if len(named) != 1:
        raise Invalid(
            "a token is for one of account, job and topic: name exactly one",
            code="invalid_request",
            field=named[1] if named else "account",
        )
    _refuse_foreign_account(form, principal)
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


def _refuse_foreign_account(form: CreateToken, principal: Principal) -> None:
    if principal.account is not None and form.account not in (None, principal.account):
        raise NotFound(
            f"there is no account {form.account}", code="unknown_account", field="account"
        )
