"""Watchers of live streams, which resume after the last event when the connection breaks."""

import asyncio
import json
from dataclasses import dataclass

import httpx

from fire.clients.wanted import Known
from fire.logs import Sight
from fire.world import World

FINISHED = ("succeeded", "failed", "cancelled")
AGAIN_SECONDS = (0.1, 1.0)
# A stream sends a sign of life every 15 s.
SILENT_SECONDS = 25.0


@dataclass
class Watcher:
    world: World
    name: str
    known: Known
    stop: asyncio.Event

    async def watch(self) -> None:
        """Watch one job after the other, each until it has finished."""
        chance = self.world.chance(self.name)
        while not self.stop.is_set():
            await asyncio.sleep(chance.uniform(*AGAIN_SECONDS))
            if not self.known.jobs:
                continue
            job, _ = self.known.jobs[-1]
            last: str | None = None
            while True:
                last, status = await self._listen(job, chance.choice(self.world.urls), last)
                if status in FINISHED:
                    self.world.log.write(
                        Sight(watcher=self.name, job=job, event="done", status=status)
                    )
                    break
                await asyncio.sleep(chance.uniform(*AGAIN_SECONDS))

    async def _listen(self, job: str, url: str, last: str | None) -> tuple[str | None, str | None]:
        """Read until the stream ends; return the last id and the last state."""
        status: str | None = None
        headers = {} if last is None else {"Last-Event-ID": last}
        fields: dict[str, str] = {}
        try:
            async with (
                self.world.client(url) as client,
                client.stream(
                    "GET", f"/v1/jobs/{job}/events", headers=headers, timeout=SILENT_SECONDS
                ) as response,
            ):
                if response.status_code != httpx.codes.OK:
                    return last, None
                async for line in response.aiter_lines():
                    if line:
                        name, _, value = line.partition(": ")
                        fields[name] = value
                        continue
                    if "event" in fields:
                        last = fields.get("id", last)
                        status = self._saw(job, fields) or status
                    fields = {}
        except (httpx.TransportError, httpx.StreamError):
            pass
        return last, status

    def _saw(self, job: str, fields: dict[str, str]) -> str | None:
        if fields["event"] != "job":
            return None
        data = json.loads(fields["data"])
        status: str = data["status"]
        self.world.log.write(
            Sight(
                watcher=self.name,
                job=job,
                event="job",
                status=status,
                version=data["version"],
            )
        )
        return status
