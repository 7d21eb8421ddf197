"""Routes: every call of the API is one function, declared once.

`@routes.add("GET", "/v1/jobs/{job_id}", summary="Look at a job")` says method, path and answers.
The function's parameters say what it needs. They are read in this order:

    principal: Reader                   who calls, and who may: Annotated[Principal, Allowed(…)]
    job_id: UUID, limit: Limit          what stands in the path and the query, checked by its type
    prefer: Annotated[str, HEADER]      a header
    form: Annotated[SubmitJob, Body()]  the body, checked
    request: Request, backend: Backend   the request itself, and what routes work with

The function returns a Response, or what is sent as JSON. `openapi.py` makes the document of the
same declarations.
"""

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ValidationError, create_model
from starlette import routing
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.errors import Invalid, NotFound
from penstock.http.auth.caller import Allowed
from penstock.http.backend import Backend
from penstock.http.schemas.body import JSON, Body

HEADER = object()
"""Marks a parameter that is a header, called by the alias of its Field or by its own name."""

Function = TypeVar("Function", bound=Callable[..., Awaitable[Any]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What the document says of a route, beside what its function says."""

    tag: str
    operation: str = ""
    """Its operation id, where that is not the noun of its routes and the name of its function."""
    summary: str = ""
    status: int = 200
    """Of the usual answer."""
    answer: type[BaseModel] | None = None
    """The form of the usual answer."""
    about: str = "Successful Response"
    """What the usual answer means."""
    also: Mapping[int, str] = field(default_factory=dict)
    """What the same form means with other statuses."""
    responses: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Answers without a form of ours, by status, as in OpenAPI."""
    refuses: Sequence[int] = ()
    """Statuses of refusals, beside those of all routes like this one."""
    request_body: Mapping[str, Any] | None = None
    """A body that the function reads by itself, as in OpenAPI."""
    models: Sequence[type[BaseModel]] = ()
    """The forms to which `request_body` refers."""


class Route(routing.Route):
    """A method at a path; it does not take HEAD with GET."""

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
        """Where each parameter is: path, query or header."""
        self._names: dict[str, str] = {}
        """How the function calls its request, backend, caller and body."""
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
        given: dict[str, Any] = {}
        if self.caller is not None:
            given[names["caller"]] = await self.caller(request)
            if self.query and self.method == "GET" and scope["query_string"]:
                self._refuse_unknown(request, self.caller)
        if self.locations:
            given |= self._read_parameters(request)
        if self.body is not None:
            model, body = self.body
            given[names["body"]] = await body.read(model, request)
        if "request" in names:
            given[names["request"]] = request
        if "backend" in names:
            given[names["backend"]] = scope["app"].state.backend
        answer = await self.endpoint(**given)
        if answer is None:
            answer = Response(status_code=self.described.status)
        elif not isinstance(answer, Response):
            answer = Response(json.dumps(answer), self.described.status, media_type=JSON)
        await answer(scope, receive, send)

    def _refuse_unknown(self, request: Request, caller: Allowed) -> None:
        """A misspelt filter (`?stat=failed`), passed over, would list everything and look right."""
        for name in request.query_params:
            if name not in self.query and not (name == "token" and name in caller.who):
                raise Invalid(
                    f"{name[:100]} is not a parameter here; known are {', '.join(self.query)}",
                    code="invalid_request",
                    field=name[:100],
                )

    def _read_parameters(self, request: Request) -> dict[str, Any]:
        texts: dict[str, str | None] = {}
        for name, location in self.locations.items():
            if location == "path":
                texts[name] = request.path_params[name]
            elif location == "header":
                texts[name] = request.headers.get(name)
            else:
                texts[name] = request.query_params.get(name)
        given = {name: value for name, value in texts.items() if value is not None}
        try:
            return vars(self.parameters.model_validate(given))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = str(first["loc"][0])
            if self.locations[name] == "path":
                # Nothing that exists has an odd id.
                raise NotFound(
                    f"there is nothing here: {name} is not an id", code="not_found", field=name
                ) from None
            message = first["msg"].replace("Input should", "must", 1)
            raise Invalid(f"{name}: {message}", code="invalid_request", field=name) from None


class Routes(list[Route]):
    """The routes of one noun, in the order in which they are tried."""

    def __init__(self, tag: str, noun: str | None = None) -> None:
        """`tag`: their section of the document. `noun` or else `tag` begins their operation ids."""
        super().__init__()
        self._tag = tag
        self._noun = noun or tag

    def add(self, method: str, path: str, **described: Any) -> Callable[[Function], Function]:
        """Make a function the route of a method and path; `described`: as Described has it."""

        def register(function: Function) -> Function:
            description = Described(tag=self._tag, **described)
            self.append(Route(method, path, function, description, self._noun))
            return function

        return register
