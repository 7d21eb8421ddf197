"""The data for a customer's page: the answer to a submit, and past results."""

import pytest

from penstock import Field
from support.http.site import Site, problem


async def test_a_submit_returns_id_position_priority_and_balance_and_history_keeps_results(
    site: Site,
) -> None:
    """G9, G15: the account reads its own past jobs, newest first, and the result of each."""
    studio = site.penstock.queue("studio", concurrency=1)
    site.penstock.plan("starter", priority=30, first_job=-20)

    @site.penstock.job(queue=studio, account="customer", price={"per": "images", "each": 2})
    async def draw(customer: str, images: int) -> list[str]:
        return [f"{customer}-{n}" for n in range(images)]

    await site.start()
    await site.admin.post("/v1/accounts", json={"id": "c1", "plan": "starter"})
    await site.admin.post("/v1/accounts/c1/credits", json={"amount": 20, "reason": "bought"})
    answers = []
    for images in (1, 3):
        payload = {"customer": "c1", "images": images}
        answer = await site.app_client.post("/v1/jobs", json={"kind": "draw", "payload": payload})
        assert answer.status_code == 201, answer.text
        answers.append(answer.json())
    assert [(job["position"], job["priority"], job["balance"]) for job in answers] == [
        (1, 10, 18),
        (2, 30, 12),
    ]
    await site.work()

    customer = await site.account_client("c1")
    past = (await customer.get("/v1/jobs?status=succeeded")).json()["items"]
    assert [job["id"] for job in past] == [answers[1]["id"], answers[0]["id"]]
    results = [(await customer.get(f"/v1/jobs/{job['id']}")).json()["result"] for job in past]
    assert results == [["c1-0", "c1-1", "c1-2"], ["c1-0"]]


@pytest.mark.parametrize("batch", [False, True], ids=["one", "batch"])
async def test_an_accounts_key_cannot_submit_a_kind_priced_by_its_payload(
    site: Site, *, batch: bool
) -> None:
    """G18: it could write 0. The app's own key may submit it, and the account may retry it."""
    studio = site.penstock.queue("studio")

    @site.penstock.job(queue=studio, price=Field("cost", trusted=True))
    async def draw(cost: int) -> int:
        return cost

    @site.penstock.job(queue=studio, price=2)
    async def other() -> None: ...

    await site.make_account("c1", credits=20)
    customer = await site.account_client("c1")
    job = {"kind": "draw", "payload": {"cost": 0}}
    if batch:
        answer = await customer.post(
            "/v1/jobs/batch", json={"jobs": [{"kind": "other", "payload": {}}, job]}
        )
    else:
        answer = await customer.post("/v1/jobs", json=job)
    refusal = problem(answer, 403, "not_allowed")
    assert refusal["field"] == ("jobs.1.kind" if batch else "kind")
    assert "sets its price" in refusal["detail"]
    assert (await customer.get("/v1/jobs")).json()["items"] == []

    mine = {**job, "payload": {"cost": 5}, "account": "c1"}
    made = (await site.app_client.post("/v1/jobs", json=mine)).json()
    assert made["balance"] == 15
    await site.work()
    again = await customer.post(f"/v1/jobs/{made['id']}/retry")
    assert again.json()["credits"]["reserved"] == 5


@pytest.mark.parametrize("batch", [False, True], ids=["one", "batch"])
async def test_an_accounts_key_names_no_other_account_in_its_payload(
    site: Site, *, batch: bool
) -> None:
    """G14: a handler that looks up data by that name would serve another customer's."""
    queue = site.penstock.queue("studio")

    @site.penstock.job(queue=queue, account="owner")
    async def export(owner: str) -> str:
        return owner

    customer = await site.account_client("c1")
    mine, others = ({"kind": "export", "payload": {"owner": name}} for name in ("c1", "c2"))
    if batch:
        answer = await customer.post("/v1/jobs/batch", json={"jobs": [mine, others]})
    else:
        answer = await customer.post("/v1/jobs", json=others)
    refused = problem(answer, 403, "not_allowed")
    assert refused["field"] == ("jobs.1.payload.owner" if batch else "payload.owner")
    assert "names another account than c1" in refused["detail"]
    assert (await customer.get("/v1/jobs")).json()["items"] == []
    assert (await customer.post("/v1/jobs", json=mine)).status_code == 201
    assert (await site.app_client.post("/v1/jobs", json=others)).status_code == 201
