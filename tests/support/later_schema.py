"""This program's schema with one more migration, for tests of upgrades and downgrades."""

from dataclasses import replace

from penstock.db.schema.files import Migration, Schema, packaged
from penstock.db.schema.script import Script


def later_schema() -> Schema:
    """The schema of a next version, which has one more column."""
    now = packaged()
    name = f"{now.wanted + 1:04}_later"
    later = Migration(
        number=now.wanted + 1,
        name="later",
        up=(Script(f"{name}/up.sql", "alter table penstock.job add later text;"),),
        down=Script(f"{name}/down.sql", "alter table penstock.job drop later;"),
    )
    return replace(now, migrations=(*now.migrations, later))
