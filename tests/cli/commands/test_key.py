"""`key`: created and printed once, listed, rotated, revoked, from the shell."""

import json
from typing import Any

import psycopg
import pytest

from penstock.engine.accounts.keys import parts
from support.shapes import Penstock


def read_json(penstock: Penstock, *words: str) -> Any:
    done = penstock(*words, "--json")
    assert (done.code, done.err) == (0, ""), done
    return json.loads(done.out)


@pytest.mark.usefixtures("db")
def test_a_key_alone_is_printed_once(penstock: Penstock) -> None:
    done = penstock("key", "create", "--name", "backend")
    assert done.code == 0
    key = done.out.strip()
    assert key.startswith("ps_app_")
    assert parts(key) is not None
    assert done.err == "A key of kind app. It cannot be shown again.\n"
    listed = penstock("key", "list").out
    assert key.split("_")[2] in listed
    assert "backend" in listed
    assert "good" in listed
    assert key.rpartition("_")[2] not in listed


@pytest.mark.usefixtures("db")
def test_a_key_of_an_account_needs_an_existing_account(penstock: Penstock) -> None:
    refused = penstock("key", "create", "--account", "u1")
    assert (refused.code, refused.out) == (1, "")
    assert "there is no account u1" in refused.err
    penstock("account", "create", "u1")
    made = read_json(penstock, "key", "create", "--account", "u1", "--expires", "30d")
    assert (made["kind"], made["account"]) == ("account", "u1")
    assert made["expires_at"]
    assert "expires in 30 d" in penstock("key", "list", "--account", "u1").out
    wrong = penstock("key", "create", "--kind", "account")
    assert wrong.code == 2
    assert "--account" in wrong.err
    wrong = penstock("key", "create", "--kind", "admin", "--account", "u1")
    assert wrong.code == 2
    assert "no account" in wrong.err
    odd = penstock("key", "create", "--expires", "soon")
    assert odd.code == 2
    assert "--expires" in odd.err


@pytest.mark.usefixtures("db")
def test_a_key_is_revoked(penstock: Penstock) -> None:
    made = read_json(penstock, "key", "create")
    done = penstock("key", "revoke", made["id"])
    assert done.out == f"Key {made['id']} is revoked; every server refuses it within a second.\n"
    assert "revoked" in penstock("key", "list").out
    none = penstock("key", "revoke", "nothing")
    assert none.code == 1
    assert "there is no key nothing" in none.err


def test_a_key_is_rotated(penstock: Penstock, db: psycopg.Connection) -> None:
    made = read_json(penstock, "key", "create", "--name", "backend")
    new = read_json(penstock, "key", "rotate", made["id"], "--overlap", "1h")
    assert (new["kind"], new["name"]) == ("app", "backend")
    assert new["key"] != made["key"]
    row = db.execute(
        "select expires_at - now() < interval '61 minutes' from penstock.api_key where id = %s",
        [made["id"]],
    ).fetchone()
    assert row == (True,)
    assert [each["id"] for each in read_json(penstock, "key", "list")] == [new["id"], made["id"]]


@pytest.mark.usefixtures("db")
def test_without_keys_it_says_how_to_create_one(penstock: Penstock) -> None:
    assert "penstock key create" in penstock("key", "list").out
