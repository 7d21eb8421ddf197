"""Everything that was asked for has a test, and docs/requirements.md says which."""

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from contract import requirements
from contract.requirements import Requirements

Claimed = Mapping[str, tuple[str, ...]]

SYSTEMS = {"M": 15, "E": 15, "S": 13, "F": 13, "G": 19, "D": 6}


@pytest.fixture(scope="module")
def asked() -> Requirements:
    return requirements.read(requirements.DATA.read_text())


@pytest.fixture(scope="module")
def claimed() -> Claimed:
    return requirements.claims(requirements.ROOT / "tests")


def test_every_behaviour_of_the_five_systems_is_there(asked: Requirements) -> None:
    wanted = [f"{letter}{n}" for letter, many in SYSTEMS.items() for n in range(1, many + 1)]
    assert list(asked.behaviours) == wanted
    assert list(asked.systems) == list(SYSTEMS)


def test_every_behaviour_is_proved(asked: Requirements, claimed: Claimed) -> None:
    assert faults(asked, claimed) == []


def test_no_test_claims_what_was_not_asked_for(asked: Requirements, claimed: Claimed) -> None:
    odd = {test: set(ids) - set(asked.behaviours) for test, ids in claimed.items()}
    assert {test: ids for test, ids in odd.items() if ids} == {}


def test_the_page_is_what_would_be_written(asked: Requirements, claimed: Claimed) -> None:
    told = "run `python tests/contract/requirements.py`, and read what it changed"
    assert requirements.PAGE.read_text() == requirements.page(asked, claimed), told


def test_differences_are_told_for_every_system_with_their_reason(asked: Requirements) -> None:
    described = SYSTEMS.keys() - {"D"}  # what no description asked for differs from none
    assert Counter(row["of"] for row in asked.different).keys() == described
    for row in (*asked.different, *asked.words):
        assert all(row.values()), row
    assert all(row["why"].endswith(".") for row in asked.different)


def faults(asked: Requirements, claimed: Claimed) -> list[str]:
    """What is wrong with the proofs, a sentence each."""
    found = []
    for one in asked.behaviours.values():
        if not one.proof:
            found.append(f"{one.id} has no proof")
        for test in one.proof:
            if test not in claimed:
                found.append(f"{one.id} names {test}, which is not there, or left out")
            elif one.id not in claimed[test]:
                found.append(f"{test} is named by {one.id}, and does not say so in its docstring")
    return found


Spoil = Callable[[dict[str, tuple[str, ...]]], object]


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda claimed: claimed.pop("tests/a.py::test_one"), "which is not there, or left out"),
        (lambda claimed: claimed.update({"tests/a.py::test_one": ("M2",)}), "does not say so"),
    ],
)
def test_a_proof_that_is_gone_or_changed_its_mind_is_seen(spoil: Spoil, told: str) -> None:
    asked = requirements.read(
        'words = []\ndifferent = []\n[systems]\nM = "marking"\n'
        '[M1]\nsays = "a"\nproof = ["tests/a.py::test_one"]\n'
    )
    claimed: dict[str, tuple[str, ...]] = {"tests/a.py::test_one": ("M1",)}
    assert faults(asked, claimed) == []
    spoil(claimed)
    assert [told in fault for fault in faults(asked, claimed)] == [True]


def test_ids_are_read_from_docstrings_of_tests_alone(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_a.py").write_text(
        '"""M1"""\n'
        'async def test_one():\n    """M2, R-S3, G14: not XM4, M5x or M-6."""\n'
        'def helper():\n    """M3"""\n'
        "class A:\n"
        '    def test_two(self):\n        """E1"""\n'
    )
    assert requirements.claims(tests) == {
        "tests/test_a.py::test_one": ("M2", "G14"),
        "tests/test_a.py::test_two": ("E1",),
    }


@pytest.mark.parametrize("mark", ["faults", "skip", "skip(reason='later')", "skipif(True)"])
@pytest.mark.parametrize(
    ("before", "inside", "left"),
    [
        ("@pytest.mark.{}\n", "", ["test_free"]),
        ("@pytest.mark.alone\n@pytest.mark.{}\n", "", ["test_free"]),
        ("", "    pytestmark = pytest.mark.{}\n", ["test_free"]),
        ("", "    pytestmark = [pytest.mark.alone, pytest.mark.{}]\n", ["test_free"]),
        ("pytestmark = pytest.mark.{}\n", "", []),
        ("pytestmark = [pytest.mark.alone, pytest.mark.{}]\n", "", []),
        (
            "@pytest.mark.alone\n",
            "    pytestmark = pytest.mark.timeout(9)\n",
            ["test_in", "test_free"],
        ),
    ],
)
def test_a_test_that_is_left_out_proves_nothing(
    tmp_path: Path, mark: str, before: str, inside: str, left: list[str]
) -> None:
    """Whether the mark is on it, on its class, or on its module."""
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_a.py").write_text(
        f"{before.format(mark)}class TestA:\n{inside.format(mark)}"
        '    def test_in(self):\n        """M1"""\n\n'
        'def test_free():\n    """M2"""\n'
    )
    (tests / "test_b.py").write_text(
        f'@pytest.mark.{mark}\nasync def test_marked():\n    """M3"""\n'
    )
    assert [name.rpartition("::")[2] for name in requirements.claims(tests)] == left
