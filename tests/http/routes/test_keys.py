"""Keys over HTTP: created and shown once, listed without secrets, rotated, revoked."""

from typing import Any

import pytest

from penstock.http.schemas import answers
from support.http import kinds
from support.http.answering import follows
from support.http.site import Site, problem
from support.waiting import eventually


@pytest.fixture(autouse=True)
def _kinds(site: Site) -> None:
    kinds.declare(site)


async def test_a_key_is_created_and_shown_once(site: Site) -> None:
    await site.make_account("u1")
    made = await site.admin.post(
        "/v1/keys",
        json={"kind": "account", "account": "u1", "name": "laptop", "expires_seconds": 3600},
    )
    assert made.status_code == 201, made.text
    key = made.json()
    follows(answers.NewKey, key)
    assert (key["kind"], key["account"], key["name"]) == ("account", "u1", "laptop")
    assert (await site.client(key["key"]).get("/v1/jobs")).status_code == 200
    listed = (await site.admin.get("/v1/keys", params={"account": "u1"})).json()
    follows(answers.KeyPage, listed)
    assert [one["id"] for one in listed["items"]] == [key["id"]]
    assert key["key"].rpartition("_")[2] not in str(listed)


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({"kind": "boss"}, 422, "invalid_request", "kind"),
        ({"kind": "account"}, 422, "invalid_key", "account"),
        ({"kind": "app", "account": "u1"}, 422, "invalid_key", "account"),
        ({"kind": "account", "account": "nobody"}, 404, "unknown_account", "account"),
        ({"kind": "app", "name": ""}, 422, "invalid_request", "name"),
        ({"kind": "app", "name": "a\0"}, 422, "invalid_job", "name"),
        ({"kind": "app", "expires_seconds": 0}, 422, "invalid_request", "expires_seconds"),
        ({"kind": "app", "secret": "x"}, 422, "invalid_request", "secret"),
    ],
)
async def test_a_wrong_request_is_refused_by_its_field(
    site: Site, body: dict[str, Any], status: int, code: str, field: str
) -> None:
    refusal = problem(await site.admin.post("/v1/keys", json=body), status, code)
    assert refusal["field"] == field


async def test_keys_are_listed_page_by_page(site: Site) -> None:
    made = [
        (await site.admin.post("/v1/keys", json={"kind": "app"})).json()["id"] for _ in range(5)
    ]
    found: list[str] = []
    cursor: dict[str, str] = {}
    for _ in range(10):
        page = (await site.admin.get("/v1/keys", params={"limit": 2, **cursor})).json()
        found += [one["id"] for one in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert found[:5] == made[::-1]
    assert len(found) == 6  # with the fixture's own
    problem(await site.admin.get("/v1/keys?cursor=x"), 422, "invalid_cursor")


async def test_a_revoked_key_is_refused_at_once_here(site: Site) -> None:
    made = (await site.admin.post("/v1/keys", json={"kind": "app"})).json()
    client = site.client(made["key"])
    assert (await client.get("/v1/jobs")).status_code == 200
    for _ in range(2):
        gone = await site.admin.post(f"/v1/keys/{made['id']}/revoke")
        assert gone.json()["revoked_at"]
        problem(await client.get("/v1/jobs"), 401, "unauthorized")
    problem(await site.admin.post("/v1/keys/nothing/revoke"), 404, "unknown_key")


async def test_a_key_is_rotated_with_an_overlap(site: Site) -> None:
    """C3: two live keys for a while; the new one has the same holder, kind and name."""
    made = (await site.admin.post("/v1/keys", json={"kind": "app", "name": "backend"})).json()
    old = site.client(made["key"])
    body = {"kind": "mark", "payload": {"answer": "a"}}
    first = await old.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k"})
    answer = await site.admin.post(f"/v1/keys/{made['id']}/rotate", json={"overlap_seconds": 60})
    assert answer.status_code == 201, answer.text
    assert (answer.json()["kind"], answer.json()["name"]) == ("app", "backend")
    new = site.client(answer.json()["key"])
    again = await new.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k"})
    assert again.json()["id"] == first.json()["id"]
    assert (await old.get("/v1/jobs")).status_code == 200
    await site.clock.advance("61s")

    async def closed() -> bool:
        return (await old.get("/v1/jobs")).status_code == 401

    await eventually(closed, "the old key is over", seconds=5)
    assert (await new.get("/v1/jobs")).status_code == 200
    over = await site.admin.post(f"/v1/keys/{made['id']}/rotate")
    problem(over, 409, "key_is_over")
    problem(await site.admin.post("/v1/keys/nothing/rotate"), 404, "unknown_key")


async def test_a_rotation_without_overlap_revokes_the_old_key_at_once(site: Site) -> None:
    made = (await site.admin.post("/v1/keys", json={"kind": "process"})).json()
    answer = await site.admin.post(f"/v1/keys/{made['id']}/rotate", json={"overlap_seconds": 0})
    assert answer.json()["key"].startswith("ps_process_")
    problem(await site.client(made["key"]).get("/v1/jobs"), 401, "unauthorized")
