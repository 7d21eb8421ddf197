"""Handlers without Python: `handler = "ollama" | "openai" | "http" | "dispatch"`.

All options are read and checked here, when the app is loaded. A secret comes from the environment
and only the handler holds it: the database gets nothing but the options of `@app.job`.
"""

import functools
import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.base.settings import Settings
from penstock.client.app import Penstock
from penstock.client.config.declared import Duration
from penstock.client.config.source_location import SourceLocation
from penstock.client.config.table import Table, taken
from penstock.engine.options.forms import Kept, Seconds, Text, Whole, Word, wrong
from penstock.errors import Invalid
from penstock.models import dispatch, http, ollama, openai
from penstock.models.fields import Fields, read_fields
from penstock.models.handlers.job import Job
from penstock.models.handlers.protocols import Handler
from penstock.models.output import Output
from penstock.models.prompt import Prompt, read_prompt
from penstock.net.endpoint import Endpoint, read_endpoint
from penstock.security.callback_token import Outside
from penstock.security.roots import Roots
from penstock.security.secret import Secret
from penstock.security.signature import Signer, of_functions

# A payload's field cannot begin with an underscore.
_JOB = "_job"
_TOKENS = Whole(1, 10_000_000)
_SEED = Whole(0, 2**53)
# The default of a queue (declare.sql).
_TIMEOUT_SECONDS = 120.0
# After these parts of a job's timeout, by default, a provider that stopped within its answer is
# given up. The first token may take as long as the job (providers.stream.paced).
_STALL_PART = 0.75
_WHOLE_PART = 0.9
# Headers that Penstock or the connection sets.
_OWN_HEADERS = (
    *("content-type", "content-length", "transfer-encoding", "connection", "host", "expect"),
    *("accept-encoding", "idempotency-key", "webhook-id", "webhook-timestamp", "webhook-signature"),
)
_SECRET_HEADERS = ("authorization", "proxy-authorization", "cookie", "x-api-key", "api-key")


@dataclass(frozen=True, slots=True)
class _Read:
    """The table of a job, and the options that all handlers have in common."""

    table: Table
    fields: Fields
    local_only: bool
    timeout: float
    """How many seconds a job may take."""
    outside: Callable[[], Outside]

    def shorter(self, value: Any, option: str) -> float | None:
        """Read an optional time limit for a provider, which must be shorter than the job's."""
        seconds = Seconds().read(value, option)
        if seconds is not None and seconds >= self.timeout:
            raise self.table.wrong(
                option,
                f"is {value!r}, but the job is stopped after its timeout of {self.timeout:g} s: "
                f"make {option} shorter, or the timeout of the job or its queue longer",
            )
        return seconds

    def stall(self, value: Any, default: float) -> float:
        return self.shorter(value, "stall_timeout") or min(default, self.timeout * _STALL_PART)

    def answer(self, value: Any, default: float = math.inf) -> float:
        return self.shorter(value, "answer_timeout") or min(default, self.timeout * _WHOLE_PART)

    def endpoint(self, url: str, proxy: Secret | None) -> Endpoint:
        from_variable = str(self.table.options.get("url")).startswith("$")
        return read_endpoint(
            url, from_variable=from_variable, local_only=self.local_only, proxy=proxy
        )

    def headers(self, headers: dict[str, str] | None) -> dict[str, Secret]:
        return _headers(self.table, headers or {})

    def prompts(
        self, prompt: str | None, prompt_file: str | None, system: str | None
    ) -> tuple[Prompt, Prompt | None]:
        """Return the prompt, from the table or its file, and the system prompt."""
        option = "prompt" if prompt_file is None else "prompt_file"
        if (prompt is None) == (prompt_file is None):
            raise self.table.wrong("prompt", "give one of prompt and prompt_file")
        text = prompt if prompt_file is None else self.table.beside(option, prompt_file)
        known = tuple(self.fields.types)
        first = None if system is None else read_prompt(system, known, option="system")
        return read_prompt(text, known, option=option), first

    def output(self, form: str | None, schema: Any) -> Output:
        """Return the form of the answer: `schema` is a table, or a file beside this one."""
        if form is not None and schema is not None:
            raise self.table.wrong("format", "is not needed beside schema: leave it out")
        Word(("json",)).read(form, "format")
        if isinstance(schema, str):
            try:
                schema = json.loads(self.table.beside("schema", schema))
            except (ValueError, RecursionError):
                raise self.table.wrong("schema", f"{schema} is not JSON") from None
        return Output(json=form is not None, schema=schema)


def _ollama(  # noqa: PLR0913  # one per option of the contract
    read: _Read,
    *,
    url: str,
    model: str,
    prompt: str | None = None,
    prompt_file: str | None = None,
    system: str | None = None,
    format: str | None = None,  # noqa: A002  # Ollama's own name
    schema: dict[str, Any] | str | None = None,
    num_ctx: int = ollama.NUM_CTX,
    num_predict: int = ollama.NUM_PREDICT,
    temperature: float | None = None,
    seed: int | None = None,
    keep_alive: Duration | None = None,
    first_token_timeout: Duration | None = None,
    stall_timeout: Duration | None = None,
    proxy: Secret | None = None,
) -> Handler:
    text, first = read.prompts(prompt, prompt_file, system)
    name = Text().read(model, "model") or ""
    if read.local_only and name.endswith(("-cloud", ":cloud")):
        raise read.table.wrong(
            "model", f"{name} runs in Ollama's cloud, and the queue is local_only: use another"
        )
    kept = Kept().read(keep_alive, "keep_alive")
    return ollama.build(
        ollama.Ollama(
            endpoint=_chat_of_ollama(read.endpoint(url, proxy)),
            model=name,
            prompt=text,
            system=first,
            output=read.output(format, schema),
            num_ctx=_TOKENS.read(num_ctx, "num_ctx") or ollama.NUM_CTX,
            num_predict=_TOKENS.read(num_predict, "num_predict") or ollama.NUM_PREDICT,
            temperature=_number(temperature, "temperature"),
            seed=_SEED.read(seed, "seed"),
            keep_alive=-1 if kept == "forever" else kept,
            first_token_seconds=read.shorter(first_token_timeout, "first_token_timeout"),
            stall_seconds=read.stall(stall_timeout, ollama.STALL_SECONDS),
        )
    )


def _openai(  # noqa: PLR0913  # one per option of the contract
    read: _Read,
    *,
    url: str,
    model: str,
    api_key: Secret | None = None,
    prompt: str | None = None,
    prompt_file: str | None = None,
    system: str | None = None,
    format: str | None = None,  # noqa: A002  # as Ollama's
    schema: dict[str, Any] | str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    max_completion_tokens: int | None = None,
    seed: int | None = None,
    first_token_timeout: Duration | None = None,
    stall_timeout: Duration | None = None,
    proxy: Secret | None = None,
) -> Handler:
    text, first = read.prompts(prompt, prompt_file, system)
    return openai.build(
        openai.OpenAI(
            endpoint=openai.endpoint_of(read.endpoint(url, proxy)),
            model=Text().read(model, "model") or "",
            api_key=api_key,
            prompt=text,
            system=first,
            output=read.output(format, schema),
            temperature=_number(temperature, "temperature"),
            max_tokens=_TOKENS.read(max_tokens, "max_tokens"),
            max_completion_tokens=_TOKENS.read(max_completion_tokens, "max_completion_tokens"),
            seed=_SEED.read(seed, "seed"),
            first_token_seconds=read.shorter(first_token_timeout, "first_token_timeout"),
            stall_seconds=read.stall(stall_timeout, openai.STALL_SECONDS),
        )
    )


def _http(  # noqa: PLR0913  # one per option of the contract
    read: _Read,
    *,
    url: str,
    headers: dict[str, str] | None = None,
    secret: Secret | None = None,
    answer_timeout: Duration | None = None,
    proxy: Secret | None = None,
) -> Handler:
    # Without any secret, the call is not signed.
    signer = None if secret is None else Signer(secret)
    roots = Settings.from_environment(read.table.environ, Path.cwd()).secrets
    if signer is None and roots:
        signer = of_functions(Roots(roots))
    return http.build(
        http.Http(
            endpoint=read.endpoint(url, proxy),
            headers=read.headers(headers),
            signer=signer,
            answer_seconds=read.answer(answer_timeout),
        )
    )


def _dispatch(  # noqa: PLR0913  # one per option of the contract
    read: _Read,
    *,
    url: str,
    headers: dict[str, str] | None = None,
    secret: Secret | None = None,
    answer_timeout: Duration | None = None,
    proxy: Secret | None = None,
) -> Handler:
    return dispatch.build(
        dispatch.Dispatch(
            endpoint=read.endpoint(url, proxy),
            outside=read.outside,
            headers=read.headers(headers),
            signer=None if secret is None else Signer(secret),
            answer_seconds=read.answer(answer_timeout, dispatch.ANSWER_SECONDS),
        )
    )


HANDLERS: Mapping[str, Callable[..., Handler]] = {
    "ollama": _ollama,
    "openai": _openai,
    "http": _http,
    "dispatch": _dispatch,
}


def takes(handler: str) -> dict[str, Any]:
    """Return the options of a job with this handler, with their types."""
    common = taken(Penstock.job, "isolation", "memory")
    return {**common, **taken(HANDLERS[handler], "read"), "fields": dict}


def declare(app: Penstock, name: str, table: Table, handler: str, given: Mapping[str, Any]) -> None:
    """Declare the kind of a table."""
    known = inspect.signature(HANDLERS[handler]).parameters
    own = {key: value for key, value in given.items() if key in known}
    for key, parameter in known.items():
        is_required = (
            parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
        )
        if is_required and key not in own:
            raise table.wrong(key, "is missing")
    if "fields" not in given:
        raise table.wrong(
            "fields", 'is missing: name them, like { answer = "str", level = "int?" }'
        )
    queue = app.queues[given["queue"]]
    timeout = Seconds().read(given.get("timeout"), "timeout")
    if timeout is None:
        timeout = queue.declared.get("timeout_seconds", _TIMEOUT_SECONDS)
    read = _Read(table, read_fields(given["fields"]), queue.local_only, timeout, app.outside)
    function = _function(HANDLERS[handler](read, **own), read.fields, name)
    rest = {key: value for key, value in given.items() if key not in own and key != "fields"}
    kind = app.job(name=name, **rest)(function)
    kind.location = SourceLocation(table.path.stem, str(table.path), None)
    kind.handler.warm = functools.partial(_warm, app.outside if handler == "dispatch" else None)
    if handler == "dispatch":
        kind.handler.hands_over = True
        kind.handler.signer = Signer(own["secret"]) if "secret" in own else None


def _warm(outside: Callable[[], Outside] | None) -> None:
    """Import the HTTP client when a worker starts: in its loop, that would block for 0.25 s.

    A worker without the secret cannot dispatch: it fails here, before it takes a job.
    """
    import penstock.net.transport  # noqa: F401

    if outside is not None:
        outside()


def _function(handler: Handler, fields: Fields, name: str) -> Callable[..., Any]:
    """Return the handler as a function whose parameters are the fields, to make a kind of."""

    async def call(**arguments: Any) -> Any:
        job: Job = arguments.pop(_JOB)
        return await handler(job, fields.complete(arguments))

    only = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(
            field,
            only,
            annotation=wanted,
            default=fields.defaults.get(field, inspect.Parameter.empty),
        )
        for field, wanted in fields.types.items()
    ]
    parameters.append(inspect.Parameter(_JOB, only, annotation=Job))
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__name__ = call.__qualname__ = name
    return call


def _chat_of_ollama(endpoint: Endpoint) -> Endpoint:
    path = endpoint.path.rstrip("/")
    mistake = None
    if path.endswith("/v1"):
        mistake = (
            "url ends in /v1, which is Ollama's OpenAI API: leave it out, or use "
            'handler = "openai"'
        )
    elif "/api/" in path and not path.endswith("/api/chat"):
        mistake = (
            "url must be the address alone, like http://127.0.0.1:11434: /api/chat is added to it"
        )
    if mistake:
        raise Invalid(mistake, code="invalid_option", field="url")
    return endpoint.under(f"{path.removesuffix('/api/chat').removesuffix('/api')}/api/chat")


def _headers(table: Table, headers: Any) -> dict[str, Secret]:
    if not isinstance(headers, dict):
        raise table.wrong("headers", 'must be a table like { X-Tenant = "school", X-Key = "$KEY" }')
    checked = {}
    for name, value in headers.items():
        key = f"headers.{name}"
        if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
            raise table.wrong(key, "is not the name of a header")
        if name.lower() in _OWN_HEADERS:
            raise table.wrong(key, "is set by Penstock itself: leave it out")
        if name.lower() in _SECRET_HEADERS or (isinstance(value, str) and value.startswith("$")):
            checked[name] = table.secret(key, value)
        elif isinstance(value, str) and value.isascii() and value.isprintable():
            checked[name] = Secret(value)
        else:
            raise table.wrong(key, "must be a text of one line, in ASCII")
    return checked


def _number(value: Any, option: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:  # noqa: PLR2004
        raise wrong(option, value, "it may be a number from 0 to 100")
    return value
