"""What Penstock's own sessions set for themselves, whatever their role or database says.

Only what the code relies on and SQL functions cannot set themselves: the isolation level (a guard
reads a row again after it has waited for it), no time-outs (each caller here has its own), and how
literals and numbers are read and written. Three kinds of settings stay as the operator has them:
`default_transaction_read_only`, which asks that nothing is written; `synchronous_commit` and
`client_min_messages`, which decide what a commit waits for; and what an app's `on_finish` would
notice, like `search_path` or `TimeZone`. Functions set the former and do not depend on the latter.
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
# Of a transaction: its isolation level is said when it begins, and these do nothing inside of one.
_OF_SESSIONS = (
    "default_transaction_isolation",
    "default_transaction_deferrable",
    "idle_session_timeout",
)


def for_session(major: int) -> str:
    """Statements that pin all settings of a session that is ours."""
    return "; ".join(f"set {name} = {value}" for name, value in _known(major))


def for_transaction(major: int) -> str:
    """Statements that follow `begin` where the session is ours for one transaction only."""
    return "; ".join(
        f"set local {name} = {value}" for name, value in _known(major) if name not in _OF_SESSIONS
    )


def _known(major: int) -> list[tuple[str, str]]:
    return [item for item in PINNED.items() if major >= _SINCE.get(item[0], 0)]
