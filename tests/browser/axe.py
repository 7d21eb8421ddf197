"""axe-core on a page: what a screen reader, a keyboard or weak eyes would stumble over."""

from typing import Any

from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]
from playwright.async_api import Page

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


async def axe(page: Page, *, within: str | None = None, without: tuple[str, ...] = ()) -> None:
    """Assert that there is nothing to complain of, in the page or `within` a selector.

    `without` names rules that do not apply; say beside the call why.
    """
    options: dict[str, Any] = {"runOnly": {"type": "tag", "values": RULES}}
    if without:
        options["rules"] = {rule: {"enabled": False} for rule in without}
    # The styles of a moment ago may still be fading into those of now: nobody reads that.
    await page.evaluate(
        "Promise.all(document.getAnimations().filter((one) => one.effect.getTiming().iterations"
        " !== Infinity).map((one) => one.finished.catch(() => null)))"
    )
    found = await Axe().run(page, context=within, options=options)
    told = [
        f"{rule['id']} ({rule['impact']}): {rule['help']}\n"
        + "\n".join(f"    {node['target']}: {node['failureSummary']}" for node in rule["nodes"])
        for rule in found.response["violations"]
    ]
    assert not told, f"axe at {page.url}:\n" + "\n".join(told)
