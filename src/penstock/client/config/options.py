"""Values that only an app's code or file gives: lengths of time, and addresses of its own."""

from datetime import timedelta
from typing import Any

from penstock.db.connections.connect import FORM
from penstock.errors import Invalid
from penstock.net.endpoint import read_endpoint

Duration = str | int | float | timedelta
"""`"90s"`, `"5m"`, `"2h"`, `"7d"`, or a number of seconds."""

LINK_MAX = 2_000
_SCHEMES = ("postgresql://", "postgres://")


def read_address(value: Any, option: str) -> str | None:
    """Of a database. One that is wrong is not quoted: it may hold a password."""
    if value is None or (isinstance(value, str) and value.startswith(_SCHEMES)):
        return value
    raise Invalid(
        f"{option} must be an address of the form {FORM}", code="invalid_option", field=option
    )


def read_link(value: Any, option: str) -> str | None:
    """An address of the operator's own. One that is wrong is not quoted: it may hold a secret."""
    if value is None:
        return None
    endpoint = read_endpoint(value, from_variable=True, option=option)
    if endpoint.authorization is not None or len(value) > LINK_MAX or not value.isascii():
        raise Invalid(
            f"{option} must be an address in ASCII of at most {LINK_MAX} characters, without user "
            "and password: what it is sent is signed",
            code="invalid_option",
            field=option,
        )
    return str(value)
