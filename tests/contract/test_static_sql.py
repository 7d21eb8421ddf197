"""SQL is text that somebody wrote: what comes from outside is a parameter of it."""

import ast
import re
from pathlib import Path

import pytest

import penstock

SRC = Path(penstock.__file__).parent
SENDS = {"execute", "executemany", "fetch", "fetchrow", "fetchval", "fetchmany", "_fetch"}
# As it begins, in lower case like all of ours; a sentence for people begins otherwise.
SQL = re.compile(
    r"\s*(select |with \w+ as |insert into |update \w+\.|delete from |set local |create \w+ |"
    r"alter \w+ |drop \w+ |grant \w+ on |revoke \w+ on |copy )"
)
# Where a statement is put together from names of ours, which cannot be parameters.
OWN_NAMES = {
    "db/connections/session_settings.py": "settings and values of a table of ours",
    "db/schema/objects.py": "names that the catalogue has quoted",
    "db/scratch.py": "databases for a while, by names that it makes up",
    "engine/doctor/data.py": "a length of time of ours",
    "engine/queries/json_texts.py": "which of our functions is called",
    "client/testing.py": "databases for tests, by names that it makes up",
}


def built(text: str) -> list[int]:
    """Lines with a statement that is put together from more than constants."""
    found = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.JoinedStr(values=[ast.Constant(value=str(begin)), *_]) if SQL.match(begin):
                if not all(_is_constant(one) for one in node.values):
                    found.append(node.lineno)
            case ast.Call(
                func=ast.Attribute(attr=name) | ast.Name(id=name),
                args=[
                    ast.BinOp(op=ast.Add() | ast.Mod())
                    | ast.Call(func=ast.Attribute(attr="format" | "join" | "replace")) as first,
                    *_,
                ],
            ):
                if name in SENDS:
                    found.append(first.lineno)
    return found


def _is_constant(part: ast.expr) -> bool:
    match part:
        case ast.Constant():
            return True
        case ast.FormattedValue(value=ast.Name(id=name)):
            return name.isupper()
    return False


def test_no_statement_is_put_together_from_values() -> None:
    """E14: nor from names, but in these files."""
    found = {
        path.relative_to(SRC).as_posix(): lines
        for path in sorted(SRC.rglob("*.py"))
        if (lines := built(path.read_text()))
    }
    assert found.keys() <= OWN_NAMES.keys()


@pytest.mark.parametrize(
    "code",
    [
        'conn.execute(f"select {x}")',
        'sql = f"select * from t where name = {x!r}"',
        'conn.fetch("select " + x)',
        'conn.fetchval("select %s" % x)',
        'conn.fetchrow("select {}".format(x))',
        'conn.execute(" ".join(parts))',
    ],
)
def test_each_way_to_put_one_together_is_seen(code: str) -> None:
    assert built(code) == [1]


@pytest.mark.parametrize(
    "code", ['conn.execute("select $1", x)', 'f"select {_TOLD} from t"', 'f"{x} jobs"']
)
def test_parameters_and_constants_are_no_fault(code: str) -> None:
    assert built(code) == []
