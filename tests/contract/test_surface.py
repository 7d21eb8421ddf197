"""Names other people's programs rely on: a change here is a change for them."""

import types

import penstock
from penstock import errors

PUBLIC: set[str] = set()

ERRORS = {
    "PenstockError": "Exception",
    "Refused": "PenstockError",
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
    "Unavailable": "PenstockError",
}


def test_the_package_exports_what_the_documentation_names() -> None:
    found = {
        name
        for name, value in vars(penstock).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert found == PUBLIC


def test_the_exception_tree_is_the_one_that_is_drawn() -> None:
    found = {
        name: value.__base__.__name__
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception) and value.__base__
    }
    assert found == ERRORS
    assert errors.__doc__
    assert all(name in errors.__doc__ for name in ERRORS)


def test_a_refusal_knows_its_http_status() -> None:
    refused = [kind for kind in vars(errors).values() if _is_refusal(kind)]
    assert {int(kind.sqlstate[2:]) for kind in refused} == {402, 403, 404, 409, 413, 422, 429}


def _is_refusal(kind: object) -> bool:
    return (
        isinstance(kind, type) and issubclass(kind, errors.Refused) and kind is not errors.Refused
    )
