"""`Kind`: what `@app.job` makes of a function."""

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from penstock.client.config.declared import read_link
from penstock.client.config.source_location import SourceLocation, of_function
from penstock.client.sources import OPTIONS, Sources, read_sources
from penstock.client.submission import Submission
from penstock.engine.options.forms import read_name, wrong
from penstock.engine.options.kind import KIND
from penstock.engine.options.option import read
from penstock.errors import Misconfigured
from penstock.models.handlers.handler import Handler
from penstock.models.handlers.parameters import Parameters

if TYPE_CHECKING:
    from penstock.client.app import Penstock

P = ParamSpec("P")
R = TypeVar("R")
Callback = TypeVar("Callback", bound=Callable[..., Awaitable[None]])


class Kind(Submission, Generic[P, R]):
    """A kind of job. A call runs the function itself; `submit` makes a job of the arguments."""

    __name__: str  # the function's, like all else that `update_wrapper` copies

    def __init__(  # noqa: PLR0913  # all named, checked by `make_kind`
        self,
        *,
        app: "Penstock",
        function: Callable[P, R],
        handler: Handler,
        declared: dict[str, Any],
        sources: Sources,
        location: SourceLocation,
    ) -> None:
        """Use `@app.job(...)`."""
        functools.update_wrapper(self, function)
        super().__init__(self, {})
        self.app = app
        self.name = handler.kind
        self.queue = handler.queue
        self.function = function
        self.parameters = handler.parameters
        self.handler = handler
        self._declared = declared
        self.sources = sources
        self.location = location

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<job kind {self.name} of queue {self.queue}, {self.location}>"

    @property
    def declared(self) -> dict[str, Any]:
        """Its options in the form of `declare_kind`."""
        has_on_finish = {"has_on_finish": True} if self.handler.on_finish is not None else {}
        return {**self._declared, **has_on_finish}

    @property
    def inline(self) -> bool:
        """Whether its jobs run in the process that submits them."""
        queue = self.app.queues.get(self.queue)
        return (queue is not None and queue.inline) or self.app.settings.inline

    @property
    def driven(self) -> bool:
        """Whether calls of the API run its jobs, and not standing workers."""
        queue = self.app.queues.get(self.queue)
        return queue is not None and queue.driven and not self.inline

    def on_finish(self, callback: Callback) -> Callback:
        """Register `async def store(job, conn)`, which runs when a job has finished.

        If a worker finishes the job, what the function writes with `conn` is committed in the same
        transaction. If the job finishes otherwise (a waiting job is cancelled or expires, upkeep
        times it out, a callback arrives), a worker or API of the app calls the function shortly
        after, in a transaction of its own. Its writes are committed exactly once.
        """
        written: Any = callback
        if not inspect.iscoroutinefunction(written):
            raise Misconfigured(
                f"on_finish of job kind {self.name} must be `async def store(job, conn)`: it runs "
                "inside the finishing transaction, on a connection that is used with await"
            )
        try:
            inspect.signature(callback).bind(None, None)
        except TypeError:
            raise Misconfigured(
                f"on_finish of job kind {self.name} must take two arguments, the job and the "
                "connection: `async def store(job, conn)`"
            ) from None
        if self.handler.on_finish is not None:
            raise Misconfigured(f"job kind {self.name} has an on_finish already: put both in one")
        self.handler.on_finish = callback
        self.app.changed()
        return callback


def make_kind(
    app: "Penstock", function: Callable[P, R], queue: str, given: Mapping[str, Any]
) -> Kind[P, R]:
    """Check every option and the function's signature; SQL sets the defaults of the others."""
    _refuse_no_handler(function)
    kind = read_name(function.__name__ if given["name"] is None else given["name"], "kind")
    parameters = Parameters.of(function, kind)
    sources = read_sources(
        parameters,
        **{option: given[option] for option in (*OPTIONS, "price", "split")},
    )
    declared = {**read(KIND, given), **sources.declared}
    if not given["priority_offset"]:
        declared.pop("priority_offset", None)
    if given["webhook"] is not None:
        declared["webhook"] = read_link(given["webhook"], "webhook")
    handler = Handler(
        kind=kind,
        queue=queue,
        function=function,
        parameters=parameters,
        mode="async" if _is_async(function) else "thread",
        memory_bytes=declared.pop("memory", None),
    )
    if declared.pop("isolation", None):
        handler.mode = "process"
        handler.origin = _origin(function, kind)
    elif handler.memory_bytes is not None:
        raise wrong("memory", given["memory"], 'it needs isolation="process"')
    return Kind(
        app=app,
        function=function,
        handler=handler,
        declared=declared,
        sources=sources,
        location=of_function(inspect.unwrap(function)),
    )


def _refuse_no_handler(function: Any) -> None:
    if isinstance(function, Kind):
        raise Misconfigured(
            f"this function is already job kind {function.name}: a function can be one kind only"
        )
    if not inspect.isfunction(inspect.unwrap(function)) and not inspect.ismethod(function):
        raise Misconfigured(
            f"a handler must be a function, not {type(function).__name__}: put @app.job(...) "
            "above `def` or `async def`"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Misconfigured(
            f"handler {function.__name__} has a `yield`: return the result, and send partial "
            "results with `job.emit(...)` or `job.progress(...)`"
        )


def _is_async(function: Callable[..., Any]) -> bool:
    # Also below a plain decorator, which then returns the coroutine of the function.
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        inspect.unwrap(function)
    )


def _origin(function: Callable[..., Any], kind: str) -> tuple[str, str]:
    if _is_async(function):
        raise Misconfigured(
            f'isolation="process" of job kind {kind} needs a plain `def`: an `async def` shares '
            "the worker's loop"
        )
    if "<" in function.__qualname__:
        raise Misconfigured(
            f'isolation="process" of job kind {kind} needs a function at the top level of a '
            "module: another process finds it there by its name"
        )
    return function.__module__, function.__qualname__
