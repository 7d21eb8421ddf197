"""The calls that ask for no answer of the model: which models there are, and who is it."""

import json
from datetime import datetime
from typing import Any

from penstock.models.simulated.connection import Connection, Request
from penstock.models.simulated.options import Options
from penstock.models.simulated.protocols import ollama, openai
from penstock.models.simulated.request import Refusal

_TEXT = "text/plain; charset=utf-8"


def answer_look_up(
    request: Request, wire: Connection, options: Options, loaded: dict[str, datetime]
) -> None:
    """Answer, also those that nobody knows: with 404, as Ollama does."""
    match request.method, request.path:
        case "GET", "/":
            wire.send(200, b"Ollama is running", _TEXT)
            return
        case "GET", "/api/version":
            found: Any = {"version": ollama.VERSION}
        case "GET", "/api/tags":
            found = ollama.tags(options)
        case "GET", "/api/ps":
            found = ollama.ps(loaded, options)
        case "POST", "/api/show":
            try:
                fields = request.fields()
            except ValueError:
                raise Refusal(400, "the body is not valid JSON") from None
            found = ollama.show(fields, options)
        case "GET", "/v1/models":
            found = openai.models(options)
        case _:
            wire.send(404, b"404 page not found", _TEXT)
            return
    wire.send(200, json.dumps(found).encode())
