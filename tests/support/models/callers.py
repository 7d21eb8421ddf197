"""One call of a model by each library that apps use, without retries."""

import asyncio
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable

import aiohttp
import anthropic
import httpx
import httpx2
import ollama
import openai
import requests

PATIENCE = 20.0
"""Seconds to wait for each part of an answer; a test of silence waits less."""

TLS = ssl.create_default_context()  # made once: it takes longer than a call

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


async def by_httpx(base: str, patience: float = PATIENCE) -> None:
    timeout = httpx.Timeout(PATIENCE, read=patience)
    async with httpx.AsyncClient(timeout=timeout, trust_env=False, verify=TLS) as client:
        (await client.post(f"{base}/v1/chat/completions", json=BODY)).raise_for_status()


async def by_httpx2(base: str, patience: float = PATIENCE) -> None:
    timeout = httpx2.Timeout(PATIENCE, read=patience)
    async with httpx2.AsyncClient(timeout=timeout, trust_env=False, verify=TLS) as client:
        (await client.post(f"{base}/v1/chat/completions", json=BODY)).raise_for_status()


async def by_aiohttp(base: str, patience: float = PATIENCE) -> None:
    timeout = aiohttp.ClientTimeout(sock_connect=PATIENCE, sock_read=patience)
    async with (
        aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session,
        session.post(f"{base}/v1/chat/completions", json=BODY) as response,
    ):
        await response.read()


async def by_requests(base: str, patience: float = PATIENCE) -> None:
    def call() -> None:
        with requests.Session() as session:
            session.trust_env = False
            url = f"{base}/v1/chat/completions"
            session.post(url, json=BODY, timeout=(PATIENCE, patience)).raise_for_status()

    await asyncio.to_thread(call)


async def by_urllib(base: str, patience: float = PATIENCE) -> None:
    def call() -> None:
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=TLS)
        )
        data = json.dumps(BODY).encode()
        try:
            url = f"{base}/v1/chat/completions"
            with opener.open(url, data=data, timeout=patience) as response:
                response.read()
        except urllib.error.HTTPError as error:
            error.close()  # it is the response, with its socket
            raise

    await asyncio.to_thread(call)


async def by_openai(base: str, patience: float = PATIENCE, *, stream: bool = False) -> None:
    async with openai.AsyncOpenAI(
        api_key="key",
        base_url=f"{base}/v1",
        max_retries=0,
        timeout=httpx2.Timeout(PATIENCE, read=patience),
        http_client=httpx2.AsyncClient(trust_env=False, verify=TLS),
    ) as client:
        if not stream:
            await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hello"}]
            )
            return
        async for _ in await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hello"}], stream=True
        ):
            pass


async def by_anthropic(base: str, patience: float = PATIENCE, *, stream: bool = False) -> None:
    async with anthropic.AsyncAnthropic(
        api_key="key",
        base_url=base,
        max_retries=0,
        timeout=httpx2.Timeout(PATIENCE, read=patience),
        http_client=httpx2.AsyncClient(trust_env=False, verify=TLS),
    ) as client:
        if not stream:
            await client.messages.create(
                model="m", max_tokens=9, messages=[{"role": "user", "content": "hello"}]
            )
            return
        async for _ in await client.messages.create(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "hello"}], stream=True
        ):
            pass


async def by_ollama(base: str, patience: float = PATIENCE, *, stream: bool = False) -> None:
    timeout = httpx.Timeout(PATIENCE, read=patience)
    client = ollama.AsyncClient(base, timeout=timeout, trust_env=False, verify=TLS)
    try:
        if not stream:
            await client.chat("m", [{"role": "user", "content": "hello"}])
            return
        async for _ in await client.chat("m", [{"role": "user", "content": "hello"}], stream=True):
            pass
    finally:
        await client._client.aclose()


CALLERS: dict[str, Callable[[str, float], Awaitable[None]]] = {
    "httpx": by_httpx,
    "httpx2": by_httpx2,
    "aiohttp": by_aiohttp,
    "requests": by_requests,
    "urllib": by_urllib,
    "openai": by_openai,
    "anthropic": by_anthropic,
    "ollama": by_ollama,
}
