"""LangChain's middleware around the model calls of a run: its hook `wrap_model_call`.

The other hooks are nodes of LangChain's own agent, and are refused. The rules of every run hold for hooks: each request
of a handler is reserved and paid, guard judges the calls of each reply, and the history stays valid.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Final, Never, TypeVar
from uuid import uuid4

from langchain.agents.middleware import types
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.messages.tool import default_tool_parser
from langgraph.runtime import get_runtime

from mendgraph.graph.langchain.replies import ReplyAssembly
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.language.chat_messages import native_tool
from mendgraph.nodes.language.display import described_type
from mendgraph.nodes.language.history import close_dangling_calls
from mendgraph.nodes.records import FinishReason, JsonMap, ModelReply, StopCause, StopReason, ToolSpec
from mendgraph.nodes.workspace.files.deadline import Worker, await_call, monotonic_s

Result = TypeVar("Result")
Handler = Callable[[Any], Coroutine[Any, Any, Any]]
Send = Callable[[Mapping[str, Any], str, Sequence[ToolSpec], BaseChatModel | None], Awaitable[JsonMap]]
"""Makes a paid model call and returns the update. Takes a slice of the state, text for the system prompt, some of the
tools, and a chat model, None for the run's model."""

_REFUSED_HOOKS: Final[Mapping[str, str]] = {
    "before_agent": "use a node of your graph before this one",
    "before_model": "change the request in wrap_model_call; to observe, use a callback handler",
    "after_model": "change the response in wrap_model_call; to observe, use a callback handler",
    "after_agent": "use a node of your graph after this one",
    "wrap_tool_call": "guard has checked the call; use your own tool; to observe, use a callback handler",
}
"""Hooks that are refused, and what to do instead."""

_INSTEAD: Final[Mapping[str, str]] = {
    "HumanInTheLoopMiddleware": 'AgentContext(mode="ask") asks a person, shows what a call would change, and waits',
    "LLMToolSelectorMiddleware": 'AgentContext(offer="few") offers fewer tools, without a call outside of the budget',
    "ModelCallLimitMiddleware": "AgentContext has max_calls_per_turn and max_calls_per_session",
    "ShellToolMiddleware": "AgentContext(allowed_programs=...) offers run_command, in a sandbox",
    "SummarizationMiddleware": "AgentContext(window_tokens=...) compacts the conversation; the history stays complete",
    "TodoListMiddleware": "the tool update_plan keeps a plan, which the outcome and a resume know",
    "ToolCallLimitMiddleware": "AgentContext has tool_quotas and tool_calls_per_minute",
    "ToolRetryMiddleware": "a tool that raises RetryableToolError is retried AgentContext(tool_retries=...) times",
}
"""Middleware of LangChain that is refused, and the feature to use instead."""


def check_middleware(middleware: Sequence[object]) -> None:
    """Refuse what a run does not support.

    Raises:
        TypeError: an item is no middleware.
        ValueError: two have one name, or one needs a feature that is missing; the message names what to use instead.
    """
    names: set[str] = set()

    for item in middleware:
        if not isinstance(item, types.AgentMiddleware):
            kind = described_type(item)
            raise TypeError(f"middleware: {kind} is not accepted: use instances of LangChain's AgentMiddleware.")

        problem = _problem_of(item)
        if item.name in names:
            problem = "two have this name"

        if problem:
            raise ValueError(f"middleware: {item.name} cannot be used here: {problem}.")

        names.add(item.name)


def _problem_of(middleware: Any) -> str:
    """Return why this middleware cannot be used, "" if it can."""
    for kind in type(middleware).__mro__:
        if kind.__name__ in _INSTEAD:
            return _INSTEAD[kind.__name__]

    for name, instead in _REFUSED_HOOKS.items():
        if _hook(middleware, name) or _hook(middleware, f"a{name}"):
            return f"{name} is not called here: {instead}"

    fields = set(middleware.state_schema.__annotations__) - set(types.AgentState.__annotations__)
    if fields:
        return f"the state has no {', '.join(sorted(fields))} (state_schema): use an attribute, or runtime.store"

    return ""


def _hook(middleware: Any, name: str) -> Any:
    """Return the hook of this name, None if the middleware does not override it."""
    if getattr(type(middleware), name) is getattr(types.AgentMiddleware, name):
        return None

    return getattr(middleware, name)


class NamedModel(BaseChatModel):
    """The chat model that hooks see if a context names the run's model."""

    model_name: str

    @property
    def _llm_type(self) -> str:
        return "mendgraph"

    def _generate(self, *_: Any, **__: Any) -> Never:
        raise NotImplementedError("the run's model is called by handler(request), which is reserved and paid")


class Hooks:
    """The hooks of one machine's model calls. They are coroutines, also in sync runs; sync hooks run in threads."""

    def __init__(self, middleware: Sequence[Any], redactor: Callable[[], Redactor]) -> None:
        """`redactor` returns what removes secrets from the texts of hooks."""
        self._middleware = [item for item in middleware if _hook(item, _SYNC) or _hook(item, _ASYNC)]
        self._redactor = redactor

    @staticmethod
    def run(work: Coroutine[Any, Any, Result]) -> Result:
        """Run the hooks of a sync run in a thread with an event loop: that of its caller may be running.

        An exception that interrupts the caller cancels the hooks.
        """
        running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

        async def tracked() -> Result:
            task = asyncio.current_task()
            assert task is not None  # noqa: S101 - asyncio.run made it
            running.append((asyncio.get_running_loop(), task))
            return await work

        outcome = Worker(copy_context(), lambda: asyncio.run(tracked())).outcome
        try:
            return outcome.result()
        except BaseException:
            for loop, task in running:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(task.cancel)

            raise

    async def call_model(
        self, state: Any, model: BaseChatModel | str, tools: Sequence[ToolSpec], send: Send, *, in_loop: bool
    ) -> JsonMap:
        """Make a model call with its hooks around it; return the update.

        `model` is the model that hooks see: the run's chat model, or the name of the one that its context names.
        """
        if state.get("preload"):  # of files: no model is called
            return await send(state, "", [], None)

        if isinstance(model, str):
            model = NamedModel(model_name=model)

        began_s = monotonic_s()
        call = _HookedCall(state, model, tools, send, self._redactor(), in_loop=in_loop)
        reply = await call.run(self._middleware)
        spending = call.update.get("spending", state["spending"])
        seconds = max(spending.seconds, state["spending"].seconds + monotonic_s() - began_s)
        update = {**call.update, "reply": reply, "spending": spending.model_copy(update={"seconds": seconds})}

        if reply is None:
            return {**update, "stop": call.stop}

        return {**update, "step": state.get("step", 0) + 1}


GRACE_S: Final = 5.0  # seconds after the time limit in which a model call, which has the same limit, ends itself
_SYNC: Final = "wrap_model_call"
_ASYNC: Final = "awrap_model_call"


class _HandlerError(Exception):
    """Raised in a hook whose handler fails: the model did not answer."""


class _TurnEndedError(BaseException):
    """Ends the hooks of a call. A BaseException, so that a hook that retries does not catch it."""


class _HookedCall:
    """One visit of `call_model`, in which hooks may make several calls. `stop` says why there is no reply."""

    def __init__(
        self,
        state: Mapping[str, Any],
        model: BaseChatModel,
        tools: Sequence[ToolSpec],
        send: Send,
        redactor: Redactor,
        *,
        in_loop: bool,
    ) -> None:
        self.update: JsonMap = {}
        self.stop: StopCause | None = None
        self._state = state
        self._model = model
        self._tools = {spec.name: spec for spec in tools}
        self._send = send
        self._redactor = redactor
        self._in_loop = in_loop
        self._has_ended = False
        self._lock = asyncio.Lock()
        self._replies: dict[str | None, tuple[ModelReply, AIMessage]] = {}
        self._hook = ""
        self._hooks_of_errors: dict[int, str] = {}  # by the id of an exception: the hook that raised it

    async def run(self, middleware: Sequence[Any]) -> ModelReply | None:
        """Run the hooks, of which the first is the outermost; return the reply, None if there is none."""
        handler: Handler = self._call_model
        for item in reversed(middleware):
            handler = partial(self._call_hook, item, handler)

        messages = self._state["messages"]
        request = types.ModelRequest(
            model=self._model,
            messages=[*messages],
            tools=[native_tool(spec) for spec in self._tools.values()],
            state={"messages": [*messages]},
            runtime=get_runtime().override(context=self._state["context"]),
        )
        reply = await self._reply_of(handler, request)
        try:
            async with self._lock:  # a request that no hook waits for is paid as well
                pass
        finally:
            self._has_ended = True

        if self.stop is not None:
            return None

        return reply

    async def _reply_of(self, handler: Handler, request: Any) -> ModelReply | None:
        """Await the hooks; return their reply, None if `stop` says why there is none."""
        task = asyncio.current_task()
        seconds = self._seconds_left()
        time_limit = asyncio.timeout(None if seconds is None else seconds + GRACE_S)

        try:
            async with time_limit:
                response = await handler(request)

            return self._read(response.result[0])
        except (_HandlerError, _TurnEndedError):
            return None  # `stop` says why
        except (Exception, SystemExit) as error:  # noqa: BLE001 - only KeyboardInterrupt ends the process
            failure = f"failed: {type(error).__name__}: {str(error)[:500].rstrip('.')}"
            if time_limit.expired() and seconds is not None:
                failure = f"did not end within {seconds:.4g} s, which were left of max_seconds"

            self._name_hook_of(error)
            self._set_failure(failure)
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError) or (task and task.cancelling()):
                self._has_ended = True  # a sync hook runs on in its thread, and may call its handler
                raise

            self._name_hook_of(error)
            self._set_failure("cancelled itself")

        return None

    def _seconds_left(self) -> float | None:
        limit: float | None = self._state["context"].max_seconds
        if limit is None:
            return None

        spent_s: float = self._state["spending"].seconds
        return max(0.0, limit - spent_s)

    def _name_hook_of(self, error: BaseException) -> None:
        """Let the failure name the hook that raised this error, or the one that was cancelled by the time limit."""
        for raised in (error, error.__cause__):
            if id(raised) in self._hooks_of_errors:
                self._hook = self._hooks_of_errors[id(raised)]
                break

    async def _call_hook(self, middleware: Any, handler: Handler, request: Any) -> Any:
        outer_hook = self._hook
        self._hook = middleware.name
        sync_hook = _hook(middleware, _SYNC)
        async_hook = _hook(middleware, _ASYNC)

        try:
            if async_hook and (self._in_loop or not sync_hook):
                return self._one_reply(await async_hook(request, handler))

            call_handler = partial(_call_from_thread, asyncio.get_running_loop(), handler)
            return self._one_reply(await await_call(partial(sync_hook, request, call_handler)))
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            self._hooks_of_errors.setdefault(id(error), self._hook)  # an inner one may run on in its thread
            raise
        finally:
            self._hook = outer_hook

    def _one_reply(self, result: Any) -> Any:
        command = getattr(result, "command", None)
        result = getattr(result, "model_response", result)
        messages = getattr(result, "result", [])
        if isinstance(result, AIMessage):
            messages = [result]

        if command or len(messages) != 1 or not isinstance(messages[0], AIMessage):
            self._fail("did not return one reply: return an AIMessage, or a ModelResponse with one")

        return types.ModelResponse(result=messages)

    async def _call_model(self, request: Any) -> Any:
        for name in ("tool_choice", "response_format", "model_settings"):
            if getattr(request, name):
                self._fail(f"sets {name}: AgentContext says how the model is asked (model_kwargs, response_format)")

        names = list(map(_name_of_tool, request.tools))
        unknown = sorted(set(names) - set(self._tools))
        if unknown:
            self._fail(f"offers {unknown[0]}, which is not a tool of this call: pass it to build_graph(tools=...)")

        if not request.messages or close_dangling_calls(request.messages) is not None:
            self._fail("shows the model a conversation that no endpoint takes: each call needs its result after it")

        model = request.model
        if model is self._model:
            model = None

        async with self._lock:  # one request after the other is reserved and paid
            if self._has_ended or (self.stop and self.stop.reason.is_limit):
                raise _TurnEndedError

            tools = [self._tools[name] for name in names]
            state = {**self._state, **self.update, "messages": request.messages}
            update = await self._send(state, request.system_prompt or "", tools, model)
            self.stop = update.pop("stop", None)
            reply = update.pop("reply")
            update.pop("step", None)
            self.update |= update

        if self.stop is not None and self.stop.reason.is_limit:
            raise _TurnEndedError
        if self.stop is not None:
            raise _HandlerError(self.stop.message)

        message = _message(reply)
        self._replies[message.id] = reply, message
        return types.ModelResponse(result=[message.model_copy(deep=True)])

    def _fail(self, what: str) -> Never:
        self._set_failure(what)
        raise _TurnEndedError

    def _set_failure(self, what: str) -> None:
        message = self._redactor.text(f"The hook wrap_model_call of {self._hook} {what}.")
        self.stop = StopCause(reason=StopReason.HOOK_FAILED, message=message)

    def _read(self, message: AIMessage) -> ModelReply:
        """Read a message as a reply: the model's, with the changes of hooks, or one that a hook wrote."""
        reply, original = self._replies.get(message.id, (ModelReply(), AIMessage("")))
        if (message.content, message.tool_calls) == (original.content, original.tool_calls):
            return reply

        assembly = ReplyAssembly()
        assembly.take(message)
        assembled = assembly.reply(0.0) or ModelReply()
        clean = self._redactor.unnamed
        changed: JsonMap = {"text": clean(assembled.text), "provider": {}}
        if message.tool_calls != original.tool_calls:
            calls = [call.model_copy(update={"arguments": clean(call.arguments)}) for call in assembled.calls]
            changed |= {"calls": tuple(calls), "finish_reason": FinishReason.STOP}
            if calls:
                changed["finish_reason"] = FinishReason.TOOL_CALLS

        return reply.model_copy(update=changed)


def _call_from_thread(loop: asyncio.AbstractEventLoop, handler: Handler, request: Any) -> Any:
    work = handler(request)
    try:
        future = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:  # the loop is closed
        work.close()
        raise

    return future.result()


def _name_of_tool(tool: Any) -> str:
    if isinstance(tool, dict):
        return str(tool["function"]["name"])

    return str(tool.name)


def _message(reply: ModelReply) -> AIMessage:
    """Return a reply as a message for hooks; a call whose arguments are no JSON is an invalid one."""
    raw_calls = []
    for call in reply.calls:
        raw_calls.append({"id": call.call_id, "function": {"name": call.tool, "arguments": call.arguments or "{}"}})

    calls, invalid_calls = default_tool_parser(raw_calls)
    return AIMessage(
        reply.text,
        id=uuid4().hex,
        tool_calls=calls,
        invalid_tool_calls=invalid_calls,
        response_metadata={"finish_reason": reply.finish_reason.value, "model_name": reply.model},
    )
