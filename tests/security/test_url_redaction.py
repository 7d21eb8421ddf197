"""Addresses in libraries' messages: no key, user or password in them is stored with the job."""

import asyncio
import urllib.error
from email.message import Message

import aiohttp
import httpx
import pytest
import requests
import urllib3

from penstock.failures.outcome import MESSAGE_MAX
from penstock.models.handlers.exceptions import described
from penstock.security.redaction import TEXT_MAX, without_secrets
from penstock.worker.execution.raised import ChildError
from support.models import callers
from support.models.answering import answer, answering, closed_port

SECRET = "AIzaSECRET"  # noqa: S105  # looks like one

TEXTS = [
    ("for url 'https://h/v1/m?key=AIzaSECRET'\nFor more", "for url 'https://h/v1/m'\nFor more"),
    ("url=URL('https://u:AIzaSECRET@h:8/p#AIzaSECRET')", "url=URL('https://h:8/p')"),
    ("(see https://h/p?k=AIzaSECRET).", "(see https://h/p)."),
    ("https://AIzaSECRET@h", "https://h"),
    ("https://u:AIza@SECRET@h/p@q", "https://h/p@q"),
    ("https://h?AIzaSECRET", "https://h"),
    ("with url: /v1?key=AIzaSECRET (Caused by", "with url: /v1 (Caused by"),
    ("h.example.org/p?key=AIzaSECRET&x=1", "h.example.org/p"),
    ("postgresql://u:AIzaSECRET@h/db?sslmode=x", "postgresql://h/db"),
    ("a,https://a/p?k=AIzaSECRET,https://b/p?k=AIzaSECRET", "a,https://a/p"),
    ("is it this/that? Or #7 of a/b#c", "is it this/that? Or #7 of a/b#c"),
    ("what? 1/2=x", "what? 1/2=x"),
    ("", ""),
]


@pytest.mark.parametrize(("text", "kept"), TEXTS)
def test_an_address_keeps_host_and_path(text: str, kept: str) -> None:
    assert without_secrets(text) == kept
    assert without_secrets(kept) == kept


def test_a_long_text_is_not_cut_in_the_middle_of_an_address() -> None:
    padding = "https://h/?" + "x" * (TEXT_MAX - 40)
    cut = without_secrets(f"{padding} https://user:{SECRET * 9}@h/")
    assert cut == "https://h/"
    assert without_secrets("x" * 10 * TEXT_MAX) == ""
    assert len(described(ValueError("x y " * 9_000))) == MESSAGE_MAX


async def test_messages_of_libraries() -> None:
    errors: list[BaseException] = []
    async with answering(answer(403, {}, "")) as port:
        url = f"http://127.0.0.1:{port}/v1/m?key={SECRET}"
        async with httpx.AsyncClient(trust_env=False, verify=callers.TLS) as client:
            with pytest.raises(httpx.HTTPStatusError) as one:
                (await client.get(url)).raise_for_status()
        async with aiohttp.ClientSession(raise_for_status=True) as session:
            with pytest.raises(aiohttp.ClientResponseError) as two:
                await session.get(url)
        errors += [one.value, two.value]
    dead = f"http://127.0.0.1:{closed_port()}/v1/m?key={SECRET}"
    with pytest.raises(requests.ConnectionError) as three:
        await asyncio.to_thread(requests.get, dead, timeout=5, proxies={"http": ""})
    with pytest.raises(urllib3.exceptions.MaxRetryError) as four, urllib3.PoolManager() as pool:
        pool.request("GET", dead, retries=0)
    errors += [three.value, four.value, ChildError("ValueError", str(one.value))]
    for error in errors:
        assert SECRET in str(error)
        assert SECRET not in described(error)
        assert "/v1/m" in described(error)
    found = urllib.error.HTTPError("http://h/", 500, f"http://h/?{SECRET}", Message(), None)
    assert described(found) == "HTTPError: HTTP Error 500: http://h/"
