"""The pages of the reference: which there are, and how they are written and compared."""

import asyncio
import tempfile
from pathlib import Path

import asyncpg

from _generate import calls, commands, functions, metrics, options, problems, surface
from penstock import Penstock

FOLDER = Path(__file__).parent.parent / "reference"


async def render(dsn: str) -> dict[str, str]:
    """Every page by its name, of this code and a database with its schema."""
    conn = await asyncpg.connect(dsn)
    try:
        return {
            "python.md": surface.render(),
            "http.md": calls.render(),
            "cli.md": commands.render(),
            "settings.md": await options.render(conn),
            "sql.md": await functions.render(conn),
            "metrics.md": metrics.render(),
            "errors.md": problems.render(),
        }
    finally:
        await conn.close()


async def _write() -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-docs-") as home:
        app = Penstock(home=home, name="docs")
        try:
            await app.engine()
            pages = await render(await app.dsn())
        finally:
            await app.close()
    for name, text in pages.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def write() -> None:
    """Write the pages anew."""
    asyncio.run(_write())
