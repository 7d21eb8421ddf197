"""Names other people's programs rely on: a change here is a change for them."""

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from contract import surface
from penstock import errors

KEPT = Path(__file__).with_name("surface")

PUBLIC = {
    "Penstock": "penstock.client.app",
    "Queue": "penstock.client.config.declared",
    "Retries": "penstock.client.config.declared",
    "Constant": "penstock.client.sources",
    "Plan": "penstock.client.config.declared",
    "Kind": "penstock.client.kind",
    "Ticket": "penstock.client.tickets",
    "Batch": "penstock.client.tickets",
    "BatchTicket": "penstock.client.tickets",
    "Job": "penstock.models.handlers.job",
    "JobInfo": "penstock.engine.jobs.info",
    "FinishedJob": "penstock.engine.jobs.on_finish",
    "Retry": "penstock.models.handlers.exceptions",
    "Fail": "penstock.models.handlers.exceptions",
    "Field": "penstock.client.sources",
    "Snooze": "penstock.models.handlers.exceptions",
    "Cancel": "penstock.models.handlers.exceptions",
}

# Their signatures, as the contract has them.
OPTIONS = {
    "queue": "name concurrency rate burst order aging_step timeout stale_after stuck_after retry"
    " recovery retention retention_failed inline local_only drive",
    "plan": "name priority concurrency per_hour weight first_job default",
    "job": "queue name dedupe topic account priority_offset timeout attempts isolation memory price"
    " split webhook",
}
USING = (
    "account priority delay run_at dedupe_key topic price max_attempts timeout expires metadata"
    " webhook_url idempotency_key conn"
)

ERRORS = {
    "PenstockError": "Exception",
    "Refused": "PenstockError",
    "Unauthorized": "Refused",
    "InsufficientCredits": "Refused",
    "NotAllowed": "Refused",
    "NotFound": "Refused",
    "Conflict": "Refused",
    "TooLarge": "Refused",
    "Invalid": "Refused",
    "RateLimited": "Refused",
    "Misconfigured": "PenstockError",
    "EmbeddedFailed": "Misconfigured",
    "MigrationFailed": "Misconfigured",
    "SchemaMismatch": "Misconfigured",
    "WrongApp": "Misconfigured",
    "Unavailable": "PenstockError",
    "DiskFull": "Unavailable",
    "RolledBack": "Unavailable",
    "JobFailed": "PenstockError",
    "JobCancelled": "PenstockError",
}
# Whoever reads of an exception in the tree can catch it.
PUBLIC |= dict.fromkeys(ERRORS, "penstock.errors")


def test_the_package_exports_what_the_documentation_names() -> None:
    assert set(penstock.__all__) == set(dir(penstock)) == set(PUBLIC)
    assert {name: getattr(penstock, name).__module__ for name in penstock.__all__} == PUBLIC
    with pytest.raises(AttributeError, match="has no attribute 'Pensock'"):
        _ = penstock.Pensock


def test_importing_the_package_loads_nothing_else() -> None:
    """The command line does it at each start."""
    asked = "import sys, penstock; print([m for m in sys.modules if m.startswith('penstock')])"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['penstock']"


def test_options_are_called_as_in_the_contract() -> None:
    for method, names in OPTIONS.items():
        taken = list(inspect.signature(getattr(penstock.Penstock, method)).parameters)
        assert taken == ["self", *names.split()]
    assert list(inspect.signature(penstock.Kind.using).parameters) == ["self", *USING.split()]
    assert list(inspect.signature(penstock.Retries).parameters) == [
        "attempts",
        "backoff",
        "delay",
        "max",
    ]


def test_the_exception_tree_is_the_one_that_is_drawn() -> None:
    found = {
        name: value.__base__.__name__
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception) and value.__base__
    }
    assert found == ERRORS
    assert errors.__doc__
    assert all(name in errors.__doc__ for name in ERRORS)


def test_people_see_the_hint_of_a_refusal() -> None:
    hinted = errors.NotFound("there is no job kind x", code="unknown_kind", hint="Is it spelt so?")
    assert str(hinted) == "there is no job kind x. Is it spelt so?"
    assert (hinted.message, hinted.hint) == ("there is no job kind x", "Is it spelt so?")
    assert str(errors.Invalid("n is odd", code="odd")) == "n is odd"


def test_a_refusal_knows_its_http_status() -> None:
    refused = [kind for kind in vars(errors).values() if _is_refusal(kind)]
    statuses = {int(kind.sqlstate[2:]) for kind in refused}
    assert statuses == {401, 402, 403, 404, 409, 413, 422, 429}


def _is_refusal(kind: object) -> bool:
    return (
        isinstance(kind, type) and issubclass(kind, errors.Refused) and kind is not errors.Refused
    )


@pytest.fixture
def is_kept(request: pytest.FixtureRequest) -> Callable[[str, Any], None]:
    """Compare with what is under version control, or write it."""

    def compare(name: str, found: Any) -> None:
        file = KEPT / f"{name}.json"
        if request.config.getoption("--write-surface"):
            text = json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True)
            file.write_text(text + "\n")
        assert found == json.loads(file.read_text()), "if that is what you mean, run `make surface`"

    return compare


def test_every_route_is_the_one_that_was_published(is_kept: Callable[[str, Any], None]) -> None:
    is_kept("routes", surface.routes())


def test_the_openapi_document_is_the_one_that_was_published(
    is_kept: Callable[[str, Any], None],
) -> None:
    """Paths, parameters, bodies, answers, forms, security: all that a generated client reads."""
    is_kept("openapi", surface.document())


def test_commands_and_their_options_are_those_that_were_published(
    is_kept: Callable[[str, Any], None],
) -> None:
    is_kept("commands", surface.commands())


async def test_sql_calls_and_views_are_those_that_were_published(
    migrated: str, is_kept: Callable[[str, Any], None]
) -> None:
    is_kept("sql", await surface.sql(migrated))


def test_public_python_is_what_was_published(is_kept: Callable[[str, Any], None]) -> None:
    is_kept("python", surface.python())
