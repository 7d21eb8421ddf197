"""Keys over HTTP, for operators: make, list, exchange, revoke."""

from datetime import timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends
from pydantic import ConfigDict, Field

from penstock.api import answers, cursors
from penstock.api.auth import Principal, allowed
from penstock.api.body import Body, Strict, documented
from penstock.api.jobs import Behind, Cursor, Limit
from penstock.api.problems import documented as problems

router = APIRouter(prefix="/v1/keys", tags=["keys"])

Admin = Annotated[Principal, Depends(allowed("admin"))]
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
    """How long the old one opens beside the new one."""

    overlap_seconds: Annotated[float, Field(ge=0, le=90 * 86_400)] = OVERLAP_SECONDS


@router.post(
    "",
    status_code=201,
    response_model=None,
    summary="Make a key",
    openapi_extra=documented(CreateKey),
    responses={
        201: answers.documented(answers.NewKey, "The key, shown this once"),
        **problems(404, 422),
    },
)
async def create(
    _: Admin, behind: Behind, form: Annotated[CreateKey, Depends(Body(CreateKey))]
) -> dict[str, Any]:
    expires = None if form.expires_seconds is None else timedelta(seconds=form.expires_seconds)
    key, kept = await behind.engine.keys.create(
        form.kind, account=form.account, name=form.name, expires=expires
    )
    return {"key": key, **kept}


@router.get(
    "",
    response_model=None,
    summary="List keys, newest first",
    responses={
        200: answers.documented(answers.KeyPage, "Without their secrets"),
        **problems(404, 422),
    },
)
async def page(
    _: Admin,
    behind: Behind,
    account: str | None = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> dict[str, Any]:
    found = await behind.engine.keys.list(
        account=account, limit=limit, after=cursors.read_text(cursor)
    )
    more = found[-1]["id"] if len(found) == limit else None
    return {"items": found, "next_cursor": cursors.write_text(more)}


@router.post(
    "/{key_id}/revoke",
    response_model=None,
    summary="Revoke a key",
    responses={200: answers.documented(answers.Key, "It opens nothing any more"), **problems(404)},
)
async def revoke(key_id: str, _: Admin, behind: Behind) -> dict[str, Any]:
    """Every server refuses it, and the tokens it made, within a second. Safe to repeat."""
    found = await behind.engine.keys.revoke(key_id)
    behind.auth.forget(key_id)
    return found


@router.post(
    "/{key_id}/rotate",
    status_code=201,
    response_model=None,
    summary="Exchange a key",
    openapi_extra=documented(RotateKey, required=False),
    responses={
        201: answers.documented(answers.NewKey, "The new key, shown this once"),
        **problems(404, 409, 422),
    },
)
async def rotate(
    key_id: str,
    _: Admin,
    behind: Behind,
    form: Annotated[RotateKey, Depends(Body(RotateKey, empty=True))],
) -> dict[str, Any]:
    """A new key in its place. The old one opens for `overlap_seconds` more, a day if not said."""
    key, kept = await behind.engine.keys.rotate(
        key_id, overlap=timedelta(seconds=form.overlap_seconds)
    )
    behind.auth.forget(key_id)
    return {"key": key, **kept}
