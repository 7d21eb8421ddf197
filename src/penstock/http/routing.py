"""Routes: each call of the API is one function, declared once; bodies are read here, with limits.

`@routes.add("GET", "/v1/jobs/{job_id}", summary="Read a job")` declares method, path and answers.
The function's parameters declare its inputs. They are read in this order:

    principal: Reader                   the caller; who may call: Annotated[Principal, Allowed(…)]
    job_id: UUID, limit: Limit          values of the path and the query, validated by their types
    prefer: Annotated[str, HEADER]      a header
    form: Annotated[SubmitJob, Body()]  the body, validated
    request: Request, backend: Backend  the request itself, and the objects that routes use

The function returns a Response, or an object that is sent as JSON. `openapi.py` makes the OpenAPI
document from the same declarations. How much of a body may be read depends on the sender, and is
counted until the request is over (limits.py).
"""

import asyncio
import inspect
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from starlette import routing
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.errors import Invalid, NotFound, TooLarge
from penstock.http.auth.caller import Allowed
from penstock.http.backend import Backend
from penstock.http.middleware.limits import FUNCTIONS, STRANGER_BYTES, limits

# A job's payload may have a megabyte (setting.payload_max_bytes), and a batch has many payloads.
LARGEST_BYTES = 64 * 1024 * 1024
USUAL_BYTES = 4 * 1024 * 1024
# In each period this many bytes have to arrive, or the end of the body: 8 KB a second. A slower
# client has disappeared, or deliberately occupies what others need.
PROGRESS_SECONDS = 30.0
PROGRESS_BYTES = 240 * 1024
# Commas, colons and brackets outside of strings. A value may take two bytes there, and eighty in
# memory.
MOST_MARKS = 1_000_000
_MARKS = (b",", b":", b"[", b"{")
_BOUND = re.compile("(?:Input|List|String) should")
# A string, or several in a row. The quantifiers are possessive and the end may be missing, so any
# input takes one pass.
_TEXTS = re.compile(rb'(?:"(?:[^"\\]++|\\.)*+"?)++', re.DOTALL)

JSON = "application/json"
# The locations of parameters, and the attribute of the request for each.
_SOURCES = {"path": "path_params", "query": "query_params", "header": "headers"}

Content = bytes | bytearray
Model = TypeVar("Model", bound=BaseModel)

HEADER = object()
"""Marks a parameter that is a header, named by the alias of its Field or by its own name."""

Function = TypeVar("Function", bound=Callable[..., Awaitable[Any]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What the OpenAPI document says of a route, beyond what its function declares."""

    tag: str
    operation: str = ""
    """The operation id, if it is not the noun of the routes and the name of the function."""
    summary: str = ""
    status: int = 200
    """The status of the usual answer."""
    answer: type[BaseModel] | None = None
    """The schema of the usual answer."""
    about: str = "Successful Response"
    """The description of the usual answer."""
    also: Mapping[int, str] = field(default_factory=dict)
    """The descriptions of answers with the same schema and other statuses."""
    responses: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Answers without a schema of ours, by status, as in OpenAPI."""
    refuses: Sequence[int] = ()
    """Statuses of refusals, in addition to those of all routes like this one."""
    request_body: Mapping[str, Any] | None = None
    """A body that the function reads itself, as in OpenAPI."""
    models: Sequence[type[BaseModel]] = ()
    """The schemas to which `request_body` refers."""


class Route(routing.Route):
    """A method at a path; GET does not include HEAD."""

    def __init__(
        self, method: str, path: str, function: Function, described: Described, noun: str
    ) -> None:
        super().__init__(path, function)
        self.app = self._answer
        self.method = method
        self.methods = {method}
        self.described = described
        self.operation_id = described.operation or f"{noun}_{function.__name__}"
        self.caller: Allowed | None = None
        self.body: tuple[type[BaseModel], Body] | None = None
        self.locations: dict[str, str] = {}
        """The location of each parameter: path, query or header."""
        self._names: dict[str, str] = {}
        """The names of the function's parameters for request, backend, caller and body."""
        fields: dict[str, Any] = {}
        hints = get_type_hints(function, include_extras=True)
        for name, parameter in inspect.signature(function).parameters.items():
            hint, marks = hints[name], get_args(hints[name])[1:]
            if hint is Request:
                self._names["request"] = name
            elif hint is Backend:
                self._names["backend"] = name
            elif allowed := [mark for mark in marks if isinstance(mark, Allowed)]:
                self._names["caller"] = name
                [self.caller] = allowed
            elif bodies := [mark for mark in marks if isinstance(mark, Body)]:
                self._names["body"] = name
                self.body = get_args(hint)[0], bodies[0]
            else:
                required = parameter.default is parameter.empty
                fields[name] = hint, ... if required else parameter.default
        self.parameters: type[BaseModel] = create_model(f"{self.operation_id} parameters", **fields)
        for name, info in self.parameters.model_fields.items():
            location = "header" if HEADER in info.metadata else "query"
            self.locations[info.alias or name] = (
                "path" if name in self.param_convertors else location
            )
        self.query = [name for name, location in self.locations.items() if location == "query"]

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        names = self._names
        values: dict[str, Any] = {}
        if self.caller is not None:
            values[names["caller"]] = await self.caller(request)
            if self.query and self.method == "GET" and scope["query_string"]:
                self._refuse_unknown(request, self.caller)
        if self.locations:
            values |= self._read_parameters(request)
        if self.body is not None:
            model, body = self.body
            values[names["body"]] = await body.read(model, request)
        if "request" in names:
            values[names["request"]] = request
        if "backend" in names:
            values[names["backend"]] = scope["app"].state.backend
        answer = await self.endpoint(**values)
        if answer is None:
            answer = Response(status_code=self.described.status)
        elif not isinstance(answer, Response):
            answer = Response(json.dumps(answer), self.described.status, media_type=JSON)
        await answer(scope, receive, send)

    def _refuse_unknown(self, request: Request, caller: Allowed) -> None:
        """Refuse unknown parameters: a misspelt filter (`?stat=failed`) would list everything."""
        for name in request.query_params:
            if name not in self.query and not (name == "token" and name in caller.who):
                raise Invalid(
                    f"{name[:100]} is not a parameter here; known are {', '.join(self.query)}",
                    code="invalid_request",
                    field=name[:100],
                )

    def _read_parameters(self, request: Request) -> dict[str, Any]:
        values: dict[str, str] = {}
        for name, location in self.locations.items():
            value = getattr(request, _SOURCES[location]).get(name)
            if value is not None:
                values[name] = value
        try:
            return vars(self.parameters.model_validate(values))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = str(first["loc"][0])
            if self.locations[name] == "path":
                # Nothing that exists has a malformed id.
                raise NotFound(
                    f"there is nothing here: {name} is not an id", code="not_found", field=name
                ) from None
            message = first["msg"].replace("Input should", "must", 1)
            raise Invalid(f"{name}: {message}", code="invalid_request", field=name) from None


class Routes(list[Route]):
    """The routes of one noun, in the order in which they are matched."""

    def __init__(self, tag: str, noun: str | None = None) -> None:
        """`tag`: their section of the document. `noun`, or else `tag`, begins the operation ids."""
        super().__init__()
        self._tag = tag
        self._noun = noun or tag

    def add(self, method: str, path: str, **described: Any) -> Callable[[Function], Function]:
        """Make a function the route of a method and path; `described`: the fields of Described."""

        def register(function: Function) -> Function:
            description = Described(tag=self._tag, **described)
            self.append(Route(method, path, function, description, self._noun))
            return function

        return register


class Strict(BaseModel):
    """A body model that refuses unknown fields, and strings in place of numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


async def read_body(
    request: Request,
    most: int = USUAL_BYTES,
    *,
    known: bool = False,
    proves: Callable[[bytes], bool] | None = None,
) -> bytearray:
    """Read a body of at most this size; of a larger one, no more than this is kept in memory.

    For callbacks: unless the headers have authenticated the function (`known`), a large body is
    read to its end only if its beginning `proves` the sender.
    """
    sender = FUNCTIONS if known else limits(request).sender(request)
    proves = None if known else proves
    declared = request.headers.get("content-length", "")
    length = int(declared) if declared.isdigit() else 0
    bound = min(most, sender.most)
    allowed = most if proves else bound
    if length > allowed:
        raise _too_large(allowed)
    holding, sending = limits(request).hold_body(request, sender)
    content = bytearray()
    async for chunk in receive(request):
        content += chunk
        if len(content) > bound and proves is not None:
            if not proves(bytes(content[:STRANGER_BYTES])):
                raise TooLarge(
                    "the callback has no valid token in its headers or in its first"
                    f" {STRANGER_BYTES} bytes, so no more is read",
                    code="payload_too_large",
                    max_bytes=STRANGER_BYTES,
                    hint="Send the token of the attempt as bearer; or put job_id and token before"
                    " the result.",
                )
            bound, proves = most, None
            holding.move(FUNCTIONS.shares)
            sending.move(FUNCTIONS.shares)
        if len(content) > bound:
            raise _too_large(bound)
        holding.add(len(chunk))
    sending.release()
    return content


async def receive(request: Request) -> AsyncIterator[bytes]:
    """Yield a body as it arrives; refuse it if it arrives too slowly."""
    loop = asyncio.get_running_loop()
    deadline, received = loop.time() + PROGRESS_SECONDS, 0
    more = True
    while more:
        # Not request.stream(): it needs three turns of the loop for a body that came at once.
        try:
            async with asyncio.timeout_at(deadline):
                message = await request.receive()
        except TimeoutError:
            raise HTTPException(
                408,
                f"the body came too slowly: {PROGRESS_BYTES} bytes, or its end, must arrive"
                f" within {PROGRESS_SECONDS:g} s",
                headers={"Connection": "close"},
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        more = message.get("more_body", False)
        if body := message.get("body"):
            received += len(body)
            if received >= PROGRESS_BYTES:
                deadline, received = loop.time() + PROGRESS_SECONDS, 0
            yield body


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """`form: Annotated[NewKey, Body()]`: the request's body, parsed as this model."""

    most: int = USUAL_BYTES
    empty: bool = False
    """Whether a missing body is read as an empty object."""
    code: str = "invalid_request"
    """The error code of an invalid body."""
    shown: type[BaseModel] | None = None
    """The schema in the document, if it is another one."""

    async def read(self, model: type[Model], request: Request) -> Model:
        content = await read_body(request, self.most)
        if not content and self.empty:
            content += b"{}"
        return parse(model, content, code=self.code)


def parse(model: type[Model], content: Content, *, code: str = "invalid_request") -> Model:
    if not content:
        raise Invalid("the body is empty: send a JSON object", code="invalid_json")
    refuse_crowded(content)
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise refused(error, model, code) from None


def refuse_crowded(content: Content) -> None:
    """Refuse a body with too many values: only brackets would take twenty times its size parsed."""
    if len(content) <= MOST_MARKS or _marks(content, 0, len(content)) <= MOST_MARKS:
        return
    count = end = 0
    for text in _TEXTS.finditer(content):
        # At least one, as between any two strings of JSON: this bounds the rounds for any input.
        count += 1 if text.start() <= end + 2 else _marks(content, end, text.start()) or 1
        end = text.end()
        if count > MOST_MARKS:
            break
    if count + _marks(content, end, len(content)) > MOST_MARKS:
        raise TooLarge(
            f"the body holds more than {MOST_MARKS} commas, colons and brackets",
            code="payload_too_large",
            max_marks=MOST_MARKS,
            hint="Send it in parts, or as an upload.",
        )


def _marks(content: Content, start: int, end: int) -> int:
    return sum(content.count(mark, start, end) for mark in _MARKS)


def refused(error: ValidationError, model: type[BaseModel], code: str) -> Invalid:
    """Return the first error, with its path in the body but never the given value."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    first = errors[0]
    if first["type"] == "json_invalid":
        return Invalid(
            f"the body is not JSON: {first['msg'].removeprefix('Invalid JSON: ')}",
            code="invalid_json",
        )
    where = ".".join(str(part) for part in first["loc"])
    if "payload" in (str(part) for part in first["loc"]):
        code = "invalid_payload"
    members: dict[str, Any] = {}
    if len(errors) > 1:
        members["more"] = len(errors) - 1
    if len(first["loc"]) > 1 and isinstance(first["loc"][1], int):
        members["index"] = first["loc"][1]
    return Invalid(
        f"{where or 'the body'} {_worded(first['type'], first['msg'], first['loc'], model)}",
        code=code,
        field=where or None,
        **members,
    )


def _worded(cause: str, message: str, path: tuple[int | str, ...], model: type[BaseModel]) -> str:
    match cause:
        case "missing":
            return "is required"
        case "extra_forbidden" if len(path) == 1:
            return f"is not a field; known are {', '.join(model.model_fields)}"
        case "extra_forbidden":
            return "is not a field"
        case "model_type" | "model_attributes_type" | "dict_type":
            return "must be a JSON object"
    if bound := _BOUND.match(message):
        return f"must{message[bound.end() :]}".replace(" after validation", "")
    return f"is wrong: {message}"


def _too_large(most: int) -> TooLarge:
    return TooLarge(
        f"the body is larger than {most} bytes", code="payload_too_large", max_bytes=most
    )
