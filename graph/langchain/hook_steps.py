"""Steps of a run with the hooks of LangChain's middleware around them: a model call, and a call of a tool."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, Final, Never
from uuid import uuid4

from langchain.agents.middleware import types
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage, convert_to_messages
from langchain_core.messages.tool import default_tool_parser
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp
from langgraph.prebuilt.tool_node import ToolCallRequest, ToolRuntime
from langgraph.runtime import get_runtime

from mendgraph.graph.langchain.replies import ReplyAssembly
from mendgraph.nodes import records
from mendgraph.nodes.call_model.services import LAST_WORDS_S
from mendgraph.nodes.execute_tools.engine import redacted_output
from mendgraph.nodes.execute_tools.files.deadline import await_call, monotonic_s
from mendgraph.nodes.execute_tools.registry import ToolOutput
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.execute_tools.tool_run import ToolRun, clip
from mendgraph.nodes.language.chat_messages import native_tool
from mendgraph.nodes.language.history import close_dangling_calls
from mendgraph.nodes.language.text_protocol import render_native_result
from mendgraph.nodes.records import JsonMap, StopReason, ToolResult

Handler = Callable[[Any], Coroutine[Any, Any, Any]]
Send = Callable[[Mapping[str, Any], str, Sequence[records.ToolSpec], BaseChatModel | None], Awaitable[JsonMap]]
"""Makes a paid model call and returns the update. Takes a slice of the state, text for the system prompt, some of the
tools, and a chat model, None for the run's model."""


HOOK_S: Final = 60.0
"""Seconds that the hooks of one step may take by themselves, where the turn has so many left."""


class HandlerError(Exception):
    """Raised in a hook where its handler fails: the model did not answer, or a reading tool raised."""


class TurnEndedError(BaseException):
    """Ends the hooks of a step. A BaseException, so that a hook that retries does not catch it."""


class Middleware:
    """The middleware of one machine, in order."""

    def __init__(self, middleware: Sequence[Any], redactor: Callable[[], Redactor]) -> None:
        """`redactor` returns what removes secrets from the texts of hooks."""
        self._items = tuple(middleware)
        self.redactor = redactor

    def with_hook(self, name: str) -> list[Any]:
        """The middleware that has this hook, sync or async."""
        return [item for item in self._items if _overridden(item, name) or _overridden(item, f"a{name}")]


class Step:
    """A step with hooks around it: the hook that runs, the messages that it sees, and the remaining time of all."""

    def __init__(self, hooks: Middleware, state: Mapping[str, Any], seconds: float, *, in_loop: bool) -> None:
        self.hooks_with = hooks.with_hook
        self.state = state
        self.redactor = hooks.redactor()
        self.in_loop = in_loop
        self.messages: list[Any] = list(state["messages"])
        self.runtime = get_runtime().override(context=state["context"])
        self.current_hook = ""
        self.is_over = False
        self.used_s = 0.0
        self.reply_id: str | None = None
        self.end: records.StopCause | None = None
        self.changed: dict[str | None, AnyMessage] = {}
        self._seconds = min(HOOK_S, seconds)
        self._running_since = monotonic_s()
        self._in_handler = False
        self._handler_lock = asyncio.Lock()
        self._error: BaseException | None = None
        self._hook_of_error = ""

    def fail(self, what: str) -> Never:
        """End the turn as a failure of the current hook; `what` says what it did."""
        self.stop(StopReason.HOOK_FAILED, f"The hook {self.current_hook} {what}.")

    def stop(self, reason: StopReason, message: str) -> Never:
        """End the turn, unless it has ended already."""
        self.end = self.end or records.StopCause(reason=reason, message=self.redactor.text(message))
        raise TurnEndedError

    def remaining_s(self) -> float:
        """Seconds that are left to the hooks; the time of handlers does not count."""
        remaining: float = self._seconds - self.used_s
        if not self._in_handler:
            remaining -= monotonic_s() - self._running_since

        return remaining

    @asynccontextmanager
    async def handling(self) -> AsyncIterator[None]:
        """Inside, the handler of a hook works, which has other limits of time: one request after the other."""
        async with self._handler_lock:
            if self.is_over or self.end:
                raise TurnEndedError

            self.used_s = self._seconds - self.remaining_s()
            self._in_handler = True

            try:
                yield
            finally:
                self._running_since = monotonic_s()
                self._in_handler = False

    async def run(self, hooks: Coroutine[Any, Any, Any]) -> Any:
        """Run the hooks within their time, and return their result.

        Raises:
            HandlerError: they did not catch the failure of a handler's call.
            TurnEndedError: one failed, took too long, or ended the turn; `end` says which.
        """
        task = asyncio.ensure_future(hooks)
        task.add_done_callback(_retrieve_exception)

        try:
            while not task.done() and self.remaining_s() > 0:
                await asyncio.wait({task}, timeout=self.remaining_s())
        finally:
            is_late = not task.done()
            late_hook = self.current_hook
            self.is_over = True
            self.used_s = self._seconds - self.remaining_s()

            if is_late:
                task.cancel()
                await asyncio.wait({task}, timeout=LAST_WORDS_S)

        async with self._handler_lock:  # an abandoned request is paid as well
            self.current_hook = late_hook

        if self.end:
            raise TurnEndedError
        if is_late:
            self.fail(f"did not end within {self._seconds:g} s")
        if task.cancelled():
            self.fail("cancelled itself")

        error = task.exception()
        if isinstance(error, Exception) and not isinstance(error, HandlerError):
            if self._error is error:
                self.current_hook = self._hook_of_error

            if isinstance(error, GraphBubbleUp):
                self.fail('cannot interrupt a step: AgentContext(mode="ask") asks a person')

            self.fail(f"failed: {type(error).__name__}: {str(error)[:500].rstrip('.')}")

        return task.result()

    async def call(self, middleware: Any, name: str, handler: Any, request: Any) -> Any:
        """Call a hook: one that wraps a step with its request and handler, another one with the state and runtime."""
        outer_hook = self.current_hook
        self.current_hook = f"{name} of {middleware.name}"
        sync_hook = _overridden(middleware, name)
        async_hook = _overridden(middleware, f"a{name}")
        wraps = name.startswith("wrap")

        try:
            if async_hook and (self.in_loop or not sync_hook):
                result = await async_hook(request, handler)
            elif wraps:
                sync_handler = partial(_call_from_thread, asyncio.get_running_loop(), handler)
                result = await await_call(partial(sync_hook, request, sync_handler))
            else:
                result = await await_call(partial(sync_hook, request, handler))

            if wraps:
                return self.accepted(result)

            return self.take(result)
        except Exception as error:
            if error is not self._error:
                self._error = error
                self._hook_of_error = self.current_hook

            raise
        except SystemExit:  # of a hook, as of a tool, only KeyboardInterrupt ends the process
            self.fail("raised SystemExit")
        finally:
            self.current_hook = outer_hook

    async def chain(self, name: str, handler: Handler, request: Any) -> Any:
        """Call the handler with the hooks of this name around it; the first one is the outermost."""
        for hook in reversed(self.hooks_with(name)):
            handler = partial(self.call, hook, name, handler)

        return await handler(request)

    async def all(self, name: str) -> None:
        """Call the hooks of this name one after the other, those after a step in reverse."""
        hooks = self.hooks_with(name)
        if name.startswith("after"):
            hooks.reverse()

        for hook in hooks:
            await self.call(hook, name, self.runtime, {"messages": deepcopy(self.messages)})

    def accepted(self, result: Any) -> Any:
        """The checked result of a hook that wraps the step."""
        raise NotImplementedError

    def take(self, update: Any) -> None:
        """Apply what a hook changes: the content of messages that exist, and the calls of the new reply."""
        if update is None:
            update = {}

        if not isinstance(update, Mapping) or set(update) - {"messages", "jump_to"}:
            self.fail('gave back what it may not: it may change messages, and jump to "end"')

        if (jump := update.get("jump_to")) not in {None, "end"}:
            self.fail(f'jumps to {jump!r}, and can only jump to "end"')

        end_message = f"The hook {self.current_hook} ended the turn."
        messages = update.get("messages") or []
        if not isinstance(messages, list):
            messages = [messages]

        places = {message.id: place for place, message in enumerate(self.messages)}
        for message in convert_to_messages(messages):
            place = places.get(message.id)
            if place is not None:
                self._replace(place, message)
            elif jump and isinstance(message, AIMessage):
                end_message = message.text
            else:
                self.fail(_ADDS_MESSAGES)

        if jump:
            self.stop(StopReason.CANCELLED, end_message)

    def _replace(self, place: int, message: Any) -> None:
        old = self.messages[place]
        if type(message) is not type(old):
            self.fail(_ADDS_MESSAGES)
        if _calls(message) != _calls(old) and message.id != self.reply_id:
            self.fail("changes the calls of the history, whose results are there")

        if message != old:
            clean = message.model_copy(update={"content": self.redactor.content(message.content)})
            self.messages[place] = clean
            self.changed[message.id] = clean


_ADDS_MESSAGES: Final = (
    "adds or removes messages: it may replace one by another of its type and id. What one call is shown beside the"
    " history, wrap_model_call says"
)


def _retrieve_exception(task: "asyncio.Task[Any]") -> None:
    """Read the exception of a task that may be abandoned, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()


def _call_from_thread(loop: asyncio.AbstractEventLoop, handler: Handler, request: Any) -> Any:
    """Call an async handler from a thread, and wait for it."""
    work = handler(request)
    try:
        future = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:  # the loop is closed: this hook is abandoned
        work.close()
        raise

    return future.result()


def _overridden(middleware: Any, name: str) -> Any:
    """The hook of this name, None where the middleware does not have it."""
    if getattr(type(middleware), name) is getattr(types.AgentMiddleware, name):
        return None

    return getattr(middleware, name)


def _calls(message: Any) -> object:
    return getattr(message, "tool_call_id", None), getattr(message, "tool_calls", None)


class ModelStep(Step):
    """A model call with hooks around it, which may make several calls."""

    def __init__(self, model: Any, tools: Sequence[records.ToolSpec], send: Send, *step: Any, in_loop: bool) -> None:
        super().__init__(*step, in_loop=in_loop)
        self._model = model
        self._tools = {spec.name: spec for spec in tools}
        self._send = send
        self.update = JsonMap()
        self.failure = None
        self._replies: dict[str | None, tuple[records.ModelReply, AIMessage]] = {}
        self._shown: list[Any] = []

    async def reply(self) -> Any:
        """Run the hooks around the model call; returns the reply."""
        if self.state.get("step", 0) + 1 == self.state.get("first_step"):
            await self.all("before_agent")

        if self.state.get("preload"):  # of files: no model is called
            return await self._paid(self.messages, "", [], None)

        await self.all("before_model")
        self._shown = deepcopy(self.messages)
        request = types.ModelRequest(
            model=self._model,
            messages=[*self._shown],
            tools=[native_tool(spec) for spec in self._tools.values()],
            state={"messages": self._shown},
            runtime=self.runtime,
        )
        message: AIMessage = (await self.chain("wrap_model_call", self._handle, request)).result[0]

        if self.failure and message.id not in self._replies:  # a hook may not answer in place of the model
            self.failure = self.failure.model_copy(update={"diagnostics": (message.text,)})
            raise HandlerError

        if not message.id:
            message = message.model_copy(update={"id": uuid4().hex})

        self._replies.setdefault(message.id, (self._read(message), message))
        self.reply_id = message.id
        self.messages.append(message)
        await self.all("after_model")
        self.changed.pop(message.id, None)

        return self._read(self.messages[-1])

    async def _handle(self, request: Any) -> Any:
        for name in ("tool_choice", "response_format", "model_settings"):
            if getattr(request, name):
                self.fail(f"sets {name}: AgentContext says how the model is asked (model_kwargs, response_format)")

        names = [_name_of_tool(tool) for tool in request.tools]
        if unknown := sorted(set(names) - set(self._tools)):
            self.fail(f"offers {unknown[0]}, which is no tool of this call: give it to build_graph(tools=...)")

        messages = self._originals(request.messages)
        if not messages or close_dangling_calls(messages) is not None:
            self.fail("shows the model a conversation that no endpoint takes: each call needs its result after it")

        model = request.model
        if model is self._model:
            model = None

        async with self.handling():
            tools = [self._tools[name] for name in names]
            reply = await self._paid(messages, request.system_prompt or "", tools, model)

        if self.failure is not None:
            if self.failure.reason.is_limit:
                self.stop(self.failure.reason, self.failure.message)

            raise HandlerError(self.failure.message)
        message = _message(reply)
        self._replies[message.id] = reply, message
        return types.ModelResponse(result=[message.model_copy(deep=True)])

    def _originals(self, messages: Sequence[Any]) -> list[Any]:
        """The messages of a request, with those of the history in place of copies that no hook has changed."""
        originals = {id(copied): message for copied, message in zip(self._shown, self.messages, strict=True)}
        restored = []

        for message in messages:
            original = originals.get(id(message))
            if original == message:
                message = original  # noqa: PLW2901 - the same message
            restored.append(message)

        return restored

    async def _paid(self, messages: Sequence[Any], system: str, tools: Sequence[records.ToolSpec], model: Any) -> Any:
        update = await self._send({**self.state, **self.update, "messages": messages}, system, tools, model)
        self.failure = update.pop("stop", None)
        reply = update.pop("reply")
        self.update |= {name: value for name, value in update.items() if name != "step"}
        return reply

    def accepted(self, result: Any) -> Any:
        """The response of a hook with one reply; anything else is a failure of the hook."""
        command = getattr(result, "command", None)
        result = getattr(result, "model_response", result)
        messages = getattr(result, "result", [])
        if isinstance(result, AIMessage):
            messages = [result]

        if command or len(messages) != 1 or not isinstance(messages[0], AIMessage):
            self.fail("gave back something else than one reply: give back an AIMessage, or a ModelResponse with one")
        return types.ModelResponse(result=messages)

    def _read(self, message: AIMessage) -> records.ModelReply:
        """A message as a reply: the model's, with the changes of hooks, or one that a hook wrote."""
        reply, original = self._replies.get(message.id, (records.ModelReply(), None))
        if original and (message.content, _calls(message)) == (original.content, _calls(original)):
            return reply
        assembly = ReplyAssembly()
        clean = self.redactor.unnamed
        assembly.take(message)
        if (assembled := assembly.reply(0.0)) is None:
            self.fail("gave back a reply that is not complete")
        changed: JsonMap = {"text": clean(assembled.text), "provider": {}}
        if original is None or _calls(message) != _calls(original):
            calls = [call.model_copy(update={"arguments": clean(call.arguments)}) for call in assembled.calls]
            finish_reason = records.FinishReason.STOP
            if calls:
                finish_reason = records.FinishReason.TOOL_CALLS

            changed |= {"calls": tuple(calls), "finish_reason": finish_reason}

        return reply.model_copy(update=changed)


def _name_of_tool(tool: Any) -> str:
    if isinstance(tool, dict):
        name: str = tool["function"]["name"]
        return name

    return str(tool.name)


def _message(reply: records.ModelReply) -> AIMessage:
    """A reply as a message for hooks; a call whose arguments are no JSON is an invalid one."""
    calls, broken = default_tool_parser([_raw_call(call) for call in reply.calls])
    input_tokens = reply.input_tokens
    output_tokens = reply.output_tokens
    return AIMessage(
        reply.text,
        id=uuid4().hex,
        tool_calls=calls,
        invalid_tool_calls=broken,
        usage_metadata={
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "total_tokens": input_tokens + output_tokens,
        },
        response_metadata={"finish_reason": reply.finish_reason.value, "model_name": reply.model},
    )


def _raw_call(call: records.RawCall) -> JsonMap:
    return {"id": call.call_id, "function": {"name": call.tool, "arguments": call.arguments or "{}"}}


class ToolStep(Step):
    """One call of a tool, which has passed guard; `once`: it must not run a second time."""

    def __init__(self, call: Any, run: Callable[[], ToolRun], *step: Any, once: bool, in_loop: bool) -> None:
        super().__init__(*step, in_loop=in_loop)
        self._call: records.ToolCall = call
        self._run = run
        self._once = once
        self._has_started = False
        self._tool_run = ToolRun(call.call_id, call.tool, ToolOutput(ToolResult(ok=True)))

    async def message(self) -> Any:
        """Run the hooks around the call; returns the message with its result."""
        call = self._call
        state = {"messages": deepcopy(self.messages)}
        runtime = self.runtime
        config = get_config()
        request = ToolCallRequest(
            tool_call={"name": call.tool, "args": deepcopy(call.arguments), "id": call.call_id, "type": "tool_call"},
            tool=None,
            state=state,
            runtime=ToolRuntime(state, runtime.context, config, runtime.stream_writer, call.call_id, runtime.store),
        )
        return await self.chain("wrap_tool_call", self._handle, request)

    async def _handle(self, request: Any) -> ToolMessage:
        call = self._call
        tool_call = request.tool_call
        if (tool_call["name"], tool_call["args"]) != (call.tool, call.arguments):
            self.fail("changes a call that guard has judged: after_model may change the calls of a reply before that")
        if self._has_started and self._once:
            self.fail(f"ran {call.tool} a second time: a tool that has an effect runs once for each call")
        self._has_started = True
        async with self.handling():
            result = await await_call(self._run)
            self._tool_run = result

        if not self._once and result.error.startswith(("tool_error:", "user_error:")):
            raise HandlerError(result.reason)
        status: Any = "error"
        if result.result.ok:
            status = "success"

        text = render_native_result(result.as_record())
        return ToolMessage(text, tool_call_id=call.call_id, name=call.tool, status=status)

    def accepted(self, result: Any) -> Any:
        """The message of a hook; one that is not the result of this call is a failure of the hook."""
        if not isinstance(result, ToolMessage) or result.tool_call_id != self._call.call_id:
            self.fail("gave back something else than the result of its call: give back a ToolMessage with its id")
        return result

    def tool_run(self, message: ToolMessage | None = None) -> ToolRun:
        """The run of the call, with the result that its hooks returned as `message`; its effects stay on record."""
        run = self._tool_run
        if self.end is not None:
            error = records.ToolError(code=records.ToolErrorCode.HOOK_FAILED, message=self.end.message, fatal=True)
            result = ToolResult(ok=False, error=error)
        elif message is None or message.text == render_native_result(run.as_record()):
            return run
        elif message.status == "error":
            result = ToolResult.failure(records.ToolErrorCode.IO_ERROR, message.text)
        else:
            result = ToolResult.success(value=message.text)

        output = redacted_output(replace(run.output, result=result), self.redactor)
        return replace(run, output=replace(output, result=clip(output.result)), error="")
