"""A client on bare sockets: it shows the bytes of an answer, and how the connection ended."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

OLLAMA, GENERATE = "/api/chat", "/api/generate"
OPENAI, IMAGES = "/v1/chat/completions", "/v1/images/generations"
PROMPT = "Please give feedback on the essay about the history of the bicycle."


@dataclass
class Seen:
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    data: bytes = b""  # after the head, as received
    end: str = "complete"  # or closed, reset, silence
    pieces: int = 0  # reads with data

    @property
    def complete(self) -> bool:
        if self.headers.get("transfer-encoding") == "chunked":
            return self.data.endswith(b"0\r\n\r\n")
        return len(self.data) >= int(self.headers.get("content-length", "0"))

    @property
    def body(self) -> bytes:
        """The body without the chunk sizes; of the last chunk as much as there is."""
        if self.headers.get("transfer-encoding") != "chunked":
            return self.data
        found, rest = b"", self.data
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size, 16)
            found, rest = found + rest[:length], rest[length + 2 :]
        return found

    def json(self) -> Any:
        return json.loads(self.body)

    def lines(self) -> list[Any]:
        """The lines of NDJSON or of events; a line of events without `data: ` is dropped."""
        found = [line for line in self.body.decode().splitlines() if line]
        if self.headers["content-type"] == "text/event-stream":
            assert all(line.startswith("data: ") for line in found[:-1])
            found = [line.removeprefix("data: ") for line in found]
        return [json.loads(line) for line in found if line != "[DONE]"]


async def ask(
    url: str,
    path: str = OLLAMA,
    fields: dict[str, Any] | bytes | None = None,
    *,
    method: str = "POST",
    headers: dict[str, str] | None = None,
    patience: float = 5,
) -> Seen:
    """Send the request, and read until the answer, the connection or `patience` is at its end.

    A refused connection raises.
    """
    body = fields if isinstance(fields, bytes) else json.dumps(fields or {}).encode()
    address = urlsplit(url)
    seen = Seen()
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        lines = [f"{method} {path} HTTP/1.1"]
        named = {"Host": address.netloc, **(headers or {})}
        lines += [f"{name}: {value}" for name, value in named.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        writer.write("\r\n".join(lines).encode() + body)
        # Not wait_for: before Python 3.12 it may lose a cancellation, and then the client stays.
        async with asyncio.timeout(patience):
            head = await reader.readuntil(b"\r\n\r\n")
        first, *rest = head.decode("latin-1").strip().split("\r\n")
        seen.status = int(first.split(" ")[1])
        pairs = (line.partition(": ") for line in rest)
        seen.headers = {name.lower(): value for name, _, value in pairs}
        while not seen.complete:
            async with asyncio.timeout(patience):
                data = await reader.read(65_536)
            if not data:
                seen.end = "closed"
                break
            seen.data += data
            seen.pieces += 1
    except TimeoutError:
        seen.end = "silence"
    except ConnectionResetError:
        seen.end = "reset"
    except asyncio.IncompleteReadError:
        seen.end = "closed"
    finally:
        writer.close()
    return seen


def chat(path: str = OLLAMA, *, stream: bool = True, **more: Any) -> dict[str, Any]:
    """The fields of a call that requests an answer at this path."""
    if path == IMAGES:
        return {"model": "m", "prompt": PROMPT, "size": "16x8", **more}
    if path == GENERATE:
        return {"model": "m", "prompt": PROMPT, "stream": stream, **more}
    messages = [{"role": "user", "content": more.pop("prompt", PROMPT)}]
    return {"model": "m", "messages": messages, "stream": stream, **more}
