"""`watch()` on an empty page whose clock can be moved, and what it has told."""

from typing import Any

from playwright.async_api import Page

from browser.stand_in import StandIn
from support.waiting import eventually

STREAM = "GET /v1/jobs/a/events"
LOOK = "GET /v1/jobs/a"
WATCH = """
async ({ url, options }) => {
  const { watch } = await import("/static/penstock.js");
  window.told = { change: [], chunk: [], state: [], done: [], error: [], renew: 0 };
  if (options.tokens) {
    options.renew = async () => {
      told.renew += 1;
      const token = options.tokens.shift();
      if (token === "throw") throw new Error("who gives tokens is away");
      return token;
    };
  }
  window.watched = watch(url, {
    onchange: (job, type) => {
      told.change.push([type, job.id, job.status ?? null, job.stage ?? job.balance ?? null]);
      if (options.clumsy) throw new Error("the page's own fault");
    },
    onchunk: (chunk) => told.chunk.push(chunk.data),
    onstate: (state) => told.state.push(state),
    ondone: (job) => told.done.push(job.status),
    onerror: (error) => told.error.push([error.code, error.status, error.message]),
    ...options,
  });
}
"""


async def watch(page: Page, url: str = "/v1/jobs/a", **options: Any) -> None:
    await page.evaluate(WATCH, {"url": url, "options": options})


async def caught_up(page: Page) -> None:
    """Until what the server has answered so far is known to the page, and its next timer is set."""
    await page.evaluate("fetch('/pages/empty').then((answer) => answer.text())")


async def told(page: Page, name: str) -> Any:
    return await page.evaluate("(name) => told[name]", name)


async def until_told(page: Page, name: str, expected: Any) -> None:
    """Until the last that was told under this name is so."""

    async def is_so() -> bool:
        found = await told(page, name)
        return bool(found) and found[-1] == expected

    try:
        await eventually(is_so, f"{name} is {expected}")
    except AssertionError as error:
        raise AssertionError(f"{error}; told: {await page.evaluate('told')}") from None


async def until_live(page: Page, times: int) -> None:
    async def is_so() -> bool:
        found: list[str] = await told(page, "state")
        return found.count("live") >= times and found[-1] == "live"

    await eventually(is_so, f"live for the time number {times}")


async def be(page: Page, visibility: str) -> None:
    """As if the tab were hidden, or seen again."""
    await page.evaluate(
        """(state) => {
          Object.defineProperty(document, "visibilityState", { get: () => state,
            configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        visibility,
    )


def change(status: str = "running", stage: str | None = "one", name: str = "a") -> list[Any]:
    return ["job", name, status, stage]


async def fall_back(page: Page, stand_in: StandIn) -> None:
    """Two errors within 30 seconds."""
    for n in (1, 2):
        await stand_in.until_opened(n)
        await until_live(page, n)
        stand_in.cut()
    await until_told(page, "state", "polling")
    await stand_in.until_streams(0)
