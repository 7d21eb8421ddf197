"""The frame of every page, in a browser: signing in, staying true, coming back after an outage."""

import pytest
from playwright.async_api import Page, expect

from browser.axe import axe
from browser.conftest import Looks
from browser.live import Live
from browser.scene import Scene
from browser.watched import Windows, fits_sideways

# What Chromium writes when a server that was there is not.
AWAY = r"ERR_CONNECTION|ERR_INCOMPLETE_CHUNKED|ERR_EMPTY_RESPONSE|htmx:sendError"


async def focused(page: Page) -> str:
    """What a key would act on, as people call it."""
    found: str = await page.evaluate(
        "(document.activeElement?.innerText || document.activeElement?.id || '').trim()"
    )
    return found


async def has_ring(page: Page) -> bool:
    """Whether a person sees where the focus is."""
    seen: bool = await page.evaluate(
        """() => {
          const style = getComputedStyle(document.activeElement);
          return (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0)
            || style.boxShadow !== "none";
        }"""
    )
    return seen


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_the_way_in_is_for_everybody(
    live: Live, windows: Windows, looks: Looks, dark: bool, allowed_errors: list[str]
) -> None:
    for phone in (False, True):
        page = await windows.open(phone=phone, dark=dark)
        await page.goto(f"{live.base}/login")
        await axe(page)
        await fits_sideways(page)
        await page.get_by_label("Key").fill("a wrong one")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("alert")).to_contain_text("This key is unknown")
        allowed_errors.append(r"401 \(Unauthorized\)")  # of the page itself, which says it
        await axe(page)
        await looks(page, f"login{'-phone' * phone}{'-dark' * dark}")


async def test_signing_in_takes_the_keyboard_alone(live: Live, page: Page) -> None:
    await page.goto(f"{live.base}/jobs?status=failed")
    await expect(page.get_by_label("Key")).to_be_focused()
    await page.keyboard.type(live.secret)
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(f"{live.base}/jobs?status=failed")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")


async def test_the_keyboard_reaches_the_content_and_every_page(live: Live, page: Page) -> None:
    await live.login(page)
    await page.keyboard.press("Tab")
    assert await focused(page) == "Skip to content"
    assert await has_ring(page)
    await expect(page.get_by_role("link", name="Skip to content")).to_be_in_viewport()
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(f"{live.base}/#main")
    await page.goto(live.base)
    names = ["Overview", "Jobs", "Stuck", "Queues", "Accounts", "Workers"]
    reached: list[str] = []
    while "Sign out" not in reached and len(reached) < 20:
        await page.keyboard.press("Tab")
        name = await focused(page)
        assert await has_ring(page), f"nobody sees that {name} has the focus"
        reached.append(name)
    assert [name for name in reached if name in names] == names
    assert reached[-1] == "Sign out"
    for name in names:
        await page.get_by_role("navigation").get_by_role("link", name=name).focus()
        await page.keyboard.press("Enter")
        here = page.get_by_role("navigation").get_by_role("link", name=name)
        await expect(here).to_have_attribute("aria-current", "page")
        await expect(page.get_by_role("heading", level=1)).to_have_text(name)


async def test_signing_out_in_one_tab_ends_the_other(live: Live, page: Page) -> None:
    await live.open(page, "/jobs")
    other = await page.context.new_page()
    await other.goto(f"{live.base}/queues")
    await other.get_by_role("button", name="Sign out").click()
    await expect(other.get_by_role("status").filter(has_text="signed out")).to_be_visible()
    # The first one is told with the next change, and then asks who is there.
    await page.bring_to_front()
    await page.reload()
    await expect(page.get_by_label("Key")).to_be_visible()


async def test_an_account_called_login_is_not_taken_for_the_way_in(
    live: Live, scene: Scene, page: Page
) -> None:
    await scene.account("login", 10)
    await live.open(page, "/accounts/login")
    await scene.conn.execute("select penstock.grant_credits('login', 5)")  # it looks again
    await expect(page.get_by_role("main")).to_contain_text("+5")
    await expect(page).to_have_url(f"{live.base}/accounts/login")


async def test_two_people_do_not_share_a_session(live: Live, windows: Windows) -> None:
    one, two = await windows.open(), await windows.open()
    await live.open(one, "/jobs")
    await two.goto(f"{live.base}/jobs")
    await expect(two.get_by_label("Key")).to_be_visible()


async def test_a_page_that_is_not_there_leads_back(
    live: Live, page: Page, allowed_errors: list[str]
) -> None:
    await live.login(page)
    await page.goto(f"{live.base}/no/such/page")
    allowed_errors.append("404")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Page not found")
    await axe(page)
    await page.get_by_role("link", name="Go to the overview").click()
    await expect(page).to_have_url(f"{live.base}/")


async def test_a_page_says_that_the_server_is_away_and_comes_back_by_itself(
    live: Live, scene: Scene, page: Page, allowed_errors: list[str]
) -> None:
    allowed_errors.append(AWAY)
    await scene.queue()
    await live.open(page, "/queues")
    await live.stop()
    said = page.locator("#connection")
    await expect(said).to_contain_text("cannot be reached")
    await axe(page)
    await scene.queue("second")
    await live.start()
    await expect(said).to_be_hidden(timeout=20_000)
    await expect(page.get_by_role("main")).to_contain_text("second")


async def test_on_a_phone_the_frame_leaves_room_for_the_page(live: Live, windows: Windows) -> None:
    """Signing out had a row of its own, and the page began a quarter of the screen down."""
    page = await windows.open(phone=True)
    await live.open(page, "/")
    brand = await page.locator(".brand").bounding_box()
    leave = await page.get_by_role("button", name="Sign out").bounding_box()
    nav = await page.get_by_role("navigation", name="Pages").bounding_box()
    assert brand is not None
    assert leave is not None
    assert nav is not None
    assert leave["y"] < brand["y"] + brand["height"], "beside the brand"
    assert nav["y"] >= brand["y"] + brand["height"]
