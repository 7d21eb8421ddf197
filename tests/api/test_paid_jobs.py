"""What a customer's app shows: what a submit answers, and what was made before."""

from api.site import Site


async def test_a_submit_tells_id_place_priority_and_balance_and_history_keeps_results(
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
    told = []
    for images in (1, 3):
        payload = {"customer": "c1", "images": images}
        answer = await site.app_client.post("/v1/jobs", json={"kind": "draw", "payload": payload})
        assert answer.status_code == 201, answer.text
        told.append(answer.json())
    assert [(job["position"], job["priority"], job["balance"]) for job in told] == [
        (1, 10, 18),
        (2, 30, 12),
    ]
    await site.work()

    customer = await site.account_client("c1")
    past = (await customer.get("/v1/jobs?status=succeeded")).json()["items"]
    assert [job["id"] for job in past] == [told[1]["id"], told[0]["id"]]
    results = [(await customer.get(f"/v1/jobs/{job['id']}")).json()["result"] for job in past]
    assert results == [["c1-0", "c1-1", "c1-2"], ["c1-0"]]
