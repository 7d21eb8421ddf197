"""<penstock-job> while its job gives no news: a banner, and yellow."""

import colorsys
import re

from playwright.async_api import Page, expect

from browser.component import part, running, show
from browser.stand_in import StandIn, moment

STALE = {"stale": True, "since": moment(minutes=4), "stage": "T", "message": "It takes long."}


async def test_the_banner_is_yellow_and_goes_when_the_job_moves_on(
    page: Page, stand_in: StandIn
) -> None:
    """S5, S8: in light and in dark colours."""
    await show(page, stand_in, **running(staleness=STALE))
    banner = part(page, "banner")
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)
        await expect(banner).to_have_text("It takes long.")
        colour = await banner.evaluate("one => getComputedStyle(one).backgroundColor")
        red, green, blue = (int(n) / 255 for n in re.findall(r"\d+", colour)[:3])
        hue, _, saturation = colorsys.rgb_to_hls(red, green, blue)
        assert 35 < hue * 360 < 65, f"{scheme}: {colour}"
        assert saturation > 0.4, f"{scheme}: {colour}"
    stand_in.put("a", **running(stage="two", staleness=None))
    await expect(banner).to_be_hidden()
