"""Webhooks over HTTP: list the messages about finished jobs, and send one again."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from penstock.http.auth.caller import Submitter
from penstock.http.backend import Backend
from penstock.http.routing import Routes
from penstock.http.schemas import cursors
from penstock.http.schemas.answers import Answer, page_of
from penstock.http.schemas.cursors import Cursor, Limit

routes = Routes("webhooks")


class Webhook(Answer):
    """One message, however often it was sent: its `webhook-id` header is always this `id`."""

    id: UUID
    job: UUID
    account: str | None
    type: str
    url: str
    """An account's key sees it without path and query."""
    status: Literal["pending", "delivered", "given_up"]
    tries: int
    created_at: datetime
    last_at: datetime | None
    last_status: int | None
    last_error: str | None
    next_at: datetime | None
    delivered_at: datetime | None


WebhookPage = page_of("WebhookPage", Webhook)


@routes.add("GET", "/v1/webhooks", summary="List webhooks, newest first", answer=WebhookPage)
async def page(  # noqa: PLR0913  # one per filter
    *,
    principal: Submitter,
    backend: Backend,
    job: UUID | None = None,
    status: Literal["pending", "delivered", "given_up"] | None = None,
    account: str | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> dict[str, Any]:
    """An account's key sees the messages to addresses that were given for its own jobs."""
    before = cursors.read(cursor)
    if principal.account is not None and account not in (None, principal.account):
        return {"items": [], "next_cursor": None}
    webhooks = await backend.engine.webhooks.list(
        account=principal.account,
        owner=account,
        job=job,
        status=status,
        limit=limit,
        before=before,
    )
    return cursors.page(webhooks, limit, UUID)


@routes.add(
    "POST",
    "/v1/webhooks/{webhook_id}/replay",
    summary="Send a webhook again",
    answer=Webhook,
    refuses=(409,),
)
async def replay(webhook_id: UUID, principal: Submitter, backend: Backend) -> dict[str, Any]:
    """It keeps its id and begins with its first try, even if it was delivered or given up."""
    return await backend.engine.webhooks.replay(webhook_id, account=principal.account)
