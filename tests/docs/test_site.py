"""The site builds without a warning, its links hold, and it needs nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from _generate.site import on_page_markdown
from docs.pages import ROOT

# What a browser fetches by itself. A link that a person follows may lead anywhere.
_FETCHED = re.compile(
    r"<(?:script|img|iframe|source)[^>]+src=[\"']?([^\"' >]+)"
    r"|<link[^>]+href=[\"']?([^\"' >]+)[^>]*rel=[\"']?(?:stylesheet|preconnect|icon|preload)"
    r"|<link[^>]+rel=[\"']?(?:stylesheet|preconnect|icon|preload)[^>]+href=[\"']?([^\"' >]+)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_document_is_a_page_and_nothing_else_is(site: Path) -> None:
    wanted = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    found = {path.relative_to(site).with_suffix(".md") for path in site.rglob("*.html")}
    assert found - {Path("404.md")} == wanted
    assert not [*site.rglob("*.py"), *site.rglob("*.toml")]
    assert (site / "search" / "search_index.json").stat().st_size > 100_000


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    fetched = {
        address
        for path in site.rglob("*.html")
        for match in _FETCHED.findall(path.read_text(encoding="utf-8"))
        for address in match
        if address
    }
    assert any(address.endswith(".css") for address in fetched)
    assert [one for one in fetched if re.match(r"(?:[a-z]+:)?//", one)] == []
    sheets = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)\"']+", sheets) == []


def test_links_between_documents_hold_in_the_repository_too() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "check_links.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("[the map](../../ARCHITECTURE.md)", "the map (`ARCHITECTURE.md`)"),
        ("[ARCHITECTURE.md](../../ARCHITECTURE.md#layers)", "ARCHITECTURE.md"),
        ("[sql](../reference/sql.md#calls)", "[sql](../reference/sql.md#calls)"),
        ("[gone](../../no-such-file.md)", "[gone](../../no-such-file.md)"),
        ("![a picture](../../LICENSE)", "![a picture](../../LICENSE)"),
    ],
)
def test_links_out_of_the_site_become_words(written: str, shown: str) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="howto/deploy.md"))
    config = {"docs_dir": str(ROOT / "docs")}
    assert on_page_markdown(written, page=page, config=config) == shown
