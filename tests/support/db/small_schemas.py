"""Small schemas for tests of the migration runner, and a folder to write more of them."""

from pathlib import Path

import asyncpg

from penstock.db.schema.files import Schema, read

ONE = {
    "migrations/0001_jobs/up.sql": "create table penstock.job (id int primary key, note text);",
    "migrations/0001_jobs/down.sql": "drop table penstock.job;",
    "functions/base/clock.sql": """
        create or replace function penstock.clock() returns timestamptz
        language sql stable as $$ select penstock.zone_of(clock_timestamp()) $$;
    """,
    "functions/base/export.sql": """
        create or replace function penstock.export_jobs() returns setof jsonb
        language sql as $$ select to_jsonb(j) from penstock.job j order by id $$;
        create or replace function penstock.import_job(p_job jsonb) returns boolean
        language plpgsql as $$
        begin
          insert into penstock.job values ((p_job ->> 'id')::int, p_job ->> 'note')
          on conflict do nothing;
          return found;
        end $$;
    """,
    "functions/base/later.sql": """
        create or replace function penstock.zone_of(p_at timestamptz) returns timestamptz
        language sql immutable as $$ select p_at $$;
    """,
    "functions/base/views.sql": """
        create or replace view penstock.totals as
        select count(*) as jobs, penstock.clock() as at from penstock.job;
    """,
}
TWO = {
    **ONE,
    "migrations/0002_owner/up.sql": "alter table penstock.job add owner text;",
    "migrations/0002_owner/down.sql": "alter table penstock.job drop owner;",
    "functions/base/views.sql": """
        create or replace view penstock.totals as
        select owner, count(*) as jobs from penstock.job group by owner;
    """,
}


class Folder:
    """Schemas written for one test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = 0

    def __call__(self, files: dict[str, str]) -> Schema:
        self.written += 1
        root = self.path / str(self.written)
        for sub in ("migrations", "functions"):
            (root / sub).mkdir(parents=True)
        for name, text in files.items():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_text(text)
        return read(root)


async def names(conn: asyncpg.Connection) -> set[str]:
    rows = await conn.fetch(
        "select relname as name from pg_class where relnamespace = to_regnamespace('penstock')"
        " and relkind in ('r', 'v') union all"
        " select proname from pg_proc where pronamespace = to_regnamespace('penstock')"
    )
    return {row["name"] for row in rows}
