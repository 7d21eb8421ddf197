"""What a job has made: shown safely, or by the page itself."""

import pytest
from playwright.async_api import Page, expect

from browser.component import COMPONENT, failed, part, running, show
from browser.stand_in import DOT, StandIn, moment

SHOWN = {
    "a number": (1234.5, "1,234.5"),
    "a truth": (True, "yes"),
    "nothing": (None, ""),
    "a list": (["one", "two"], "onetwo"),
    "a flat object": ({"total_score": 7, "note": "good"}, "total score7notegood"),
    "a link": ("https://example.org/x.png", "https://example.org/x.png"),
    "markup": ("<img src=x onerror=alert(1)>", "<img src=x onerror=alert(1)>"),
    "a script": ("javascript:alert(1)", "javascript:alert(1)"),
    "a deep object": ({"a": {"b": {"c": 1}}}, ""),
}

LOADED = """([part, count]) => {
  const root = document.querySelector("penstock-job").shadowRoot;
  const shown = [...root.querySelectorAll(`[part=${part}] img`)];
  return shown.filter((one) => one.complete && one.naturalWidth === 1).length === count;
}"""


@pytest.mark.parametrize("what", SHOWN)
async def test_a_result_is_shown_safely(what: str, page: Page, stand_in: StandIn) -> None:
    value, words = SHOWN[what]
    await show(page, stand_in, status="succeeded", result=value)
    await expect(part(page, "status")).to_have_text("Done")
    await expect(part(page, "result")).to_have_text(words)
    assert await part(page, "result").locator("img, script").count() == 0
    links = part(page, "result").locator("a")
    assert await links.count() == (what == "a link")


async def test_a_picture_is_shown_as_one(page: Page, stand_in: StandIn) -> None:
    await show(page, stand_in, status="succeeded", result=[f"data:image/png;base64,{DOT}"])
    await expect(part(page, "result").locator("img")).to_be_visible()


async def test_a_file_is_shown_as_a_picture_or_else_as_a_link(
    page: Page, stand_in: StandIn
) -> None:
    stand_in.tokens = {"pt_good"}
    files = [{"upload": "dot"}, {"upload": "text"}]
    await show(page, stand_in, ' token="pt_good"', status="succeeded", result=files)
    result = part(page, "result")
    await expect(result.locator("a")).to_have_attribute(
        "href", f"{stand_in.base}/v1/uploads/text?token=pt_good"
    )
    await expect(result.locator("img")).to_have_attribute(
        "src", f"{stand_in.base}/v1/uploads/dot?token=pt_good"
    )
    assert await result.locator("img").evaluate("(one) => one.complete && one.naturalWidth") == 1


async def test_pictures_appear_as_they_come(page: Page, stand_in: StandIn) -> None:
    """G12, G16: one of two, then both, while the job runs; and in the end its result."""
    there: list[object] = []
    for n, each in enumerate((f"data:image/png;base64,{DOT}", {"upload": "dot"}), start=1):
        there.append(each)
        progress = {"done": n, "total": 3, "partial": there}
        if n == 1:
            await show(page, stand_in, **running(progress=progress))
        else:
            stand_in.put("a", progress=progress)
        await expect(part(page, "count")).to_have_text(f"{n} of 3")
        pictures = part(page, "partial").locator("img")
        await expect(pictures).to_have_count(n)
        await page.wait_for_function(LOADED, arg=["partial", n])
    await expect(part(page, "result").locator("img")).to_have_count(0)
    stand_in.put("a", status="succeeded", result=[*there, {"upload": "dot"}])
    await expect(part(page, "status")).to_have_text("Done")
    await page.wait_for_function(LOADED, arg=["result", 3])


async def test_a_batch_is_shown_as_one(page: Page, stand_in: StandIn) -> None:
    batch = {"id": "b", "total": 4, "failed": 0, "running": 0, "queued": 4, "credits": None}
    items = [{"status": "queued"}] * 4
    stand_in.jobs["b"] = batch | {
        "status": "queued",
        "position": 5,
        "eta_seconds": 60.0,
        "progress": {"done": 0, "total": 4, "partial": [None] * 4},
        "items": items,
    }
    stand_in.pages["one"] = '<penstock-job src="/v1/batches/b"></penstock-job>'
    await page.goto(f"{stand_in.base}/pages/one")
    await expect(part(page, "position")).to_have_text("#5 in queue")
    now = batch | {"status": "running", "queued": 2, "running": 1, "version": 1}
    running = [{"status": "succeeded"}, {"status": "running", "started_at": moment()}, *items[2:]]
    now |= {"progress": {"done": 1.5, "total": 4, "partial": ["one", None, None, None]}}
    stand_in.tell("/v1/batches/b/events", "batch", now | {"items": running, "position": 1})
    await expect(part(page, "count")).to_have_text("1 of 4")
    await expect(part(page, "partial")).to_have_text("one")
    ended = [{"status": "succeeded"}] * 3 + [failed("bug")]
    now |= {"status": "succeeded", "queued": 0, "running": 0, "succeeded": 3, "failed": 1}
    now |= {"credits": {"reserved": 4, "charged": 3, "refunded": 1}, "items": ended}
    stand_in.tell("/v1/batches/b/events", "batch", now)
    await expect(part(page, "status")).to_have_text("Done")
    await expect(part(page, "note")).to_have_text("1 of 4 failed.")
    await expect(part(page, "partial")).to_have_text("one")


async def test_a_page_may_show_the_result_itself(page: Page, stand_in: StandIn) -> None:
    stand_in.put("a", **running(progress={"done": 1, "total": 2, "partial": {"x": {"y": 1}}}))
    await page.goto("about:blank")
    stand_in.pages["one"] = COMPONENT.format("")
    await page.goto(f"{stand_in.base}/pages/one")
    await page.locator("penstock-job").evaluate(
        """(one) => one.render = (job, root) => {
          root.textContent = JSON.stringify(job.result ?? job.progress.partial);
        }"""
    )
    await expect(part(page, "rendered")).to_have_text('{"x":{"y":1}}')
    await expect(part(page, "partial")).to_be_hidden()
    stand_in.put("a", status="succeeded", result={"z": 2})
    await expect(part(page, "rendered")).to_have_text('{"z":2}')
    await expect(part(page, "result")).to_be_hidden()


async def test_slots_take_the_place_of_what_we_would_show(page: Page, stand_in: StandIn) -> None:
    stand_in.put("a", **running())
    stand_in.pages["one"] = (
        '<penstock-job src="/v1/jobs/a"><b slot="result">Look here</b>'
        '<i slot="error">Call us</i><a slot="actions" href="#help">Help</a></penstock-job>'
    )
    await page.goto(f"{stand_in.base}/pages/one")
    await expect(page.get_by_text("Help")).to_be_visible()
    await expect(page.get_by_text("Look here")).to_be_hidden()
    stand_in.put("a", status="succeeded", result={"deep": {"er": 1}})
    await expect(page.get_by_text("Look here")).to_be_visible()
    await expect(page.get_by_text("Call us")).to_be_hidden()
