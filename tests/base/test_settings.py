"""Settings from the environment, and the parser of durations."""

from datetime import timedelta
from os import getpid
from pathlib import Path
from socket import gethostname

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.settings import Settings, duration, read_env_file
from penstock.errors import Invalid, Misconfigured


def test_with_nothing_set_the_database_is_embedded_in_the_working_folder(tmp_path: Path) -> None:
    settings = Settings.from_environment({}, tmp_path)
    assert settings.dsn is None
    assert settings.home == tmp_path / ".penstock"
    assert settings.log_level == "warning"


def test_the_environment_overrides_the_env_file(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("PENSTOCK_DSN=postgresql://file/x\nPENSTOCK_HOME=here\n")
    settings = Settings.from_environment({"PENSTOCK_DSN": "postgresql://environment/x"}, tmp_path)
    assert settings.dsn == "postgresql://environment/x"
    assert settings.home == tmp_path / "here"


def test_an_empty_value_counts_as_not_set(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("PENSTOCK_DSN=postgresql://file/x\n")
    settings = Settings.from_environment({"PENSTOCK_DSN": "", "PENSTOCK_HOME": ""}, tmp_path)
    assert settings.dsn is None
    assert settings.home == tmp_path / ".penstock"


def test_an_absolute_home_stays_where_it_is(tmp_path: Path) -> None:
    settings = Settings.from_environment({"PENSTOCK_HOME": "/srv/queue"}, tmp_path)
    assert settings.home == Path("/srv/queue")


def test_an_unknown_log_level_says_what_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="'loud'; it may be debug, info, warning, error"):
        Settings.from_environment({"PENSTOCK_LOG_LEVEL": "loud"}, tmp_path)


def test_the_log_format_is_text_by_default(tmp_path: Path) -> None:
    assert Settings.from_environment({}, tmp_path).log_format == "text"
    assert Settings.from_environment({"PENSTOCK_LOG_FORMAT": "JSON"}, tmp_path).log_format == "json"
    with pytest.raises(Misconfigured, match="PENSTOCK_LOG_FORMAT is 'xml'; it may be text, json"):
        Settings.from_environment({"PENSTOCK_LOG_FORMAT": "xml"}, tmp_path)


@pytest.mark.parametrize(
    ("value", "inline"),
    [("1", True), ("true", True), ("Yes", True), ("on", True), ("0", False), ("no", False)],
)
def test_inline_is_a_flag(tmp_path: Path, value: str, inline: bool) -> None:
    assert Settings.from_environment({"PENSTOCK_INLINE": value}, tmp_path).inline is inline
    assert not Settings.from_environment({}, tmp_path).inline


def test_frames_of_errors_are_kept_by_default(tmp_path: Path) -> None:
    assert Settings.from_environment({}, tmp_path).tracebacks
    assert not Settings.from_environment({"PENSTOCK_TRACEBACKS": "0"}, tmp_path).tracebacks


def test_a_wrong_value_of_inline_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="PENSTOCK_INLINE is 'maybe'; it may be 1, true"):
        Settings.from_environment({"PENSTOCK_INLINE": "maybe"}, tmp_path)


def test_a_worker_is_named_by_host_and_process_by_default(tmp_path: Path) -> None:
    """E5"""
    assert Settings.from_environment({}, tmp_path).worker_id == f"{gethostname()}-{getpid()}"
    assert Settings().worker_id == f"{gethostname()}-{getpid()}"
    named = Settings.from_environment({"PENSTOCK_WORKER_ID": "gpu 1"}, tmp_path)
    assert named.worker_id == "gpu 1"
    for wrong in ("a" * 201, "a\nb"):
        with pytest.raises(Misconfigured, match="PENSTOCK_WORKER_ID must be a name of at most"):
            Settings.from_environment({"PENSTOCK_WORKER_ID": wrong}, tmp_path)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("KEY=value", "value"),
        ("  KEY = value  ", "value"),
        ("export KEY=value", "value"),
        ("KEY=", ""),
        ("KEY=a=b", "a=b"),
        ("KEY=value # a comment", "value"),
        ("KEY=# a comment", ""),
        ("KEY=pass#word", "pass#word"),
        ("KEY='single # \\n quoted'", "single # \\n quoted"),
        ('KEY="double # quoted" # comment', "double # quoted"),
        (r'KEY="a \"b\" \\ \n"', 'a "b" \\ \n'),
    ],
)
def test_an_env_line_is_parsed_as_by_a_shell(tmp_path: Path, line: str, value: str) -> None:
    (tmp_path / ".env").write_text(f"# comment\n\n{line}\n")
    assert read_env_file(tmp_path / ".env") == {"KEY": value}


@pytest.mark.parametrize("line", ["sesame", "KEY='sesame", 'KEY="sesame" more', "1KEY=sesame"])
def test_a_broken_env_line_is_reported_by_number_and_not_quoted(tmp_path: Path, line: str) -> None:
    (tmp_path / ".env").write_text(f"GOOD=1\n{line}\n")
    with pytest.raises(Misconfigured, match="line 2") as caught:
        read_env_file(tmp_path / ".env")
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90s", 90),
        ("5m", 300),
        ("2h", 7_200),
        ("7d", 604_800),
        ("1.5h", 5_400),
        (" 10 s ", 10),
        ("45", 45),
        (45, 45),
        (0.25, 0.25),
        (0, 0),
        (timedelta(minutes=1), 60),
    ],
)
def test_durations_as_people_write_them(written: str | float | timedelta, seconds: float) -> None:
    assert duration(written, field="timeout") == timedelta(seconds=seconds)


WRONG_DURATIONS = ["", "soon", "forever", "-5m", "5 weeks", "1h30m", "1e9d", "999999999d"]
WRONG_TYPES: list[object] = [-1, 1e300, float("nan"), float("inf"), True, None, []]


@pytest.mark.parametrize("wrong", [*WRONG_DURATIONS, *WRONG_TYPES, "\N{ARABIC-INDIC DIGIT FIVE}s"])
def test_a_wrong_duration_names_its_field_and_what_is_allowed(wrong: object) -> None:
    with pytest.raises(Invalid, match="stale_after") as caught:
        duration(wrong, field="stale_after")  # type: ignore[arg-type]  # the point of the test
    assert caught.value.field == "stale_after"
    assert caught.value.code == "invalid_duration"
    assert '"90s"' in str(caught.value)


@given(st.text())
def test_the_duration_parser_raises_only_invalid(text: str) -> None:
    try:
        assert duration(text, field="any") >= timedelta(0)
    except Invalid as error:
        assert error.field == "any"  # noqa: PT017  # either answer is right


@pytest.mark.parametrize(
    ("name", "field", "default", "least"),
    [
        ("PENSTOCK_ACCOUNT_BYTES", "account_bytes", 8 * 2**20, 65_536),
        ("PENSTOCK_ACCOUNT_STREAMS", "account_streams", 100, 1),
        ("PENSTOCK_TOKEN_STREAMS", "token_streams", 20, 1),
    ],
)
def test_limits_of_callers_are_whole_numbers(
    tmp_path: Path, name: str, field: str, default: int, least: int
) -> None:
    """D6: with a default, and with a minimum below which nothing would work."""
    assert getattr(Settings.from_environment({}, tmp_path), field) == default
    assert getattr(Settings.from_environment({name: str(least)}, tmp_path), field) == least
    for wrong in (str(least - 1), "-1", "8MB", "1e9", "9" * 11, "\u0661"):
        with pytest.raises(Misconfigured, match=f"{name} is '{wrong}'; .* {least} or more"):
            Settings.from_environment({name: wrong}, tmp_path)
