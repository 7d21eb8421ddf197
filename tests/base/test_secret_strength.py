"""Which secrets may be the root of all signatures: random ones, but none that people invent."""

import secrets
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.secret_strength import why_weak
from penstock.base.settings import Settings
from penstock.errors import Misconfigured
from penstock.security.roots import read_roots
from support.signing import NEXT_SECRET, SECRET

WEAK = [
    "changemechangeme",
    "a" * 16,
    "a" * 64,
    "changeme" * 8,
    "secretsecretsecretsecretsecretsecret",
    "PasswordpasswordPASSWORDpassword",
    "P@ssw0rd!P@ssw0rd!P@ssw0rd!P@ssw0rd!",
    "qwertyuiopasdfghjklzxcvbnm1234567890",
    "poiuytrewqlkjhgfdsamnbvcxz0987654321",
    "0123456789abcdef0123456789abcdef",
    "abcdefghijklmnopqrstuvwxyz0123456789",
    "zyxwvutsrqponmlkjihgfedcba9876543210",
    "00000000000000000000000000000001",
    "deadbeefdeadbeefdeadbeefdeadbeef",
    "abcabdabeabfabgabhabiabjabkablabmabn",
    "correct-horse-battery-staple-correct-horse",
    "CHANGE_ME_TO_A_LONG_RANDOM_SECRET_PLEASE",
    "your-256-bit-secret-your-256-bit-secret-here",
    "please-change-this-secret-before-going-to-production-1234",
    "MyCompanyProductionSecret2026-queue!!!",
    "the-operators-secret-of-this-installation",
]


@pytest.mark.parametrize("weak", WEAK)
def test_an_invented_secret_is_refused_and_not_quoted(tmp_path: Path, weak: str) -> None:
    with pytest.raises(Misconfigured, match=r"PENSTOCK_SECRET .*`openssl rand -hex 32`") as refused:
        Settings.from_environment({"PENSTOCK_SECRET": weak}, tmp_path)
    assert weak not in str(refused.value)


@given(st.binary(min_size=32, max_size=32))
def test_a_secret_made_as_the_message_advises_is_accepted(random: bytes) -> None:
    """One in 2^100 uniformly random secrets would be refused. These are chosen by a program that
    searches for counterexamples, so those with a pattern are left out."""
    if len(set(random)) > 24:
        assert why_weak(random.hex()) is None


@pytest.mark.parametrize("make", [secrets.token_hex, secrets.token_urlsafe])
def test_random_secrets_of_32_bytes_are_accepted(make: "type[str]") -> None:
    assert [made for made in (make(32) for _ in range(200)) if why_weak(made)] == []


@pytest.mark.parametrize("weak", ["changemechangeme", "changeme" * 8])
def test_a_weak_secret_is_refused_also_beside_a_strong_one(tmp_path: Path, weak: str) -> None:
    with pytest.raises(Misconfigured, match="value 2 of PENSTOCK_SECRET"):
        Settings.from_environment({"PENSTOCK_SECRET": f"{SECRET},{weak}"}, tmp_path)
    both = Settings.from_environment({"PENSTOCK_SECRET": f"{NEXT_SECRET}, {SECRET}"}, tmp_path)
    assert both.secrets == (NEXT_SECRET, SECRET)


@pytest.mark.parametrize("odd", [f"{SECRET} {SECRET}", f"ä{SECRET}", f"{SECRET},", ","])
def test_characters_that_a_header_cannot_have_are_refused(tmp_path: Path, odd: str) -> None:
    with pytest.raises(Misconfigured, match="PENSTOCK_SECRET"):
        Settings.from_environment({"PENSTOCK_SECRET": odd}, tmp_path)


def test_a_weak_secret_in_the_folder_of_the_embedded_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("changeme" * 8)
    with pytest.raises(Misconfigured, match=r"can be guessed.*remove the file"):
        read_roots(Settings(home=tmp_path))
    (tmp_path / "secret").unlink()
    assert why_weak(read_roots(Settings(home=tmp_path)).first) is None
