"""Tables that fit, texts that cannot move the cursor, times in a suitable unit."""

from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any

import pytest

from penstock.base.wording import age, between, number, seconds
from penstock.cli.output.render import Column, clean, table

COLUMNS = (
    Column("ID", itemgetter(0)),
    Column("NAME", itemgetter(1), least=4),
    Column("N", itemgetter(2), right=True, drop=1),
    Column("EXTRA", itemgetter(3), drop=2),
)
ROWS: list[list[Any]] = [["a" * 8, "long name here", 7, "more"], ["b" * 8, None, 12, ""]]


def drawn(width: int | None) -> list[str]:
    return [line.plain for line in table(COLUMNS, ROWS, width=width)]


def test_without_a_width_a_table_is_whole() -> None:
    assert drawn(None) == [
        "ID        NAME             N  EXTRA",
        "aaaaaaaa  long name here   7  more",
        "bbbbbbbb  -               12  -",
    ]


def test_on_a_narrow_terminal_columns_are_cut_or_left_out() -> None:
    assert drawn(35) == drawn(None)
    assert drawn(30)[1] == "aaaaaaaa  long nam…   7  more"
    assert drawn(20)[1] == "aaaaaaaa  long …   7"
    assert drawn(15)[1] == "aaaaaaaa  long…"
    assert drawn(1)[1] == "aaaaaaaa  lon…", "the remaining columns are not cut further"
    for width in range(14, 40):
        assert all(len(line) <= width for line in drawn(width))


def test_empty_optional_columns_are_not_shown_on_a_terminal() -> None:
    rows = [["a", "b", None, ""]]
    assert [line.plain for line in table(COLUMNS, rows, width=80)] == ["ID  NAME", "a   b"]


def test_wide_characters_keep_their_columns() -> None:
    columns = (Column("A", itemgetter(0), least=4), Column("B", itemgetter(1)))
    lines = table(columns, [["日本語", "x"], ["abc", "y"]], width=8)
    assert [line.plain for line in lines] == ["A      B", "日本…  x", "abc    y"]
    assert {line.cell_len for line in lines} == {8}


def test_no_text_can_move_the_cursor_or_break_the_line() -> None:
    assert clean("a\x1b[31mb\nc\r\x07\u202ed\x9b") == "a [31mb c   d "
    assert clean(None) == clean("") == "-"
    assert clean(0) == "0"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (0, "0 s"),
        (0.0042, "4 ms"),
        (0.5, "500 ms"),
        (1.25, "1.2 s"),
        (7, "7 s"),
        (59.6, "60 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7_300, "2 h"),
        (172_800, "2 d"),
    ],
)
def test_a_length_of_time_is_shown_in_a_suitable_unit(
    value: float | None, expected: str | None
) -> None:
    assert seconds(value) == expected


def test_moments_are_shown_as_ages() -> None:
    now = datetime.now(UTC)
    assert age((now - timedelta(minutes=5)).isoformat()) == "5 min"
    assert age((now + timedelta(minutes=5)).isoformat()) == "0 s", "the server's clock is ahead"
    assert age(None) is None
    assert between("2026-01-01T00:00:00Z", "2026-01-01T00:00:03Z") == "3 s"
    assert between("2026-01-01T00:00:00Z", None) is None


@pytest.mark.parametrize(
    ("value", "expected"), [(3, "3"), (3.0, "3"), (2.5, "2.5"), (1e6, "1000000")]
)
def test_whole_numbers_have_no_fraction(value: float, expected: str) -> None:
    assert number(value) == expected
