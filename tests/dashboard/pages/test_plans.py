"""The pages of plans: declared values, values in force, and edits while accounts use them."""

import asyncpg
import pytest

from browser.scene import Scene
from support.dashboard.visitor import Visitor, text


async def overrides(conn: asyncpg.Connection) -> dict[str, object]:
    found: dict[str, object] = await conn.fetchval("select overrides from penstock.plan")
    return found


async def test_without_plans_the_page_says_how_to_declare_one(operator: Visitor) -> None:
    page = await operator.read("/plans")
    assert "No plans yet." in page
    assert "app.plan(" in page


async def test_plans_are_listed_with_values_in_force_and_accounts(
    operator: Visitor, scene: Scene
) -> None:
    await scene.plan("free", concurrency=2, per_hour=10, priority=5)
    await scene.account("u1")
    assert "free default 5 2 10 1 0 1" in await operator.read("/plans")
    await scene.conn.execute("select penstock.edit_plan('free', $1)", {"concurrency": 4})
    assert "4 edited declared 2" in await operator.read("/plans")


async def test_an_edit_of_a_plan_applies_to_all_its_accounts(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection
) -> None:
    await scene.plan("free", concurrency=2)
    await scene.account("u1")
    done = await operator.post("/plans/free/edit", {"concurrency": "4", "priority": "-5"})
    assert "Priority is now -5; Jobs at once is now 4, for 1 account." in text(done)
    assert "Jobs at once : declared 2, now 4 (edited)" in text(done)
    assert await conn.fetchval("select concurrency from penstock.account where name = 'u1'") == 4
    done = await operator.post(
        "/plans/free/edit", {"was_concurrency": "4", "concurrency": "no limit"}
    )
    assert "declared 2, now no limit (edited)" in text(done)
    assert await overrides(conn) == {"concurrency": 1_000_000, "priority": -5}


@pytest.mark.parametrize(
    ("field", "typed", "page_text"),
    [
        ("concurrency", "some", "Jobs at once must be a whole number from 1 to 1,000,000, or “no"),
        ("per_hour", "-1", "Submits per hour must be a whole number from 1"),
        ("priority", "1001", "Priority must be a whole number from -1,000 to 1,000."),
        ("weight", "0", "Weight must be a whole number from 1 to 1,000."),
    ],
)
async def test_an_invalid_value_is_reported_beside_its_field(
    operator: Visitor, scene: Scene, field: str, typed: str, page_text: str
) -> None:
    await scene.plan("free")
    answer = await operator.post("/plans/free/edit", {field: typed})
    assert answer.status_code == 422
    assert page_text in text(answer)
    assert f'name="{field}" value="{typed}"' in answer.text
    assert await overrides(scene.conn) == {}


async def test_a_reset_needs_confirmation_and_names_the_number_of_accounts(
    operator: Visitor, scene: Scene
) -> None:
    await scene.plan("free", concurrency=2)
    await scene.account("u1")
    assert "Nothing to reset" in text(await operator.post("/plans/free/reset"))
    await operator.post("/plans/free/edit", {"concurrency": "4"})
    asked = await operator.post("/plans/free/reset")
    assert "Jobs at once: 4 now, 2 after the reset." in text(asked)
    assert "to 1 account." in text(asked)
    assert await overrides(scene.conn) == {"concurrency": 4}
    done = await operator.post("/plans/free/reset", {"confirm": "yes"})
    assert "Plan free is as declared again." in text(done)
    assert await overrides(scene.conn) == {}


async def test_an_unknown_plan_or_a_form_without_token_changes_nothing(
    operator: Visitor, scene: Scene
) -> None:
    await scene.plan("free", concurrency=2)
    assert (await operator.get("/plans/nowhere")).status_code == 404
    for verb in ("edit", "reset"):
        answer = await operator.post(f"/plans/nowhere/{verb}", {"confirm": "yes"})
        assert "There is no plan nowhere" in text(answer)
        answer = await operator.send(f"/plans/free/{verb}", {"concurrency": "9"})
        assert answer.status_code == 403
    assert await overrides(scene.conn) == {}
