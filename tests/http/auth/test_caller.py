"""Authentication: keys by kind, wrong, revoked and expired keys (C3, the API's half of G14)."""

import asyncio
import hashlib
import re
import time
import zlib

import asyncpg
import pytest

from penstock.engine.accounts.keys import parts
from penstock.http.auth import caller
from support.dashboard.visitor import Visitor
from support.http import kinds
from support.http.site import SECRET, Site, problem
from support.signing import NEXT_SECRET
from support.waiting import eventually


def well_formed(n: int) -> str:
    """An unknown key with a correct checksum, so that it is looked up in the database."""
    begun = f"ps_app_{n:012}_{'a' * 43}"
    return f"{begun}{zlib.crc32(begun.encode()):08x}"


@pytest.fixture(autouse=True)
def _kinds(site: Site) -> None:
    kinds.declare(site)


@pytest.mark.parametrize(
    "given",
    [
        "nonsense",
        "ps_app_abc_def",
        "ps_app__",
        "ps_",
        "pt_a.b",
        "pt_",
        "pt_..",
        SECRET + "x",
        "x" * 5000,
        "ps_app_aaaaaaaaaaaa_" + "a" * 51,
    ],
)
async def test_every_wrong_key_gets_the_same_401(site: Site, given: str) -> None:
    refused = await site.client(given).get("/v1/jobs")
    refusal = problem(refused, 401, "unauthorized")
    assert refused.headers["www-authenticate"] == "Bearer"
    assert given not in refusal["detail"]


async def test_the_secret_of_another_key_is_refused(site: Site) -> None:
    one, two = await site.make_key("app"), await site.make_key("app")
    found = parts(two)
    assert found
    mixed = "_".join([*one.split("_", 3)[:3], found[1]])
    problem(await site.client(mixed).get("/v1/jobs"), 401, "unauthorized")
    assert (await site.client(one).get("/v1/jobs")).status_code == 200


@pytest.mark.parametrize("header", ["Basic abc", "Bearer", "Bearer ", "abc", "bearer  \t"])
async def test_another_scheme_is_not_a_key(site: Site, header: str) -> None:
    refused = await site.anonymous.get("/v1/jobs", headers={"Authorization": header})
    problem(refused, 401, "unauthorized")


async def test_keys_are_not_accepted_in_the_address(site: Site) -> None:
    """Addresses are logged everywhere: only short tokens are accepted there."""
    key = await site.make_key("app")
    problem(await site.anonymous.get("/v1/jobs", params={"token": key}), 401, "unauthorized")
    problem(await site.anonymous.get("/v1/jobs", params={"token": SECRET}), 401, "unauthorized")


async def test_each_kind_of_key_has_its_own_rights(site: Site) -> None:
    process = site.client(await site.make_key("process"))
    refusal = problem(await process.get("/v1/jobs"), 403, "not_allowed")
    assert "app" in refusal["needs"]
    for client in (site.app_client, await site.account_client("u1")):
        problem(await client.get("/v1/keys"), 403, "not_allowed")
    assert (await site.admin.get("/v1/keys")).status_code == 200
    operator = site.client(await site.make_key("admin"))
    assert (await operator.get("/v1/keys")).status_code == 200


@pytest.mark.alone
async def test_a_revoked_key_is_refused_within_a_second(site: Site) -> None:
    """C3: also at servers that were not notified, and for the tokens it made."""
    key = await site.make_key("app")
    client = site.client(key)
    token = (await client.post("/v1/tokens", json={"account": "u1"})).json()["token"]
    browser = site.client(token)
    assert (await browser.get("/v1/jobs")).status_code == 200
    found = parts(key)
    assert found
    begun = time.monotonic()
    await site.engine.keys.revoke(found[0])  # not through this server

    async def closed() -> bool:
        answers = [await client.get("/v1/jobs"), await browser.get("/v1/jobs")]
        return all(answer.status_code == 401 for answer in answers)

    await eventually(closed, "the key is refused", seconds=5)
    assert time.monotonic() - begun < 1.5


async def test_an_expired_key_is_refused(site: Site) -> None:
    made = await site.admin.post("/v1/keys", json={"kind": "app", "expires_seconds": 60})
    client = site.client(made.json()["key"])
    assert (await client.get("/v1/jobs")).status_code == 200
    await site.clock.advance("61s")

    async def closed() -> bool:
        return (await client.get("/v1/jobs")).status_code == 401

    await eventually(closed, "the key is over", seconds=5)


async def test_many_wrong_keys_from_one_address_are_refused_for_a_while(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3: with 429 and a time; good keys from there, and other addresses, are still accepted."""
    wrong = site.client("ps_app_guess", address="198.51.100.7")
    for _ in range(caller.FAILURES):
        problem(await wrong.get("/v1/jobs"), 401, "unauthorized")
    refused = await wrong.get("/v1/jobs")
    problem(refused, 429, "too_many_failures")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    good = site.client(await site.make_key("app"), address="198.51.100.7")
    assert (await good.get("/v1/jobs")).status_code == 200
    elsewhere = site.client("ps_app_guess", address="198.51.100.8")
    problem(await elsewhere.get("/v1/jobs"), 401, "unauthorized")
    now = time.monotonic()
    monkeypatch.setattr("penstock.http.auth.caller.time.monotonic", lambda: now + 61)
    problem(await wrong.get("/v1/jobs"), 401, "unauthorized")


async def test_a_secret_is_not_compared_after_many_wrong_ones(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3: or the limit would only change the answers to wrong guesses."""
    guess = site.client("not-the-secret", address="198.51.100.7")
    answers = await asyncio.gather(*(guess.get("/v1/jobs") for _ in range(caller.FAILURES * 4)))
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [401] * caller.FAILURES + [429] * caller.FAILURES * 3
    right = site.client(SECRET, address="198.51.100.7")
    problem(await right.get("/v1/jobs"), 429, "too_many_failures")
    person = Visitor(site, address="198.51.100.7")
    assert (await person.sign_in(SECRET)).status_code == 429
    assert (await site.admin.get("/v1/jobs")).status_code == 200, "from elsewhere"
    now = time.monotonic()
    with monkeypatch.context() as later:
        later.setattr("penstock.http.auth.caller.time.monotonic", lambda: now + 61)
        assert (await right.get("/v1/jobs")).status_code == 200
        assert (await person.sign_in(SECRET)).status_code == 303


async def test_the_right_secret_does_not_count_as_wrong(site: Site) -> None:
    for _ in range(caller.FAILURES * 2):
        assert (await site.admin.get("/v1/jobs")).status_code == 200
    problem(await site.client("wrong").get("/v1/jobs"), 401, "unauthorized")


async def test_simultaneous_wrong_keys_all_count(site: Site) -> None:
    """C3: their look-ups wait for the database at the same time."""
    key = await site.make_key("app")
    guesses = [
        site.client(well_formed(n), address="198.51.100.7") for n in range(caller.FAILURES * 3)
    ]
    answers = await asyncio.gather(*(guess.get("/v1/jobs") for guess in guesses))
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [401] * caller.FAILURES + [429] * caller.FAILURES * 2
    neighbour = site.client(key, address="198.51.100.7")
    assert (await neighbour.get("/v1/jobs")).status_code == 200


async def test_keys_from_an_address_with_many_wrong_ones_use_one_connection_at_a_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers at other addresses do not wait for database connections because of them."""
    wrong = site.client("wrong", address="198.51.100.7")
    for _ in range(caller.FAILURES):
        await wrong.get("/v1/jobs")
    keys = site.api.state.backend.engine.keys
    find, at_once, most = keys.find, 0, 0

    async def count(key_id: str) -> object:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        try:
            return await find(key_id)
        finally:
            at_once -= 1

    monkeypatch.setattr(keys, "find", count)
    good = [site.client(await site.make_key("app"), address="198.51.100.7") for _ in range(5)]
    answers = await asyncio.gather(*(client.get("/v1/jobs") for client in good))
    assert {answer.status_code for answer in answers} == {200}
    assert most == 1


async def test_an_address_is_the_same_in_both_versions_of_ip(site: Site) -> None:
    mapped = site.client("wrong", address="::ffff:198.51.100.7")
    for _ in range(caller.FAILURES):
        problem(await mapped.get("/v1/jobs"), 401, "unauthorized")
    plain = site.client("wrong", address="198.51.100.7")
    problem(await plain.get("/v1/jobs"), 429, "too_many_failures")
    other = site.client("wrong", address="::ffff:198.51.100.8")
    problem(await other.get("/v1/jobs"), 401, "unauthorized")


async def test_an_address_that_sends_many_wrong_keys_is_named_in_the_log(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = site.client("wrong", address="198.51.100.7")
    for _ in range(caller.FAILURES * 2):
        await wrong.get("/v1/jobs", headers={"x-forwarded-for": "203.0.113.5"})
    [warning] = [one for one in caplog.messages if "wrong keys came from" in one]
    assert "198.51.100.7" in warning
    assert "name it in PENSTOCK_PROXIES" in warning
    assert "203.0.113.5" not in warning


async def test_addresses_of_one_network_count_together(site: Site) -> None:
    for n in range(caller.FAILURES):
        client = site.client("ps_app_guess", address=f"2001:db8:1:2::{n:x}")
        problem(await client.get("/v1/jobs"), 401, "unauthorized")
    more = site.client("ps_app_guess", address="2001:db8:1:2:ffff::1")
    problem(await more.get("/v1/jobs"), 429, "too_many_failures")
    other = site.client("ps_app_guess", address="2001:db8:1:3::1")
    problem(await other.get("/v1/jobs"), 401, "unauthorized")


async def test_the_stored_hash_of_a_key_is_not_accepted(
    site: Site, conn: asyncpg.Connection
) -> None:
    """C3: a hash of 256 random bits; scanners for secrets recognize the format of keys."""
    key = await site.make_key("account", "u1")
    assert re.fullmatch(r"ps_account_[a-z0-9]{12}_[A-Za-z0-9_-]{51}", key)
    found = parts(key)
    assert found
    row = await conn.fetchrow(
        "select k::text, secret_hash from penstock.api_key k where id = $1", found[0]
    )
    assert row
    assert found[1] not in row["k"]
    assert row["secret_hash"] == hashlib.sha256(found[1].encode()).digest()
    assert parts(key[:-1] + ("0" if key[-1] != "0" else "1")) is None  # mistyped


async def test_the_last_use_of_a_key_is_shown_to_the_minute(site: Site) -> None:
    key = await site.make_key("app")
    await site.client(key).get("/v1/jobs")

    async def used() -> bool:
        kept = (await site.admin.get("/v1/keys")).json()["items"]
        return any(one["id"] in key and one["last_used_at"] for one in kept)

    await eventually(used, "its use is written")


async def test_the_key_of_an_erased_account_is_refused(
    site: Site, conn: asyncpg.Connection
) -> None:
    mine = await site.account_client("u1")
    assert (await mine.get("/v1/jobs")).status_code == 200
    await conn.execute("update penstock.account set name = null where name = 'u1'")

    async def closed() -> bool:
        return (await mine.get("/v1/jobs")).status_code == 401

    await eventually(closed, "the key is refused", seconds=5)


async def test_two_secrets_are_accepted_during_a_rotation(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_SECRET", f"{NEXT_SECRET},{SECRET}")
    assert (await site.admin.get("/v1/keys")).status_code == 200
    new = site.client(NEXT_SECRET)
    assert (await new.get("/v1/keys")).status_code == 200
