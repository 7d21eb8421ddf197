"""Which payloads are refused, and for what: the check in SQL beside a walk through the value."""

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from support.cluster import Cluster

pytestmark = pytest.mark.timeout(1_800)  # --hypothesis-profile=nightly tries thousands

# As in life, text that is too short to be too deep holds no long number and few keys.
LIMITS = {
    "payload_max_bytes": 300,
    "payload_max_depth": 4,
    "payload_max_keys": 5,
    "number_max_digits": 10,
}

# Numbers as the digits before and after the point; strings that look like what is counted.
digits = st.text("0123456789", min_size=1, max_size=12)
numbers = st.builds(
    lambda sign, whole, fraction: Decimal(f"{sign}{whole}.{fraction}" if fraction else whole),
    st.sampled_from(["", "-"]),
    digits,
    digits | st.just(""),
)
texts = st.text('"\\[]{}:0123456789 é\n', max_size=20) | st.just("[" * 20)
leaves = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(texts | st.sampled_from("abc"), inner)
    ),
    max_leaves=12,
)
chains = st.integers(1, 7).map(lambda depth: json.loads("[" * depth + "]" * depth))
payloads = st.dictionaries(st.sampled_from("abcdefg"), values | chains, max_size=7)


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (isinstance(value, dict | list)) + max((depth(each) for each in inner), default=0)


def keys(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (len(value) if isinstance(value, dict) else 0) + sum(keys(each) for each in inner)


def longest_number(value: Any) -> int:
    """In digits, as Postgres will print it."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return max((longest_number(each) for each in inner), default=0)
    return sum(c.isdigit() for c in f"{value:f}") if isinstance(value, Decimal) else 0


def fault(value: Any, size: int) -> str | None:
    if size > LIMITS["payload_max_bytes"]:
        return "payload_too_large"
    if keys(value) > LIMITS["payload_max_keys"]:
        return "payload_too_many_keys"
    if longest_number(value) > LIMITS["number_max_digits"]:
        return "payload_number_too_long"
    return "payload_too_deep" if depth(value) > LIMITS["payload_max_depth"] else None


@pytest.fixture
def conn(cluster: Cluster) -> Iterator[psycopg.Connection[Any]]:
    with cluster.database() as name, psycopg.connect(cluster.dsn(name), autocommit=True) as conn:
        yield conn


def written(value: Any) -> str:
    """As JSON, with numbers as they are."""
    if isinstance(value, dict):
        members = (f"{json.dumps(key)}:{written(each)}" for key, each in value.items())
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return f"{value:f}" if isinstance(value, Decimal) else json.dumps(value)


def test_a_payload_is_refused_for_exactly_what_is_wrong_with_it(
    conn: psycopg.Connection[Any],
) -> None:
    @given(payloads)
    # Longer than allowed only when both sides of the point are counted; and not, without it.
    @example({"a": Decimal("123456.789012"), "b": "so that the text is not too short to look"})
    @example({"a": Decimal("12345.67890"), "b": "{{{{{{{{{{{"})
    def holds(payload: dict[str, Any]) -> None:
        row = conn.execute(
            "select penstock._payload_fault(p, jsonb_populate_record(null::penstock.setting, %s)),"
            " octet_length(p::text) from (select %s::jsonb) x (p)",
            [Jsonb(LIMITS), written(payload)],
        ).fetchone()
        assert row
        found, size = row
        event(str(found))
        assert found == fault(payload, size)

    holds()
