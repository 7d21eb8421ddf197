"""Every block of the documents is run, as a reader would; `pages.py` says how they are marked."""

import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from docs.pages import ROOT, documents, read_page
from docs.running import Reader
from support.cluster import MIGRATED, Cluster

PAGE_SECONDS = 300


@pytest.mark.timeout(PAGE_SECONDS)
@pytest.mark.parametrize("name", [str(path.relative_to(ROOT)) for path in documents()])
def test_page(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    page = read_page(ROOT / name)
    missing = [program for program in page.needs if shutil.which(program) is None]
    if missing and "CI" not in os.environ:
        pytest.skip(f"needs {', '.join(missing)}")
    assert not missing, "in CI a page that cannot run has failed"
    if not page.blocks or page.embedded:
        Reader(page, tmp_path).run()
        return
    cluster: Cluster = request.getfixturevalue("cluster")
    with ExitStack() as stack:
        databases = range(2 if page.two_databases else 1)
        names = [stack.enter_context(cluster.database(template=MIGRATED)) for _ in databases]
        dsns = [cluster.dsn(name) for name in names]
        Reader(page, tmp_path, *dsns).run()
        for dsn in dsns:
            with psycopg.connect(dsn) as conn:
                assert not conn.execute("select * from penstock.check()").fetchall()
