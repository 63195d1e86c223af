"""LangChain's middleware around the machine's own steps: what it may do there, and what is refused.

A hook decides what it likes about a step, and steps over nothing that holds for every run: each request of its handler
is reserved and paid, each call of a tool has passed guard, what has an effect runs once, and the history stays valid.
Sync hooks run in threads, async ones in the run's event loop; neither holds a run up for longer than its time.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from copy import deepcopy
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, Final, Never, TypeVar
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
from mendgraph.nodes.call_model.prompts.prompt import native_tool
from mendgraph.nodes.call_model.services import LAST_WORDS_S
from mendgraph.nodes.execute_tools.engine import redacted_output
from mendgraph.nodes.execute_tools.files.deadline import Worker, await_call, monotonic_s
from mendgraph.nodes.execute_tools.registry import ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.execute_tools.step import JOURNALED
from mendgraph.nodes.execute_tools.tool_run import ToolRun, clip
from mendgraph.nodes.language.history import close_dangling_calls
from mendgraph.nodes.language.text_protocol import render_native_result
from mendgraph.nodes.records import JsonMap, StopReason, ToolResult

Result = TypeVar("Result")
Handler = Callable[[Any], Coroutine[Any, Any, Any]]
Run = Callable[[records.ToolCall, ToolContext], ToolRun]
Send = Callable[[Mapping[str, Any], str, Sequence[records.ToolSpec], BaseChatModel | None], Awaitable[JsonMap]]
"""Makes a paid model call: for a slice of the state, with words for the system prompt, some of the tools, and a chat
model where it is not to be the run's own. Returns the update."""

HOOK_S: Final = 60.0
"""Seconds that the hooks of one step may take by themselves, where the turn has so many left."""

HOOKS: Final = ("before_agent", "before_model", "wrap_model_call", "after_model", "wrap_tool_call", "after_agent")

INSTEAD: Final[Mapping[str, str]] = {
    "HumanInTheLoopMiddleware": 'AgentContext(mode="ask") asks a person, shows what a call would change, and waits',
    "LLMToolSelectorMiddleware": 'AgentContext(offer="few") offers fewer tools, without a call outside of the budget',
    "ModelCallLimitMiddleware": "AgentContext has max_calls_per_turn and max_calls_per_session",
    "ShellToolMiddleware": "AgentContext(allowed_programs=...) offers run_command, in a sandbox",
    "SummarizationMiddleware": "the conversation is kept inside AgentContext(window_tokens=...), and the history whole",
    "TodoListMiddleware": "the tool update_plan keeps a plan, which the outcome and a resume know",
    "ToolCallLimitMiddleware": "AgentContext has tool_quotas and tool_calls_per_minute",
}
"""Middleware of LangChain's whose work the machine does itself, and by what."""


class HandlerError(Exception):
    """What a hook hears of its handler's call that failed: a model that did not answer, a reading tool that raised."""


class TurnEndedError(BaseException):
    """Ends the hooks of a step. As with KeyboardInterrupt, a hook that retries does not catch it."""


class TurnModel(BaseChatModel):
    """Stands for the models that a context names."""

    model_name: str

    @property
    def _llm_type(self) -> str:
        return "mendgraph"

    def _generate(self, *_: Any, **__: Any) -> Never:
        raise NotImplementedError("the run's own model is asked by handler(request), which is reserved and paid")


def check_middleware(given: Sequence[object]) -> None:
    """Refuse what cannot be honoured, where it is given.

    Raises:
        TypeError: one is no middleware.
        ValueError: two have one name, or one needs what there is not here; the message says what does its work.
    """
    names = [each.name for each in given if isinstance(each, types.AgentMiddleware)]

    for each in given:
        if not isinstance(each, types.AgentMiddleware):
            if isinstance(each, type):
                kind = f"the class {each.__name__}"
            else:
                kind = f"a {type(each).__name__}"

            raise TypeError(f"middleware: {kind} does not fit: give instances of LangChain's AgentMiddleware.")

        why = next((INSTEAD[kind.__name__] for kind in type(each).__mro__ if kind.__name__ in INSTEAD), "")

        if names.count(each.name) > 1:
            why = "two have this name"
        elif own_fields := sorted(set(each.state_schema.__annotations__) - set(types.AgentState.__annotations__)):
            why = why or f"the state has no {', '.join(own_fields)} (state_schema): use an attribute, or runtime.store"

        for hook in (*HOOKS, *(f"a{name}" for name in HOOKS)):
            if jumps := sorted(set(getattr(getattr(each, hook), "__can_jump_to__", ())) - {"end"}):
                why = f'{hook} jumps to {jumps[0]!r}, and can only jump to "end"'

        if why:
            raise ValueError(f"middleware: {each.name} cannot be used here: {why}.")


class _Step:
    """A step with hooks around it: which of them is at work, what it is shown, and how much time is left to all."""

    def __init__(self, hooks: "Hooks", state: Mapping[str, Any], seconds: float, *, in_loop: bool) -> None:
        self.of = hooks.of
        self.state = state
        self.redactor = hooks.redactor()
        self.in_loop = in_loop
        self.messages: list[Any] = list(state["messages"])
        self.runtime = get_runtime().override(context=state["context"])
        self.at = ""
        self.over = False
        self.used = 0.0
        self.reply_id: str | None = None
        self.end: records.StopCause | None = None
        self.changed: dict[str | None, AnyMessage] = {}
        self._seconds = min(HOOK_S, seconds)
        self._since = monotonic_s()
        self._handling = False
        self._busy = asyncio.Lock()
        self._blame: tuple[BaseException | None, str] = (None, "")

    def fail(self, what: str) -> Never:
        self.stop(StopReason.HOOK_FAILED, f"The hook {self.at} {what}.")

    def stop(self, reason: StopReason, message: str) -> Never:
        self.end = self.end or records.StopCause(reason=reason, message=self.redactor.text(message))
        raise TurnEndedError

    def left(self) -> float:
        return self._seconds - self.used - (0.0 if self._handling else monotonic_s() - self._since)

    @asynccontextmanager
    async def handling(self) -> AsyncIterator[None]:
        """While the handler of a hook works, which has limits of its own: one request after the other."""
        async with self._busy:
            if self.over or self.end:
                raise TurnEndedError

            self.used = self._seconds - self.left()
            self._handling = True

            try:
                yield
            finally:
                self._since = monotonic_s()
                self._handling = False

    async def within(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What the hooks come to.

        Raises:
            HandlerError: they let the failure of a handler's call pass.
            TurnEndedError: one failed, took too long, or ended the turn; `end` says which.
        """
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # heard, also once it was given up

        try:
            while not task.done() and self.left() > 0:
                await asyncio.wait({task}, timeout=self.left())
        finally:
            late = not task.done()
            at = self.at
            self.over = True
            self.used = self._seconds - self.left()

            if late:
                task.cancel()
                await asyncio.wait({task}, timeout=LAST_WORDS_S)

        async with self._busy:  # what nobody waits for any more is paid all the same
            self.at = at

        if self.end:
            raise TurnEndedError

        if late or task.cancelled():
            self.fail(f"did not end within {self._seconds:g} s" if late else "cancelled itself")

        error = task.exception()
        if isinstance(error, Exception) and not isinstance(error, HandlerError):
            self.at = self._blame[1] if self._blame[0] is error else self.at
            if isinstance(error, GraphBubbleUp):
                self.fail('cannot interrupt a step: AgentContext(mode="ask") asks a person')

            self.fail(f"failed: {type(error).__name__}: {str(error)[:500].rstrip('.')}")

        return task.result()

    async def call(self, each: Any, name: str, last: Any, given: Any) -> Any:
        """What a hook makes of its request and its handler, or of the state and the runtime."""
        before = self.at
        self.at = f"{name} of {each.name}"
        plain = _own(each, name)
        async_form = _own(each, f"a{name}")
        wraps = name.startswith("wrap")
        loop = asyncio.get_running_loop()

        def handler(request: Any) -> Any:
            work = last(request)
            try:
                future = asyncio.run_coroutine_threadsafe(work, loop)
            except RuntimeError:  # the loop is closed: nobody waits for this hook any more
                work.close()
                raise

            return future.result()

        try:
            if async_form and (self.in_loop or not plain):
                result = await async_form(given, last)
            else:
                result = await await_call(partial(plain, given, handler if wraps else last))

            if wraps:
                return self.accepted(result)
            return self.take(result)
        except Exception as error:
            if error is not self._blame[0]:
                self._blame = error, self.at

            raise
        except SystemExit:  # of a hook, as of a tool, only KeyboardInterrupt ends the process
            self.fail("raised SystemExit")
        finally:
            self.at = before

    async def chain(self, name: str, handler: Handler, request: Any) -> Any:
        """What the handler with the hooks of this name around it makes of a request; the first is the outermost."""
        for hook in reversed(self.of(name)):
            handler = partial(self.call, hook, name, handler)

        return await handler(request)

    async def all(self, name: str) -> None:
        """Call the hooks of this name one after the other, those after a step in reverse."""
        for hook in self.of(name)[:: -1 if name.startswith("after") else 1]:
            await self.call(hook, name, self.runtime, {"messages": deepcopy(self.messages)})

    def accepted(self, result: Any) -> Any:
        raise NotImplementedError

    def take(self, update: Any) -> None:
        """Take in what a hook changes: the content of messages that are there, and the calls of the new reply."""
        update = {} if update is None else update
        if not isinstance(update, Mapping) or set(update) - {"messages", "jump_to"}:
            self.fail('gave back what it may not: it may change messages, and jump to "end"')

        if (jump := update.get("jump_to")) not in {None, "end"}:
            self.fail(f'jumps to {jump!r}, and can only jump to "end"')

        said = f"The hook {self.at} ended the turn."
        messages = update.get("messages") or []
        places = {message.id: place for place, message in enumerate(self.messages)}

        for message in convert_to_messages(messages if isinstance(messages, list) else [messages]):
            place = places.get(message.id)
            old = None if place is None else self.messages[place]

            if place is None and jump and isinstance(message, AIMessage):
                said = message.text
            elif place is None or type(message) is not type(old):
                self.fail(
                    "adds or removes messages: it may replace one by another of its type and id. What one call is"
                    " shown beside the history, wrap_model_call says"
                )
            elif _calls(message) != _calls(old) and message.id != self.reply_id:
                self.fail("changes the calls of the history, whose results are there")
            elif message != old:
                clean: Any = message.model_copy(update={"content": self.redactor.content(message.content)})
                self.messages[place] = self.changed[message.id] = clean

        if jump:
            self.stop(StopReason.CANCELLED, said)


def _own(each: Any, name: str) -> Any:
    if getattr(type(each), name) is getattr(types.AgentMiddleware, name):
        return None
    return getattr(each, name)


def _calls(message: Any) -> object:
    return getattr(message, "tool_call_id", None), getattr(message, "tool_calls", None)


class _ModelStep(_Step):
    """A model call, or the several that its hooks make of it."""

    def __init__(self, model: Any, tools: Sequence[records.ToolSpec], send: Send, *given: Any, in_loop: bool) -> None:
        super().__init__(*given, in_loop=in_loop)
        self._model = model
        self._tools = {spec.name: spec for spec in tools}
        self._send = send
        self.update = JsonMap()
        self.failure = None
        self._replies: dict[str | None, tuple[records.ModelReply, AIMessage]] = {}
        self._shown: list[Any] = []

    async def reply(self) -> Any:
        if self.state.get("step", 0) + 1 == self.state.get("first_step"):
            await self.all("before_agent")

        if self.state.get("preload"):  # no model is asked
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

        if self.failure and message.id not in self._replies:  # to answer in its place a hook asks another model
            self.failure = self.failure.model_copy(update={"diagnostics": (message.text,)})
            raise HandlerError

        message = message if message.id else message.model_copy(update={"id": uuid4().hex})
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

        names = [tool["function"]["name"] if isinstance(tool, dict) else tool.name for tool in request.tools]
        if unknown := sorted(set(names) - set(self._tools)):
            self.fail(f"offers {unknown[0]}, which is no tool of this call: give it to build_graph(tools=...)")

        was = {id(copied): message for copied, message in zip(self._shown, self.messages, strict=True)}
        messages = [was[id(each)] if was.get(id(each)) == each else each for each in request.messages]
        if not messages or close_dangling_calls(messages) is not None:
            self.fail("shows the model a conversation that no endpoint takes: each call needs its result after it")

        model = None if request.model is self._model else request.model
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

    async def _paid(self, messages: Sequence[Any], system: str, tools: Sequence[records.ToolSpec], model: Any) -> Any:
        update = await self._send({**self.state, **self.update, "messages": messages}, system, tools, model)
        self.failure = update.pop("stop", None)
        reply = update.pop("reply")
        self.update |= {name: value for name, value in update.items() if name != "step"}
        return reply

    def accepted(self, result: Any) -> Any:
        command = getattr(result, "command", None)
        result = getattr(result, "model_response", result)
        messages = [result] if isinstance(result, AIMessage) else getattr(result, "result", [])
        if command or len(messages) != 1 or not isinstance(messages[0], AIMessage):
            self.fail("gave back something else than one reply: give back an AIMessage, or a ModelResponse with one")
        return types.ModelResponse(result=messages)

    def _read(self, message: AIMessage) -> records.ModelReply:
        """A message as a reply: the one that came, with what a hook has changed of it, or one that a hook wrote."""
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
            if calls:
                ended = records.FinishReason.TOOL_CALLS
            else:
                ended = records.FinishReason.STOP
            changed |= {"calls": tuple(calls), "finish_reason": ended}
        return reply.model_copy(update=changed)


def _message(reply: records.ModelReply) -> AIMessage:
    """A reply as a hook is shown it; a call whose arguments are no JSON is an invalid one."""
    functions = [(call.call_id, {"name": call.tool, "arguments": call.arguments or "{}"}) for call in reply.calls]
    calls, broken = default_tool_parser([{"id": name, "function": function} for name, function in functions])
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


class _ToolStep(_Step):
    """One call of a tool, which has passed guard; `once` says that it must not run a second time."""

    def __init__(self, call: Any, run: Callable[[], ToolRun], *given: Any, once: bool, in_loop: bool) -> None:
        super().__init__(*given, in_loop=in_loop)
        self._call: records.ToolCall = call
        self._run = run
        self._once = once
        self._begun = False
        self._ran = ToolRun(call.call_id, call.tool, ToolOutput(ToolResult(ok=True)))

    async def message(self) -> Any:
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
        if self._begun and self._once:
            self.fail(f"ran {call.tool} a second time: a tool that has an effect runs once for each call")
        self._begun = True
        async with self.handling():
            self._ran = result = await await_call(self._run)
        if not self._once and result.error.startswith(("tool_error:", "user_error:")):
            raise HandlerError(result.reason)
        status: Any = "success" if result.result.ok else "error"
        text = render_native_result(result.as_record())
        return ToolMessage(text, tool_call_id=call.call_id, name=call.tool, status=status)

    def accepted(self, result: Any) -> Any:
        if not isinstance(result, ToolMessage) or result.tool_call_id != self._call.call_id:
            self.fail("gave back something else than the result of its call: give back a ToolMessage with its id")
        return result

    def ran(self, told: ToolMessage | None = None) -> ToolRun:
        """What the call came to, as its hooks have told it; what it has changed stays on record."""
        ran = self._ran
        if self.end is not None:
            error = records.ToolError(code=records.ToolErrorCode.HOOK_FAILED, message=self.end.message, fatal=True)
            result = ToolResult(ok=False, error=error)
        elif told is None or told.text == render_native_result(ran.as_record()):
            return ran
        elif told.status == "error":
            result = ToolResult.failure(records.ToolErrorCode.IO_ERROR, told.text)
        else:
            result = ToolResult.success(value=told.text)
        output = redacted_output(replace(ran.output, result=result), self.redactor)
        return replace(ran, output=replace(output, result=clip(output.result)), error="")


def _run_to_end(loop: asyncio.AbstractEventLoop, task: "asyncio.Task[Result]") -> Result:
    try:
        return loop.run_until_complete(task)
    finally:
        others = asyncio.all_tasks(loop)
        for other in others:
            other.cancel()
        if others:
            loop.run_until_complete(asyncio.wait(others, timeout=LAST_WORDS_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


class Hooks:
    """The middleware of one machine, in its order; `redactor` gives what takes out secrets."""

    def __init__(self, middleware: Sequence[Any], redactor: Callable[[], Redactor]) -> None:
        """Nothing is called yet."""
        self._all = tuple(middleware)
        self.redactor = redactor

    def of(self, name: str) -> list[Any]:
        """Those that have this hook, sync or async."""
        return [hook for hook in self._all if _own(hook, name) or _own(hook, f"a{name}")]

    async def call_model(
        self, state: Any, model: BaseChatModel | str, tools: Sequence[records.ToolSpec], send: Send, *, in_loop: bool
    ) -> JsonMap:
        """The update of a model call with its hooks around it; before the first of a turn, those before the turn.

        `model` is what the hooks are shown: the run's chat model, or the name of the one that its context names.
        """
        if isinstance(model, str):
            model = TurnModel(model_name=model)
        limit = state["context"].max_seconds
        if limit is None:
            seconds = inf
        else:
            seconds = max(1.0, limit - state["spending"].seconds)
        step = _ModelStep(model, tools, send, self, state, seconds, in_loop=in_loop)
        try:
            update: JsonMap = {"reply": await step.within(step.reply()), "step": state.get("step", 0) + 1}
        except (HandlerError, TurnEndedError):
            update = {"reply": None, "stop": step.end or step.failure}
        spending = step.update.get("spending", state["spending"])
        update["spending"] = spending.model_copy(update={"seconds": spending.seconds + step.used})
        return {**step.update, **update, **({"messages": [*step.changed.values()]} if step.changed else {})}

    def around(self, state: Any, specs: Mapping[str, records.ToolSpec], in_loop: Any, run: Run) -> Run:
        """What runs a call with the hooks around it, and blocks; `in_loop` runs a coroutine in the run's event loop."""

        async def hooked(call: records.ToolCall, context: ToolContext) -> ToolRun:
            end = monotonic_s() + context.seconds_left
            once = specs[call.tool].effect in JOURNALED

            def run_it() -> ToolRun:
                return run(call, replace(context, seconds_left=end - monotonic_s()))

            arguments = (call, run_it, self, state, context.seconds_left)
            step = _ToolStep(*arguments, once=once, in_loop=in_loop is not None)
            try:
                return step.ran(await step.within(step.message()))
            except (HandlerError, TurnEndedError):
                return step.ran()

        if self.of("wrap_tool_call"):
            return lambda *call: (in_loop or self.run)(hooked(*call))
        return run

    @staticmethod
    def run(work: Coroutine[Any, Any, Result]) -> Result:
        """Run the hooks of a sync step in an event loop of its own, in a thread: its caller's may have a running one.

        Where the wait is interrupted, they are cancelled.
        """
        loop = asyncio.new_event_loop()
        task = loop.create_task(work)
        outcome = Worker(copy_context(), partial(_run_to_end, loop, task)).outcome
        try:
            return outcome.result()
        except BaseException:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(task.cancel)
            raise

    async def end_turn(self, state: Any, update: JsonMap, *, in_loop: bool) -> JsonMap:
        """The update of a terminal after the hooks that come after a turn. One that fails makes the turn a failure."""
        outcome = update["outcome"]
        if outcome.reason is StopReason.INVALID_REQUEST or not self.of("after_agent"):
            return update
        [last] = update["messages"]
        ended = {**state, "messages": [*state["messages"], last.model_copy(update={"id": uuid4().hex})]}
        step = _Step(self, ended, HOOK_S, in_loop=in_loop)
        with suppress(TurnEndedError):
            await step.within(step.all("after_agent"))
        if (end := step.end) is not None and end.reason is StopReason.HOOK_FAILED:
            before = f"Before that the turn had ended: {outcome.kind} ({outcome.reason}). {outcome.message}"
            failed = {"kind": records.OutcomeKind.SYSTEM_ERROR, "answer": "", "value": None, **dict(end)}
            failed |= {"diagnostics": (before,), "how_to_go_on": end.reason.how_to_go_on}
            return {**update, "outcome": outcome.model_copy(update=failed)}
        *_, message = step.messages
        step.changed[message.id] = message
        if outcome.kind is records.OutcomeKind.FINISHED and message.text != last.text:
            outcome = outcome.model_copy(update={"answer": message.text})
        return {**update, "messages": [*step.changed.values()], "outcome": outcome}
