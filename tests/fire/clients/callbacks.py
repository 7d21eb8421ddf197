"""The outside functions: they receive dispatched jobs, and call back or forget to."""

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any

import httpx

from fire.world import World

POLL_SECONDS = 0.1
FORGETS = 0.01
TWICE = 0.2
LATE = 0.05
LATE_SECONDS = (10, 20)
SOON_SECONDS = (0.05, 2)
# As long as an attempt may take; a later report does not count.
TRY_SECONDS = 30.0


@dataclass
class Functions:
    world: World
    stop: asyncio.Event
    """From now on no function forgets to call back; in a short run none ever does."""
    over: asyncio.Event
    seen: dict[str, int] = field(default_factory=dict)

    async def run(self) -> None:
        path = self.world.folder / "handed.jsonl"
        chance = self.world.chance("functions")
        read = 0
        async with asyncio.TaskGroup() as calls:
            while not self.over.is_set():
                await asyncio.sleep(POLL_SECONDS)
                if not path.exists():
                    continue
                text = path.read_bytes()
                whole = text.rfind(b"\n") + 1
                for line in text[read:whole].splitlines():
                    handed = json.loads(line)
                    calls.create_task(self._call(handed, random.Random(chance.random())))
                read = whole

    async def _call(self, handed: dict[str, Any], chance: random.Random) -> None:
        calm = self.stop.is_set() or self.world.brief
        if not calm and chance.random() < FORGETS:
            return
        late = not calm and chance.random() < LATE
        await asyncio.sleep(chance.uniform(*(LATE_SECONDS if late else SOON_SECONDS)))
        if chance.random() < 0.3:
            await self._say(handed, chance, status="progress", progress={"done": 1, "total": 2})
        for _ in range(2 if chance.random() < TWICE else 1):
            await self._say(handed, chance, status="succeeded", result={"by": handed["attempt"]})

    async def _say(self, handed: dict[str, Any], chance: random.Random, **fields: Any) -> None:
        body = {"job_id": handed["job_id"], **fields}
        headers = {}
        if chance.random() < 0.5:
            body["token"] = handed["token"]
        else:
            headers["Authorization"] = f"Bearer {handed['token']}"
        loop = asyncio.get_running_loop()
        ends = loop.time() + TRY_SECONDS
        while loop.time() < ends and not self.over.is_set():
            url = chance.choice(self.world.urls) + handed["path"]
            try:
                answer = await self.world.http.post(url, json=body, headers=headers)
            except httpx.TransportError:
                pass
            else:
                if not answer.is_server_error:
                    assert answer.status_code == httpx.codes.OK, answer.text
                    [one] = answer.json()["results"]
                    self.seen[one["outcome"]] = self.seen.get(one["outcome"], 0) + 1
                    return
            await asyncio.sleep(chance.uniform(0.1, 0.5))
