"""Messages about ended jobs: what was sent where, and once more."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query

from penstock.api import cursors
from penstock.api.answers import Answer
from penstock.api.auth import Principal, allowed
from penstock.api.backend import Backend, backend
from penstock.api.problems import documented as problems

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])

Caller = Annotated[Principal, Depends(allowed("admin", "app", "account"))]
Behind = Annotated[Backend, Depends(backend)]


class Webhook(Answer):
    """One message, however often it was sent: `id` is its webhook-id for ever."""

    id: UUID
    job: UUID
    account: str | None
    type: str
    url: str
    """For the key of an account, without path and query."""
    status: Literal["pending", "delivered", "given_up"]
    tries: int
    created_at: datetime
    last_at: datetime | None
    last_status: int | None
    last_error: str | None
    next_at: datetime | None
    delivered_at: datetime | None


class WebhookPage(Answer):
    items: list[Webhook]
    next_cursor: str | None


@router.get(
    "", summary="List webhooks, newest first", response_model=WebhookPage, responses=problems(422)
)
async def page(  # noqa: PLR0913  # one per filter
    *,
    principal: Caller,
    behind: Behind,
    job: UUID | None = None,
    status: Literal["pending", "delivered", "given_up"] | None = None,
    account: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="How many at most.")] = 50,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before.")] = None,
) -> dict[str, Any]:
    """The key of an account sees those to addresses that were given for its own jobs."""
    before = cursors.read(cursor)
    if principal.account is not None and account not in (None, principal.account):
        return {"items": [], "next_cursor": None}
    found = await behind.engine.webhooks.list(
        account=principal.account,
        owner=account,
        job=job,
        status=status,
        limit=limit,
        before=before,
    )
    after = UUID(found[-1]["id"]) if len(found) == limit else None
    return {"items": found, "next_cursor": cursors.write(after)}


@router.post(
    "/{webhook_id}/replay",
    summary="Send a webhook once more",
    response_model=Webhook,
    responses=problems(404, 409),
)
async def replay(webhook_id: UUID, principal: Caller, behind: Behind) -> dict[str, Any]:
    """Under the same id, from the first try on, whether it was taken before or given up."""
    return await behind.engine.webhooks.replay(webhook_id, account=principal.account)
