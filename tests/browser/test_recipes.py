"""docs/howto/browser.md does what it says: its own lines run, on a page of another origin."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from browser.app_site import AppSite, serving
from browser.live import Live
from browser.scene import Scene
from browser.watched import Windows, in_one_loop

DOCUMENT = Path(__file__).parents[2] / "docs" / "howto" / "browser.md"
ASSETS = Path(__file__).with_name("assets")
ADDRESS = "https://queue.example"
REACT_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>An app</title>
<link rel="icon" href="data:,"><script type="module" src="{base}/static/penstock.js"></script>
<main><h1>An app</h1><div id="root"></div></main>
<script type="importmap">{{"imports": {{"react": "/scripts/react.js"}}}}</script>
<script type="module" src="/scripts/main.js"></script></html>"""
# As a bundler does it: each file of the recipe is compiled, and finds the others by name.
MAIN = """
import { createElement, createRoot, Fragment, StrictMode } from "react";
import { compile } from "/scripts/jsx.js";

const load = async (name) => {
  const source = await (await fetch(`/scripts/${name}`)).text();
  const code = compile(source)
    .replaceAll('"./useJob.jsx"', JSON.stringify(window.hook))
    .replaceAll('"react"', JSON.stringify(new URL("/scripts/react.js", location).href))
    .replaceAll("React.createElement", "createElement").replaceAll("React.Fragment", "Fragment");
  const head = `import { createElement, Fragment } from "${location.origin}/scripts/react.js";\\n`;
  return URL.createObjectURL(new Blob([head + code], { type: "text/javascript" }));
};
const { JobStatus } = await import(await load("JobStatus.jsx"));
window.hook = await load("useJob.jsx");
const { Essay } = await import(await load("Essay.jsx"));
window.done = [];
const root = createRoot(document.querySelector("#root"));
window.show = (url, token) => root.render(
  createElement(StrictMode, null, url && createElement(Fragment, null,
    createElement(JobStatus, { src: url, token, onDone: (job) => done.push(job.status) }),
    createElement(Essay, { url, token }))));
window.ready = true;
"""


_WHOLE = re.DOTALL | re.MULTILINE


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT.read_text(), _WHOLE)
    assert found, f"there is no {language} in {DOCUMENT}"
    return found


@pytest.fixture
def origin() -> AppSite:
    return AppSite()


@pytest.fixture
def origins(origin: AppSite) -> str:
    return origin.base


@in_one_loop
async def site(origin: AppSite, windows: Windows) -> AsyncIterator[AppSite]:
    async with serving(origin):
        yield origin
        await windows.close()


def token_for(live: Live, job: str) -> str:
    """As the recipe has it, in a thread: it waits for a server that runs in this loop."""
    [recipe] = blocks("python")
    names: dict[str, Any] = {}
    recipe = recipe.replace(ADDRESS, live.base).replace("KEY", live.secret)
    exec(recipe, names)  # noqa: S102  # our own document
    found: str = names["token_for"](job)
    return found


async def test_plain_html(
    live: Live, site: AppSite, page: Page, scene: Scene, allowed_errors: list[str]
) -> None:
    allowed_errors.append("401")
    row = await scene.started()
    job = str(row["id"])
    [html] = blocks("html")
    html = html.replace(ADDRESS, live.base).replace("JOB", job)
    # Its time is over before it comes: the page asks for the next one.
    site.token = await asyncio.to_thread(token_for, live, job)
    site.pages["essay"] = html.replace("TOKEN", "pt_over.and-out")
    await page.goto(f"{site.base}/pages/essay")
    status = page.locator("penstock-job [part=status]")
    await expect(status).to_have_text("Running")
    assert site.asked == 1
    await scene.end(row, "succeeded", result={"score": 7})
    await expect(status).to_have_text("Done")
    await expect(page.get_by_text("Thank you for waiting!")).to_be_visible()


async def test_react(live: Live, site: AppSite, page: Page, scene: Scene) -> None:
    wrapper, hook, essay = (text.replace(ADDRESS, live.base) for text in blocks("jsx"))
    for name in ("react.js", "jsx.js"):
        site.scripts[name] = (ASSETS / name).read_text()
    site.scripts |= {"JobStatus.jsx": wrapper, "useJob.jsx": hook, "Essay.jsx": essay}
    site.scripts["main.js"] = MAIN
    site.pages["react"] = REACT_PAGE.format(base=live.base)
    await page.goto(f"{site.base}/pages/react")
    await page.wait_for_function("window.ready")

    first, second = await scene.many(2)
    addresses = [f"{live.base}/v1/jobs/{job}" for job in (first, second)]
    tokens = [await asyncio.to_thread(token_for, live, str(job)) for job in (first, second)]
    await page.evaluate("([url, token]) => show(url, token)", [addresses[1], tokens[1]])
    await expect(page.locator("penstock-job [part=position]")).to_have_text("#2 in queue")
    drawn = page.locator("#root > p")
    await expect(drawn).to_contain_text("#2 in queue")
    await drawn.get_by_role("button").click()
    await expect(page.locator("penstock-job [part=status]")).to_have_text("Cancelled")
    await expect(drawn).to_contain_text("cancelled")
    assert await page.evaluate("done") == ["cancelled"]
    # Another job in the same place; then none.
    await page.evaluate("([url, token]) => show(url, token)", [addresses[0], tokens[0]])
    await expect(drawn).to_contain_text("#1 in queue")
    row = await scene.start(first)
    await scene.report(row, stage="S", label="Reading")
    await expect(drawn).to_contain_text("Reading")
    await scene.end(row, "succeeded", result={"score": 7})
    await expect(drawn).to_have_text("Your score: 7")
    assert await page.evaluate("done") == ["cancelled", "succeeded"]
    await page.evaluate("show(null)")
    await expect(page.locator("penstock-job")).to_have_count(0)


async def test_own_words_and_an_own_result(live: Live, page: Page, scene: Scene) -> None:
    """The JavaScript of the document, line by line."""
    words, drawing = (text.replace(ADDRESS, live.base) for text in blocks("js"))
    job = str(await scene.queued())
    token = await asyncio.to_thread(token_for, live, job)
    await page.goto(f"{live.base}/login")
    await page.evaluate(
        """async ([job, token]) => {
          const { PenstockJob } = await import("/static/penstock.js");
          document.querySelector("main").innerHTML =
            `<h1>x</h1><penstock-job src="/v1/jobs/${job}" token="${token}"></penstock-job>`;
        }""",
        [job, token],
    )
    status = page.locator("penstock-job [part=status]")
    await expect(status).to_have_text("Queued")
    await page.evaluate(f"async () => {{ {words} }}")
    await expect(status).to_have_text("Hold on")
    await page.evaluate("document.querySelector('penstock-job').lang = 'de'")
    await expect(status).to_have_text("Einen Moment")
    await page.evaluate("document.querySelector('penstock-job').texts = null")
    await page.evaluate("document.querySelector('penstock-job').lang = 'fr'")
    await expect(status).to_have_text("En attente")
    await expect(page.locator("penstock-job [part=position]")).to_have_text("numéro 1")
    await page.evaluate(f"() => {{ {drawing} }}")
    row = await scene.start(job)  # type: ignore[arg-type]
    await scene.end(row, "succeeded", result={"answers": [{}, {}]})
    drawn = page.locator("penstock-job [part=rendered]")
    await expect(drawn).to_have_text("2 answers")
