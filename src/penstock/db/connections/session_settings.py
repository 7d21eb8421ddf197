"""Settings of Penstock's own sessions, which override those of the role and the database.

They are limited to settings that the code relies on and that SQL functions cannot set: the
isolation level (a guard reads a row again after it has waited for its lock), no timeouts (each
caller has its own), and the format of literals and numbers. Three kinds of settings stay as the
operator has set them: `default_transaction_read_only`, which forbids writes; `synchronous_commit`
and `client_min_messages`, which decide what a commit waits for; and settings that an app's
`on_finish` would notice, like `search_path` or `TimeZone`. Functions set `search_path` themselves
and do not depend on `TimeZone`.
"""

from collections.abc import Mapping

PINNED: Mapping[str, str] = {
    "default_transaction_isolation": "'read committed'",
    "default_transaction_deferrable": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "extra_float_digits": "1",
    "quote_all_identifiers": "off",
    "exit_on_error": "off",
}
_SINCE = {"transaction_timeout": 17}
# Settings without effect inside a transaction; `begin` states the isolation level.
_OF_SESSIONS = (
    "default_transaction_isolation",
    "default_transaction_deferrable",
    "idle_session_timeout",
)


def for_session(major: int) -> str:
    """Return statements that apply all settings to a session of our own."""
    return "; ".join(f"set {name} = {value}" for name, value in _known(major))


def for_transaction(major: int) -> str:
    """Return statements to send after `begin`, for a session of only one transaction."""
    return "; ".join(
        f"set local {name} = {value}" for name, value in _known(major) if name not in _OF_SESSIONS
    )


def _known(major: int) -> list[tuple[str, str]]:
    return [item for item in PINNED.items() if major >= _SINCE.get(item[0], 0)]
