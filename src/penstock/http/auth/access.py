"""What a caller may see and say of jobs.

What they may see is told to the database, which answers the rest as unknown.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from typing import Any
from uuid import UUID

from penstock.engine.encoding.known_names import naming_known
from penstock.engine.queries.json_texts import Scope
from penstock.errors import NotAllowed, Refused
from penstock.http.auth.caller import Principal
from penstock.http.backend import Backend
from penstock.http.schemas.forms import SubmitJob

# Of jobs that a customer's own key submits, these are the operator's to say.
_RESERVED = ("account", "price", "priority", "max_attempts", "timeout_seconds")


def scope_of(principal: Principal) -> Scope:
    """To what a caller's reads are bound."""
    return Scope(
        account=principal.account,
        topic=principal.topic,
        job=None if principal.job is None else UUID(principal.job),
    )


def naming_kinds(principal: Principal, behind: Backend) -> AbstractAsyncContextManager[None]:
    """An unknown kind is told with the known ones, to who may see all jobs."""
    return naming_known(behind.engine.rows) if principal.sees_all else nullcontext()


def refuse_reserved(form: SubmitJob, principal: Principal, place: str = "") -> None:
    """An account's key says what it wants, and not at what price or before whom."""
    if principal.account is None:
        return
    for name in _RESERVED:
        if getattr(form, name) is not None:
            raise NotAllowed(
                f"{place}{name} is not for an account's key to say",
                code="not_allowed",
                field=f"{place}{name}",
                hint="Leave it out, or submit with a key of kind app.",
            )


def check_payload(
    behind: Backend, form: SubmitJob, *, index: int = 0
) -> tuple[Mapping[str, Any], dict[str, Any], bool]:
    """The payload, what the app's code computes of it, and whether this process knows the kind."""
    found = behind.kinds.check(form.kind, form.payload, index=index)
    if found is None:
        return form.payload, {}, False
    payload, computed = found
    return payload, computed, True


@contextmanager
def naming_place(*, batch: bool = False) -> Iterator[None]:
    """Refusals say where in the body: `payload.answer`, `jobs.17.payload.answer`."""
    try:
        yield
    except Refused as error:
        if error.code == "invalid_payload":
            error.field = _in_payload(error.field)
            for fault in error.members.get("faults", ()):
                fault["field"] = _in_payload(fault["field"])
        index = error.members.get("index")
        if not batch:
            error.members.pop("index", None)
        elif isinstance(index, int) and error.field not in (None, "jobs"):
            error.field = f"jobs.{index}.{error.field}"
            for fault in error.members.get("faults", ()):
                fault["field"] = f"jobs.{index}.{fault['field']}"
        raise


def _in_payload(field: str | None) -> str:
    if field is None or field == "payload" or field.startswith("payload."):
        return field or "payload"
    return f"payload.{field}"
