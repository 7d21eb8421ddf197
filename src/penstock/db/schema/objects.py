"""Load the functions, views and triggers of the schema from their files; drop all others.

migrations.py explains why.
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

import asyncpg

from penstock.db.schema.script import Script, Statement

_ROUTINE = re.compile(r"create\s+or\s+replace\s+(?:function|procedure)\s")
_VIEW = re.compile(r"create\s+or\s+replace\s+view\s+penstock\.(\w+)")
_TRIGGER = re.compile(r"create\s+or\s+replace\s+trigger\s")
_CREATES = re.compile(r"create\s+or\s+replace\s+(?:function|procedure|view)\s+penstock\.(\w+)")

# Everything in the schema that files define. `location` is the position of the definition's row in
# the catalogue: replacing an object writes a new row, so an unmoved row is in no file.
_OWNED = """
select 'routine' as kind, p.oid, p.oid::regprocedure::text as name, p.proname as plain,
       p.ctid::text as location
from pg_proc p
where p.pronamespace = to_regnamespace('penstock')
union all
select 'view', c.oid, c.oid::regclass::text, c.relname, r.ctid::text
from pg_class c
join pg_rewrite r on r.ev_class = c.oid and r.rulename = '_RETURN'
where c.relnamespace = to_regnamespace('penstock') and c.relkind = 'v'
"""

# Views of the schema that equal the temporary view with the same name.
_SAME_VIEWS = """
select c.relname as name
from pg_class c
join pg_class t on t.relname = c.relname and t.relkind = 'v'
  and t.relnamespace = pg_my_temp_schema()
where c.relnamespace = to_regnamespace('penstock') and c.relkind = 'v'
  and pg_get_viewdef(c.oid) = pg_get_viewdef(t.oid)
  and c.reloptions is not distinct from t.reloptions
"""

_TRIGGERS = """
select pg_get_triggerdef(t.oid, true) as text
from pg_trigger t
join pg_class c on c.oid = t.tgrelid
where c.relnamespace = to_regnamespace('penstock')
  and not t.tgisinternal and t.tgparentid = 0 and t.tgenabled = 'O'
"""

# The roles that may call a routine to be dropped, and the remaining routines with its name.
_HEIRS = """
select heir.oid::regprocedure::text as name, quote_ident(r.rolname) as role
from pg_proc gone
cross join lateral aclexplode(gone.proacl) a
join pg_roles r on r.oid = a.grantee and r.oid <> gone.proowner
join pg_proc heir on heir.pronamespace = gone.pronamespace and heir.proname = gone.proname
  and heir.prokind = gone.prokind and heir.oid <> all ($1::oid[])
where gone.oid = any ($1::oid[])
"""

_TRIGGERS_OF = """
select quote_ident(t.tgname) as name, t.tgrelid::regclass::text as relation
from pg_trigger t
join pg_class c on c.oid = t.tgrelid
where t.tgfoid = any ($1::oid[]) and not t.tgisinternal and t.tgparentid = 0
  and c.relnamespace = to_regnamespace('penstock')
"""


class Loading:
    """Replaces the functions, views and triggers of the schema by those of `scripts`, in two steps.

    `begin` touches no table, so it blocks no session. `end` locks the objects that it changes until
    the commit. So it is short, and it leaves unchanged views and triggers alone, because replacing
    one blocks all sessions that use its table.
    """

    def __init__(self, conn: asyncpg.Connection, scripts: Sequence[Script]) -> None:
        self._conn = conn
        self._all = [(script, statement) for script in scripts for statement in script.statements()]
        self._routines = [each for each in self._all if _ROUTINE.match(each[1].text)]
        self._before: set[tuple[int, str]] | None = None
        self._loaded: set[Statement] = set()

    async def begin(self) -> None:
        """Load the routines that fit the present tables; `end` loads the rest."""
        self._before = await self._definitions()
        # Bodies are not checked yet: they name each other, and tables, in any order.
        await self._conn.execute("set local check_function_bodies = off")
        for _, statement in self._routines:
            with suppress(asyncpg.PostgresError):
                async with self._conn.transaction():
                    await self._conn.execute(statement.text)
                    self._loaded.add(statement)

    async def end(self) -> None:
        """Load the rest, drop objects that no file defines, and check the bodies.

        If it fails and is rolled back, it may be called again.
        """
        conn = self._conn
        before = await self._definitions() if self._before is None else self._before
        await conn.execute("set local check_function_bodies = off")
        kept = await _unchanged(conn, [s for _, s in self._all])
        left = [each for each in self._all if each[1] not in self._loaded | kept]
        if await _replace_all(conn, left):
            kept = set()
            # Create again the objects that were dropped for a changed signature.
            if await _replace_all(conn, self._all):
                await _replace_all(conn, self._all)
        # Before bodies are checked: an older function beside its successor with one more argument
        # makes every call ambiguous.
        views = {named[1] for statement in kept if (named := _VIEW.match(statement.text))}
        owned = [row for row in await conn.fetch(_OWNED) if row["plain"] not in views]
        over = [row for row in owned if (row["oid"], row["location"]) in before]
        # A role that may call a function may call its successor; else an upgrade would stop it.
        for heir in await conn.fetch(_HEIRS, [row["oid"] for row in over]):
            await conn.execute(f"grant execute on routine {heir['name']} to {heir['role']}")
        await _drop(conn, over)
        await conn.execute("set local check_function_bodies = on")
        await conn.execute("set local plpgsql.extra_errors = 'shadowed_variables'")
        await self._check_bodies()
        # By default every role may execute a function.
        await conn.execute("revoke all on all routines in schema penstock from public")

    async def _check_bodies(self) -> None:
        """Check the bodies of all routines.

        All in one statement, because other sessions wait; after an error one by one, to report the
        file and line.
        """
        try:
            async with self._conn.transaction():
                await self._conn.execute(_at_once(s for _, s in self._routines))
        except asyncpg.PostgresError:
            for script, statement in self._routines:
                await script.run_statement(self._conn, statement)

    async def _definitions(self) -> set[tuple[int, str]]:
        return {(row["oid"], row["location"]) for row in await self._conn.fetch(_OWNED)}


async def drop_all(conn: asyncpg.Connection) -> None:
    """Drop all routines, views and triggers; keep the tables."""
    await _drop(conn, await conn.fetch(_OWNED))


async def _unchanged(conn: asyncpg.Connection, statements: Iterable[Statement]) -> set[Statement]:
    """Return the statements whose views and triggers exist and are identical."""
    views = {
        named[1]: statement for statement in statements if (named := _VIEW.match(statement.text))
    }
    triggers = {
        _plain(statement.text): statement
        for statement in statements
        if _TRIGGER.match(statement.text)
    }
    beside_them = [
        Statement(_VIEW.sub(rf"create temporary view {name}", statement.text), statement.line)
        for name, statement in views.items()
    ]
    # Each view is created a second time, because only Postgres knows the text it would store.
    beside = conn.transaction()
    await beside.start()
    try:
        await conn.execute(_at_once(beside_them))
        same = {views[row["name"]] for row in await conn.fetch(_SAME_VIEWS)}
    except asyncpg.PostgresError:
        same = set()  # a view is new, or temporary views are forbidden: replace all
    finally:
        await beside.rollback()
    there = [_plain(row["text"]) for row in await conn.fetch(_TRIGGERS)]
    return same | {triggers[text] for text in there if text in triggers}


def _at_once(statements: Iterable[Statement]) -> str:
    return ";\n".join(statement.text for statement in statements)


def _plain(trigger: str) -> tuple[str, tuple[str, ...]]:
    """Normalise a statement like Postgres does; quoted parts stay unchanged."""
    words = " ".join(trigger.lower().replace("or replace ", "", 1).rstrip(";").split())
    return words, tuple(re.findall(r"'[^']*'", trigger))


async def _replace_all(
    conn: asyncpg.Connection, statements: Iterable[tuple[Script, Statement]]
) -> bool:
    """Run every statement; return whether any of them dropped other objects first."""
    cleared = [await _replace(conn, script, statement) for script, statement in statements]
    return any(cleared)


async def _replace(conn: asyncpg.Connection, script: Script, statement: Statement) -> bool:
    """Run one statement; if a changed signature prevents replacing, drop the old object first.

    Returns whether it dropped objects.
    """
    try:
        try:
            async with conn.transaction():
                await conn.execute(statement.text)
        except (asyncpg.InvalidFunctionDefinitionError, asyncpg.InvalidTableDefinitionError):
            named = _CREATES.match(statement.text)
            if named is None:
                raise
            # With all views, because a view may depend on the object.
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
    """Drop objects without CASCADE: a user's view on one must cause an error, not be dropped."""
    views = [row["name"] for row in rows if row["kind"] == "view"]
    routines = [row for row in rows if row["kind"] == "routine"]
    for trigger in await conn.fetch(_TRIGGERS_OF, [row["oid"] for row in routines]):
        await conn.execute(f"drop trigger {trigger['name']} on {trigger['relation']}")
    # One statement for all of a type, because they may refer to each other.
    if views:
        await conn.execute(f"drop view {', '.join(views)}")
    if routines:
        await conn.execute(f"drop routine {', '.join(row['name'] for row in routines)}")
