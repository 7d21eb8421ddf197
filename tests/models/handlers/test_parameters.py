"""A handler's signature declares its fields; every error names the field."""

import enum
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.encoding.encode import encode
from penstock.errors import Invalid, Misconfigured
from penstock.models.handlers.job import Job
from penstock.models.handlers.parameters import Parameters

if TYPE_CHECKING:
    from fractions import Fraction


class Level(enum.Enum):
    EASY = "easy"


class Rubric(pydantic.BaseModel):
    title: str
    points: Annotated[int, pydantic.Field(ge=0)] = pydantic.Field(alias="pts", default=0)


@dataclass
class Page:
    number: int


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]


class Picky(pydantic.BaseModel):
    code: str

    @pydantic.field_validator("code")
    @classmethod
    def refuse(cls, value: str) -> str:
        raise ValueError(f"{value} is not good")


ROUND: list[Any] = []
ROUND.append(ROUND)
DEEP: list[Any] = []
for _ in range(5_000):
    DEEP = [DEEP]


def of(function: Callable[..., Any]) -> Parameters:
    return Parameters.of(function, "mark")


def refusal(function: Callable[..., Any], **payload: Any) -> Invalid:
    with pytest.raises(Invalid) as caught:
        of(function).check(payload)
    assert caught.value.code == "invalid_payload"
    return caught.value


async def mark(answer: str, level: int = 1, *, job: Job, tags: list[str] | None = None) -> None: ...


def test_fields_are_the_parameters_without_the_job() -> None:
    parameters = of(mark)
    assert parameters.names == ("answer", "level", "tags")
    assert parameters.job_parameter == "job"
    assert parameters.defaults == {"level": 1, "tags": None}


def test_the_job_parameter_is_recognised_by_its_type_not_its_name() -> None:
    def optional(start: Job | None = None) -> None: ...
    def later(start: "Job") -> None: ...
    def none(answer: str) -> None: ...

    assert of(optional).job_parameter == "start"
    assert of(later).job_parameter == "start"
    assert of(none).job_parameter is None


def test_missing_fields_stay_missing() -> None:
    assert of(mark).check({"answer": "a"}) == {"answer": "a"}
    assert of(mark).load({"answer": "a"}) == {"answer": "a"}


def test_a_handler_may_have_no_parameters() -> None:
    def nothing() -> None: ...

    assert of(nothing).check({}) == {}
    assert "is not a field; known are none" in str(refusal(nothing, n=1))


def test_a_parameter_without_a_type_accepts_any_json() -> None:
    def anything(value) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001

    assert of(anything).check({"value": {"a": [1, None]}}) == {"value": {"a": [1, None]}}


def test_values_are_converted_to_json_and_back_to_their_types() -> None:
    def rich(
        *,
        at: datetime,
        wait: timedelta,
        number: uuid.UUID,
        price: Decimal,
        level: Level,
        rubric: Rubric,
        pages: list[Page],
        pair: tuple[int, str],
        tags: set[str],
        file: Path,
        raw: bytes,
        schema: dict[int, str],
    ) -> None: ...

    given: dict[str, Any] = {
        "at": datetime(2030, 1, 1, tzinfo=UTC),
        "wait": timedelta(minutes=1),
        "number": uuid.UUID(int=5),
        "price": Decimal("1.50"),
        "level": Level.EASY,
        "rubric": Rubric(title="t", pts=3),
        "pages": [Page(1)],
        "pair": (1, "a"),
        "tags": {"x"},
        "file": Path("a/b"),
        "raw": b"text",
        "schema": {1: "a"},
    }
    payload = of(rich).check(given)
    assert payload["at"] == "2030-01-01T00:00:00Z"
    assert payload["rubric"] == {"title": "t", "pts": 3}
    assert payload["pair"] == [1, "a"]
    assert of(rich).load(payload) == given


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ({}, "answer", "answer of job kind mark is required"),
        ({"answer": 5}, "answer", "answer of job kind mark must be a valid string"),
        ({"answer": "a", "level": "sesame"}, "level", "level of job kind mark must be a valid in"),
        ({"answer": "a", "levle": 1}, "levle", "is not a field; known are answer, level, tags"),
        ({"answer": "a", "job": 1}, "job", "is not a field"),
        ({"answer": "a", "tags": ["x", 5]}, "tags.1", "tags.1 of job kind mark must be a valid"),
    ],
)
def test_a_wrong_payload_names_the_field(given: dict[str, Any], field: str, message: str) -> None:
    error = refusal(mark, **given)
    assert error.field == field
    assert message in str(error)
    assert "sesame" not in str(error)


def test_all_faults_are_reported_and_the_first_names_the_kind() -> None:
    error = refusal(mark, level="x", other=1)
    first, second, third = str(error).split("; ", 2)
    assert first == "answer of job kind mark is required"
    assert second.startswith("level must be")
    assert third.startswith("other is not a field; known are answer")
    assert [fault["field"] for fault in error.members["faults"]] == ["answer", "level", "other"]


def test_no_value_is_ever_in_a_message() -> None:
    def picky(
        *,
        code: Picky | None = None,
        animal: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")] | None = None,
        number: uuid.UUID | None = None,
        at: datetime | None = None,
        text: pydantic.Json[int] | None = None,
        site: pydantic.HttpUrl | None = None,
        word: Annotated[str, pydantic.Field(pattern="^a+$")] = "a",
    ) -> None: ...

    for payload in (
        {"code": {"code": "sesame"}},
        {"animal": {"kind": "sesame"}},
        {"number": "sesame"},
        {"at": "sesame"},
        {"text": "sesame"},
        {"site": "sesame"},
        {"word": "sesame"},
    ):
        error = refusal(picky, **payload)
        text = f"{error} {error.members} {error.field}"
        assert not any(part in text for part in ("sesame", "found `s`", "`z`")), text
        assert error.__cause__ is None
        assert next(iter(payload)) in str(error)


def test_an_invalid_model_is_refused_with_the_path_of_the_fault() -> None:
    def take(rubric: Rubric) -> None: ...

    error = refusal(take, rubric={"title": "t", "pts": -1})
    assert error.field == "rubric.pts"
    assert "greater than or equal to 0" in str(error)


@pytest.mark.parametrize("value", [object(), b"\xff", [object()], lambda: 1, ROUND, DEEP])
def test_a_value_that_is_not_json_is_refused_at_submit(value: object) -> None:
    def take(value: Any) -> None: ...

    error = refusal(take, value=value)
    assert error.field == "value"
    assert "cannot be stored as JSON" in str(error)
    if type(value) is object:
        assert str(error).endswith("it is or holds an object")


def test_nan_and_infinity_are_refused() -> None:
    def take(value: float) -> None: ...

    assert "finite" in str(refusal(take, value=float("nan")))


def test_nan_does_not_become_null() -> None:
    """The engine refuses them, for every caller."""

    def take(value: Any) -> None: ...

    payload = of(take).check({"value": [float("nan")]})
    with pytest.raises(Invalid, match="payload is not JSON"):
        encode(payload, "payload")


def test_a_type_that_cannot_read_its_own_json_is_refused_at_submit() -> None:
    def take(number: Annotated[uuid.UUID, pydantic.Strict()]) -> None: ...

    assert refusal(take, number=uuid.uuid4()).field == "number"


def test_a_payload_that_is_not_a_dict_is_refused() -> None:
    with pytest.raises(Invalid, match="payload of job kind mark must be a dict"):
        of(mark).check([1])  # type: ignore[arg-type]  # the point of the test


def test_the_error_has_the_index_of_the_row() -> None:
    with pytest.raises(Invalid) as caught:
        of(mark).check({}, index=7)
    assert caught.value.members["index"] == 7


def positional(a: str, /) -> None: ...
def stars(*names: str) -> None: ...
def keywords(**names: str) -> None: ...
def twice(a: Job, b: Job) -> None: ...
def untyped(job) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001
def hidden(a: int, n: "Fraction") -> None: ...
def broken(n: "int[") -> None: ...  # type: ignore[valid-type]  # noqa: F722
def odd(a: int, call: Callable[[], None]) -> None: ...
def secret(name: str, key: pydantic.SecretStr) -> None: ...


class Thing:
    pass


def arbitrary(a: int, thing: Thing) -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (positional, "parameter a: str of job kind mark .* positional-only; .* remove the /"),
        (stars, "parameter .names: str of job kind mark .* name the fields instead"),
        (keywords, "parameter ..names: str .* take a dict in one of them"),
        (twice, "takes the job twice, as a and as b"),
        (untyped, "parameter job of job kind mark .* write `job: Job`"),
        (hidden, "parameter n of job kind mark .* Fraction must be imported at the top"),
        (broken, "type of parameter n of job kind mark .* cannot be read"),
        (odd, "parameter call of job kind mark .* cannot be stored as JSON"),
        (secret, "parameter key of job kind mark .* stored as asterisks"),
        (arbitrary, "parameter thing of job kind mark .* use plain types, dataclasses"),
        (print, "use a plain function|takes positions"),
    ],
)
def test_a_parameter_that_cannot_be_a_field_is_refused_at_declaration(
    function: Callable[..., Any], message: str
) -> None:
    with pytest.raises(Misconfigured, match=message):
        of(function)


def test_the_error_names_file_and_line_of_the_handler() -> None:
    with pytest.raises(Misconfigured, match=rf"{Path(__file__).name}:\d+"):
        of(stars)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=8) | st.sampled_from(["answer", "level", "tags"]), JSON))
def test_any_payload_is_accepted_or_refused_by_field(payload: dict[str, Any]) -> None:
    parameters = of(mark)
    try:
        checked = parameters.check(payload)
    except Invalid as error:
        assert error.field is not None  # noqa: PT017  # both outcomes are right
    else:
        assert set(checked) == set(payload)
        assert parameters.check(checked) == checked
