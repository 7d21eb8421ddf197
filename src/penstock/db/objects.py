"""Functions, views and triggers of the schema: load them from their files, drop what is left over.

Why it is done this way is told in migrate.py.
"""

import re
from collections.abc import Iterable, Sequence

import asyncpg

from penstock.db.script import Script, Statement

_CREATES = re.compile(r"create\s+or\s+replace\s+(?:function|procedure|view)\s+penstock\.(\w+)")

# Everything in the schema that files own. `place` is where the catalogue keeps the definition:
# replacing one always writes a new row there, so an unmoved row is a definition no file has.
_OWNED = """
select 'routine' as kind, p.oid, p.oid::regprocedure::text as name, p.proname as plain,
       p.ctid::text as place
from pg_proc p
where p.pronamespace = to_regnamespace('penstock')
union all
select 'view', c.oid, c.oid::regclass::text, c.relname, r.ctid::text
from pg_class c
join pg_rewrite r on r.ev_class = c.oid and r.rulename = '_RETURN'
where c.relnamespace = to_regnamespace('penstock') and c.relkind = 'v'
"""

_TRIGGERS_OF = """
select quote_ident(t.tgname) as name, t.tgrelid::regclass::text as relation
from pg_trigger t
join pg_class c on c.oid = t.tgrelid
where t.tgfoid = any ($1::oid[]) and not t.tgisinternal and t.tgparentid = 0
  and c.relnamespace = to_regnamespace('penstock')
"""


async def load(conn: asyncpg.Connection, scripts: Sequence[Script]) -> None:
    """Make the functions, views and triggers of the schema those of `scripts`, and no others."""
    before = {(row["oid"], row["place"]) for row in await conn.fetch(_OWNED)}
    # First without looking into bodies, since they name one another in any order; then, when all
    # are there, each body is checked, and an error still knows its file and line.
    await conn.execute("set local check_function_bodies = off")
    if await _replace_all(conn, scripts):
        await _replace_all(conn, scripts)  # makes again what had to go for a changed signature
    # Before bodies are looked into: beside its successor with one more argument, an older function
    # makes every call of the two ambiguous.
    owned = await conn.fetch(_OWNED)
    await _drop(conn, [row for row in owned if (row["oid"], row["place"]) in before])
    await conn.execute("set local check_function_bodies = on")
    await conn.execute("set local plpgsql.extra_errors = 'shadowed_variables'")
    for script in scripts:
        await script.run(conn)
    # Functions are executable by everyone unless told otherwise.
    await conn.execute("revoke all on all routines in schema penstock from public")


async def drop_all(conn: asyncpg.Connection) -> None:
    """Leave tables only."""
    await _drop(conn, await conn.fetch(_OWNED))


async def _replace_all(conn: asyncpg.Connection, scripts: Iterable[Script]) -> bool:
    """Run every statement; whether any of them had to clear its way."""
    cleared = [
        await _replace(conn, script, statement)
        for script in scripts
        for statement in script.statements()
    ]
    return any(cleared)


async def _replace(conn: asyncpg.Connection, script: Script, statement: Statement) -> bool:
    """Run one statement; where a changed signature forbids replacing, clear the way first."""
    try:
        try:
            async with conn.transaction():
                await conn.execute(statement.text)
        except (asyncpg.InvalidFunctionDefinitionError, asyncpg.InvalidTableDefinitionError):
            named = _CREATES.match(statement.text)
            if named is None:
                raise
            # With all views, for one of them may read what has to go.
            in_the_way = [
                row
                for row in await conn.fetch(_OWNED)
                if row["kind"] == "view" or row["plain"] == named[1]
            ]
            await _drop(conn, in_the_way)
            await conn.execute(statement.text)
            return True
    except asyncpg.PostgresError as error:
        raise script.failure(statement, error) from error
    return False


async def _drop(conn: asyncpg.Connection, rows: list[asyncpg.Record]) -> None:
    """Drop these without CASCADE: a user's own view on one of ours must stop us, not vanish."""
    views = [row["name"] for row in rows if row["kind"] == "view"]
    routines = [row for row in rows if row["kind"] == "routine"]
    for trigger in await conn.fetch(_TRIGGERS_OF, [row["oid"] for row in routines]):
        await conn.execute(f"drop trigger {trigger['name']} on {trigger['relation']}")
    # In one statement each, since they may refer to one another.
    if views:
        await conn.execute(f"drop view {', '.join(views)}")
    if routines:
        await conn.execute(f"drop routine {', '.join(row['name'] for row in routines)}")
