"""The effective schema, under version control: a reviewer reads what a change does to it."""

import re
import subprocess
from pathlib import Path

import asyncpg
import pytest

from penstock.db.schema import migrations
from support.cluster import Cluster, wheel_binaries

SNAPSHOT = Path(__file__).with_name("schema.sql")

# Made by the calendar, not by a migration: they differ from day to day.
DATED = "penstock.*_[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]"
# Settings of the dump itself, lines that change with the program that wrote it, and the rights
# every function loses, which test_catalogue.py looks after.
NOISE = re.compile(
    r"^(--|SET |SELECT pg_catalog\.set_config|\\(un)?restrict |REVOKE .* FROM PUBLIC;).*\n",
    re.MULTILINE,
)
# Bodies have files of their own; here the signatures are of interest.
BODY = re.compile(r"\n    AS (\$\w*\$).*?\1", re.DOTALL)


def dump(dsn: str) -> str:
    """The schema in pg_dump's words, without what depends on the day or the version."""
    done = subprocess.run(
        [
            wheel_binaries() / "pg_dump",
            "--schema-only",
            "--no-owner",
            "--schema=penstock",
            f"--exclude-table={DATED}",
            dsn,
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    text = NOISE.sub("", BODY.sub("", done.stdout))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


@pytest.fixture(autouse=True)
def _on_the_embedded_version(cluster: Cluster) -> None:
    if cluster.major != 18:
        pytest.skip("pg_dump's words differ between versions; the snapshot is of 18")


def test_the_schema_is_the_one_in_the_snapshot(
    migrated: str, request: pytest.FixtureRequest
) -> None:
    found = dump(migrated)
    if request.config.getoption("--write-schema"):
        SNAPSHOT.write_text(found)
    assert found == SNAPSHOT.read_text(), "if that is what you mean, run `make schema`"


async def test_down_and_up_again_is_the_same_schema(migrated: str) -> None:
    """F10"""
    before = dump(migrated)
    conn = await asyncpg.connect(migrated)
    await migrations.down(conn, to=0)
    await migrations.up(conn)
    await conn.close()
    assert dump(migrated) == before


async def test_loading_the_functions_again_changes_nothing(migrated: str) -> None:
    before = dump(migrated)
    conn = await asyncpg.connect(migrated)
    await conn.execute("update penstock.schema_info set functions_checksum = null")
    assert (await migrations.up(conn)).functions_loaded
    await conn.close()
    assert dump(migrated) == before
