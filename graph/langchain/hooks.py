"""LangChain's middleware around the machine's own steps: what it may do there, and what is refused.

A hook decides what it likes about a step, and steps over nothing that holds for every run: each request of its handler
is reserved and paid, each call of a tool has passed guard, what has an effect runs once, and the history stays valid.
Sync hooks run in threads, async ones in the run's event loop; neither holds a run up for longer than its time.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, Never, TypeVar, cast
from uuid import uuid4

from langchain.agents.middleware import types
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage, convert_to_messages
from langgraph.config import get_config
from langgraph.prebuilt.tool_node import ToolCallRequest, ToolRuntime
from langgraph.runtime import Runtime, get_runtime
from pydantic import ValidationError

from mendgraph.graph.langchain.replies import ReplyAssembly
from mendgraph.nodes.call_model.driver import LAST_WORDS_S, MODEL_LOOP
from mendgraph.nodes.call_model.prompts.prompt import native_tool
from mendgraph.nodes.execute_tools.engine import redacted_output
from mendgraph.nodes.execute_tools.files.deadline import await_call, monotonic_s
from mendgraph.nodes.execute_tools.registry import ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.execute_tools.step import JOURNALED
from mendgraph.nodes.execute_tools.tool_run import ToolRun, clip
from mendgraph.nodes.language.history import close_dangling_calls
from mendgraph.nodes.language.text_protocol import decode_arguments, render_native_result
from mendgraph.nodes.records import (
    FinishReason,
    JsonMap,
    ModelReply,
    Outcome,
    OutcomeKind,
    StopCause,
    StopReason,
    ToolCall,
    ToolError,
    ToolErrorCode,
    ToolResult,
    ToolSpec,
)

Done = TypeVar("Done")
InLoop = Callable[[Coroutine[Any, Any, Any]], Any]
Handler = Callable[[Any], Coroutine[Any, Any, Any]]

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

    def __init__(self, message: str, cause: StopCause | None = None) -> None:
        super().__init__(message)
        self.cause = cause


class TurnEndedError(BaseException):
    """Ends the hooks of a step, and says why. As with KeyboardInterrupt, a hook that retries does not catch it."""

    def __init__(self, cause: StopCause) -> None:
        super().__init__(cause.message)
        self.cause = cause


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
            kind = f"the class {each.__name__}" if isinstance(each, type) else f"a {type(each).__name__}"
            raise TypeError(f"middleware: {kind} does not fit: give instances of LangChain's AgentMiddleware.")
        if names.count(each.name) > 1:
            raise ValueError(f"middleware: two are called {each.name!r}: give one of them another name.")
        if instead := next((INSTEAD[kind.__name__] for kind in type(each).__mro__ if kind.__name__ in INSTEAD), ""):
            raise ValueError(f"middleware: {each.name} cannot be used here: {instead}.")
        if own := sorted(set(each.state_schema.__annotations__) - set(types.AgentState.__annotations__)):
            raise ValueError(
                f"middleware: {each.name} has a state_schema with {', '.join(own)}, and the machine's state is closed:"
                " keep it in an attribute, or in runtime.store."
            )
        for hook in (*HOOKS, *(f"a{name}" for name in HOOKS)):
            if jumps := sorted(set(getattr(getattr(each, hook), "__can_jump_to__", ())) - {"end"}):
                raise ValueError(f'middleware: {hook} of {each.name} jumps to {jumps[0]!r}: it can only jump to "end".')


class _Step:
    """A step with hooks around it: which of them is at work, what it is shown, and how much time is left to all."""

    def __init__(self, hooks: "Hooks", state: Mapping[str, Any], seconds: float, *, in_loop: bool) -> None:
        self.hooks, self.messages, self.in_loop = hooks, list(state["messages"]), in_loop
        self.runtime: Runtime[Any] = get_runtime().override(context=state["context"])
        self.at, self.over, self.used = "", False, 0.0
        self.end: StopCause | None = None
        self.changed: dict[str | None, AnyMessage] = {}
        self.reply_id: str | None = None
        self._seconds, self._since, self._handling = min(HOOK_S, seconds), monotonic_s(), False
        self._busy = asyncio.Lock()
        self._blame: tuple[BaseException | None, str] = (None, "")

    def fail(self, what: str) -> Never:
        self.stop(StopCause(reason=StopReason.HOOK_FAILED, message=f"The hook {self.at} {what}."))

    def stop(self, cause: StopCause) -> Never:
        self.end = self.end or cause  # which stands, whatever a hook makes of it
        raise TurnEndedError(self.end)

    def left(self) -> float:
        return self._seconds - self.used - (0.0 if self._handling else monotonic_s() - self._since)

    @asynccontextmanager
    async def handling(self) -> AsyncIterator[None]:
        """While the handler of a hook works, which has limits of its own: one request after the other."""
        async with self._busy:
            if self.over or self.end:
                raise TurnEndedError(self.end or StopCause(reason=StopReason.CANCELLED, message="This step is over."))
            self.used, self._handling = self._seconds - self.left(), True
            try:
                yield
            finally:
                self._since, self._handling = monotonic_s(), False

    async def within(self, work: Coroutine[Any, Any, Done]) -> Done:
        """What the hooks come to.

        Raises:
            HandlerError: they let the failure of a handler's call pass.
            TurnEndedError: one failed, took too long, or ended the turn.
        """
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # heard, also once it was given up
        try:
            while not task.done() and self.left() > 0:
                await asyncio.wait({task}, timeout=self.left())
        finally:
            late, at, self.over = not task.done(), self.at, True
            self.used = self._seconds - self.left()
            if late:
                task.cancel()
                await asyncio.wait({task}, timeout=LAST_WORDS_S)
        async with self._busy:  # what nobody waits for any more is paid all the same
            self.at = at
        if late and self._seconds < HOOK_S:
            message = f"Limit 'max_seconds' exceeded: the hook {self.at} had not ended."
            self.end = self.end or StopCause(reason=StopReason.WALL_CLOCK, message=message)
        if self.end:
            raise TurnEndedError(self.end)
        if late:
            self.fail(f"did not end within {self._seconds:g} s")
        if task.cancelled():
            self.fail("cancelled itself")
        error = task.exception()
        if isinstance(error, Exception) and not isinstance(error, HandlerError):
            self.at = self._blame[1] if self._blame[0] is error else self.at
            self.fail(f"failed: {type(error).__name__}: {str(error)[:500].rstrip('.')}")
        return task.result()

    async def call(self, each: Any, name: str, *given: Any) -> Any:
        """What a hook gives back; the last of what it is given may be the handler."""
        before, self.at = self.at, f"{name} of {each.name}"
        plain, own = _own(each, name), _own(each, f"a{name}")
        loop = asyncio.get_running_loop()

        def blocking(handler: Handler, request: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(handler(request), loop).result()

        try:
            if own and (self.in_loop or not plain):
                result = await own(*given)
            else:
                *others, last = given
                last = partial(blocking, last) if name.startswith("wrap") else last
                result = await await_call(partial(plain, *others, last))
            return self.accepted(result) if name.startswith("wrap") else self.take(result)
        except (Exception, SystemExit) as error:
            if error is not self._blame[0]:
                self._blame = error, self.at
            if isinstance(error, SystemExit):  # it would end the event loop
                self.fail("raised SystemExit")
            raise
        finally:
            self.at = before

    def chain(self, name: str, last: Handler) -> Handler:
        """The handler with the hooks of this name around it, the first of them outermost."""
        for each in reversed(self.hooks.of(name)):
            last = partial(self._layer, each, name, last)
        return last

    async def _layer(self, each: Any, name: str, handler: Handler, request: Any) -> Any:
        return await self.call(each, name, request, handler)

    async def all(self, name: str) -> None:
        """Call the hooks of this name one after the other, those after a step in reverse."""
        hooks = self.hooks.of(name)
        for each in reversed(hooks) if name.startswith("after") else hooks:
            await self.call(each, name, {"messages": deepcopy(self.messages)}, self.runtime)

    def accepted(self, result: Any) -> Any:
        raise NotImplementedError

    def take(self, update: Any) -> None:
        """Take in what a hook changes: the content of messages that are there, and the calls of the new reply."""
        if update is None:
            return
        if not isinstance(update, Mapping):
            self.fail(f"gave back a {type(update).__name__}: give back None or a dict")
        if others := sorted(set(update) - {"messages", "jump_to"}):
            self.fail(f"writes {', '.join(others)}, which it may not: it may change messages, or jump to the end")
        if (jump := update.get("jump_to")) not in {None, "end"}:
            self.fail(f'jumps to {jump!r}: it can only jump to "end"')
        said, given = "", update.get("messages") or []
        places = {message.id: place for place, message in enumerate(self.messages)}
        for message in convert_to_messages(given if isinstance(given, list) else [given]):
            place = places.get(message.id)
            if place is None and jump and isinstance(message, AIMessage):
                said = message.text
                continue
            if place is None or type(message) is not type(self.messages[place]):
                self.fail(
                    "adds or removes messages: it may replace one by another of its type and id. What one call is"
                    " shown beside the history, wrap_model_call says"
                )
            old = self.messages[place]
            if _calls(message) != _calls(old) and message.id != self.reply_id:
                self.fail("changes the calls of the history, whose results are there")
            if message != old:
                self.messages[place] = self.changed[message.id] = cast("AnyMessage", message)
        if jump:
            self.stop(StopCause(reason=StopReason.CANCELLED, message=said or f"The hook {self.at} ended the turn."))


def _own(each: Any, name: str) -> Any:
    return None if getattr(type(each), name) is getattr(types.AgentMiddleware, name) else getattr(each, name)


def _calls(message: Any) -> object:
    return getattr(message, "tool_call_id", None), getattr(message, "tool_calls", None)


class ModelStep(NamedTuple):
    """How the model calls of a step are made: for which slice of the state, with which tools, and by whom.

    `send` makes a paid call for a slice of the state, with words for the system prompt, some of the tools, and a chat
    model where it is not to be the run's own.
    """

    state: Mapping[str, Any]
    tools: tuple[ToolSpec, ...]
    model: BaseChatModel
    send: Callable[[Mapping[str, Any], str, tuple[ToolSpec, ...], BaseChatModel | None], Awaitable[JsonMap]]
    redactor: Redactor
    seconds: float


class _ModelStep(_Step):
    def __init__(self, hooks: "Hooks", given: ModelStep, *, in_loop: bool) -> None:
        super().__init__(hooks, given.state, given.seconds, in_loop=in_loop)
        self.given, self.update = given, JsonMap()
        self._failure: StopCause | None = None
        self._replies: dict[str | None, tuple[ModelReply, AIMessage]] = {}
        self._shown: list[AnyMessage] = []

    async def reply(self) -> ModelReply | None:
        given, state = self.given, self.given.state
        if state.get("step", 0) + 1 == state.get("first_step"):
            await self.all("before_agent")
        if state.get("preload"):  # no model is asked
            return await self._sent("", given.tools, None, self.messages)
        await self.all("before_model")
        self._shown = deepcopy(self.messages)
        request = types.ModelRequest(
            model=given.model,
            messages=[*self._shown],
            tools=[native_tool(spec) for spec in given.tools],
            state={"messages": self._shown},
            runtime=self.runtime,
        )
        message: AIMessage = (await self.chain("wrap_model_call", self._handle)(request)).result[0]
        if self._failure and message.id not in self._replies:  # to answer in its place a hook asks another model
            raise HandlerError(message.text, self._failure.model_copy(update={"diagnostics": (message.text,)}))
        message = message if message.id else message.model_copy(update={"id": uuid4().hex})
        self._replies.setdefault(message.id, (self._read(message), message))
        self.reply_id = message.id
        self.messages.append(message)
        await self.all("after_model")
        self.changed.pop(message.id, None)
        return self._read(self.messages[-1])

    async def _handle(self, request: Any) -> Any:
        given = self.given
        for name in ("tool_choice", "response_format", "model_settings"):
            if getattr(request, name):
                self.fail(f"sets {name}: AgentContext says how the model is asked (model_kwargs, answer_schema)")
        known = {spec.name: spec for spec in given.tools}
        names = [each["function"]["name"] if isinstance(each, dict) else each.name for each in request.tools]
        if unknown := sorted(set(names) - set(known)):
            self.fail(f"offers {unknown[0]}, which is no tool of this call: give it to build_graph(tools=...)")
        was = {id(copied): message for copied, message in zip(self._shown, self.messages, strict=True)}
        messages = [was[id(each)] if was.get(id(each)) == each else each for each in request.messages]
        if not messages or close_dangling_calls(messages) is not None:
            self.fail("shows the model a conversation that no endpoint takes: each call needs its result after it")
        system, model = request.system_prompt or "", None if request.model is given.model else request.model
        async with self.handling():
            reply = await self._sent(system, tuple(known[name] for name in names), model, messages)
        if reply is None:
            assert self._failure  # noqa: S101 - a call has a reply or a cause
            if self._failure.reason.is_limit:
                self.stop(self._failure)
            raise HandlerError(self._failure.message, self._failure)
        message = _message(reply)
        self._replies[message.id] = reply, message
        return types.ModelResponse(result=[message.model_copy(deep=True)])

    async def _sent(
        self, system: str, tools: tuple[ToolSpec, ...], model: BaseChatModel | None, messages: Sequence[AnyMessage]
    ) -> ModelReply | None:
        state = {**self.given.state, **self.update, "messages": messages}
        update = await self.given.send(state, system, tools, model)
        reply: ModelReply | None = update.pop("reply")
        self._failure = update.pop("stop", None)
        self.update |= {name: value for name, value in update.items() if name != "step"}
        return reply

    def accepted(self, result: Any) -> Any:
        command = getattr(result, "command", None)
        result = getattr(result, "model_response", result)
        messages = [result] if isinstance(result, AIMessage) else getattr(result, "result", [])
        if command or len(messages) != 1 or not isinstance(messages[0], AIMessage):
            self.fail("gave back something else than one reply: give back an AIMessage, or a ModelResponse with one")
        return types.ModelResponse(result=messages)

    def _read(self, message: AnyMessage) -> ModelReply:
        """A message as a reply: the one that came, with what a hook has changed of it, or one that a hook wrote."""
        reply, came = self._replies.get(message.id, (ModelReply(), None))
        if came and (message.content, _calls(message)) == (came.content, _calls(came)):
            return reply
        assembly, clean = ReplyAssembly(), self.given.redactor.unnamed
        assembly.take(cast("AIMessage", message))
        if (said := assembly.reply(0.0)) is None:
            self.fail("gave back a reply that is not complete")
        changed: JsonMap = {"text": clean(said.text), "provider": {}}
        if came is None or _calls(message) != _calls(came):
            calls = [call.model_copy(update={"arguments": clean(call.arguments)}) for call in said.calls]
            ended = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
            changed |= {"calls": tuple(calls), "finish_reason": ended}
        return reply.model_copy(update=changed)


def _message(reply: ModelReply) -> AIMessage:
    """A reply as a hook is shown it; a call whose arguments are no JSON is an invalid one."""
    calls, broken = [], []
    for call in reply.calls:
        arguments = decode_arguments(call.arguments or "{}")
        if isinstance(arguments, dict):
            calls.append({"name": call.tool, "args": arguments, "id": call.call_id, "type": "tool_call"})
        else:
            broken.append({"name": call.tool, "args": call.arguments, "id": call.call_id, "error": arguments.details})
    return AIMessage(
        reply.text,
        id=uuid4().hex,
        tool_calls=calls,
        invalid_tool_calls=broken,
        usage_metadata={
            "input_tokens": reply.input_tokens,
            "output_tokens": reply.output_tokens,
            "total_tokens": reply.input_tokens + reply.output_tokens,
        },
        response_metadata={"finish_reason": reply.finish_reason.value, "model_name": reply.model},
    )


class _ToolStep(_Step):
    """One call of a tool."""

    def __init__(self, hooks: "Hooks", given: "ToolStep", call: ToolCall, context: ToolContext) -> None:
        super().__init__(hooks, given.state, context.seconds_left, in_loop=given.in_loop is not None)
        self.given, self.tool_call, self.context = given, call, context
        self.ran: ToolRun | None = None
        self._began = monotonic_s()

    async def message(self) -> ToolMessage:
        call, state, runtime = self.tool_call, {"messages": deepcopy(self.messages)}, self.runtime
        request = ToolCallRequest(
            tool_call={"name": call.tool, "args": deepcopy(call.arguments), "id": call.call_id, "type": "tool_call"},
            tool=None,
            state=state,
            runtime=ToolRuntime(
                state, runtime.context, get_config(), runtime.stream_writer, call.call_id, runtime.store
            ),
        )
        told: ToolMessage = await self.chain("wrap_tool_call", self._handle)(request)
        return told

    async def _handle(self, request: Any) -> ToolMessage:
        call, given = self.tool_call, self.given
        tool, arguments, effect = request.tool_call["name"], request.tool_call["args"], given.specs[call.tool].effect
        if tool != call.tool:
            self.fail(f"runs {tool} in place of {call.tool}: it may change the arguments alone")
        if self.ran is not None and effect in JOURNALED:
            self.fail(f"ran {tool} a second time: a tool with the effect {effect} runs once for each call")
        async with self.handling():
            wanted: ToolCall | ToolRun = call
            if arguments != call.arguments:
                wanted = given.judge(call.model_copy(update={"arguments": arguments, "raw_arguments": ""}))
            if isinstance(wanted, ToolCall):
                left = self.context.seconds_left + self._began - monotonic_s()
                wanted = await await_call(partial(given.run, wanted, replace(self.context, seconds_left=left)))
        self.ran = wanted
        if effect not in JOURNALED and wanted.error.startswith(("tool_error:", "user_error:")):
            raise HandlerError(wanted.reason)
        status: Any = "success" if wanted.result.ok else "error"
        return ToolMessage(
            render_native_result(wanted.as_record()), tool_call_id=call.call_id, name=tool, status=status
        )

    def accepted(self, result: Any) -> Any:
        if not isinstance(result, ToolMessage) or result.tool_call_id != self.tool_call.call_id:
            self.fail("gave back something else than the result of its call: give back a ToolMessage with its id")
        return result

    def run_of(self, told: ToolMessage | ToolError | None) -> ToolRun:
        """What the call came to, as its hooks have told it; what it has changed stays on record."""
        ran = self.ran or ToolRun("", self.tool_call.tool, ToolOutput(ToolResult(ok=True)))
        ran = replace(ran, call_id=self.tool_call.call_id)
        if told is None or (isinstance(told, ToolMessage) and told.text == render_native_result(ran.as_record())):
            return ran
        if isinstance(told, ToolError):
            result = ToolResult(ok=False, error=told)
        else:
            try:
                result = ToolResult.model_validate_json(told.text)
            except ValidationError:
                failed = ToolResult.failure(ToolErrorCode.IO_ERROR, told.text)
                result = failed if told.status == "error" else ToolResult(ok=True, data={"value": told.text})
        output = redacted_output(replace(ran.output, result=result), self.given.redactor)
        return replace(ran, output=replace(output, result=clip(output.result)), error="")


class ToolStep(NamedTuple):
    """How the calls of a step are run.

    `judge` gives a call that a hook has changed as it may run, or its refusal. `in_loop` runs a coroutine in the event
    loop of the run, from the thread of this step.
    """

    state: Mapping[str, Any]
    run: Callable[[ToolCall, ToolContext], ToolRun]
    judge: Callable[[ToolCall], ToolCall | ToolRun]
    specs: Mapping[str, ToolSpec]
    redactor: Redactor
    in_loop: InLoop | None


class Hooks:
    """The middleware of one machine, in its order."""

    def __init__(self, middleware: Sequence[Any]) -> None:
        """Nothing is called yet."""
        self._all = tuple(middleware)

    def of(self, name: str) -> list[Any]:
        """Those that have this hook, sync or async."""
        return [each for each in self._all if _own(each, name) or _own(each, f"a{name}")]

    async def call_model(self, given: ModelStep, *, in_loop: bool) -> JsonMap:
        """The update of a model call with its hooks around it, the first of a turn with those before the turn."""
        step = _ModelStep(self, given, in_loop=in_loop)
        try:
            reply = await step.within(step.reply())
            update: JsonMap = {"reply": reply, "step": given.state.get("step", 0) + 1}
        except (HandlerError, TurnEndedError) as end:
            update = {"reply": None, "stop": end.cause}
        spending = step.update.get("spending", given.state["spending"])
        spending = spending.model_copy(update={"seconds": spending.seconds + step.used})
        update = {**step.update, **update, "spending": spending}
        return {**update, "messages": _clean(step, given.redactor)} if step.changed else update

    def run_tool(self, given: ToolStep, call: ToolCall, context: ToolContext) -> ToolRun:
        """Run a call with the hooks around it. Blocks."""
        if not self.of("wrap_tool_call"):
            return given.run(call, context)

        async def run() -> ToolRun:
            step = _ToolStep(self, given, call, context)
            try:
                return step.run_of(await step.within(step.message()))
            except HandlerError:  # no hook made anything of it
                return step.run_of(None)
            except TurnEndedError as end:
                late = end.cause.reason is StopReason.WALL_CLOCK
                code = ToolErrorCode.TIMEOUT if late else ToolErrorCode.HOOK_FAILED
                return step.run_of(ToolError(code=code, message=end.cause.message, fatal=not late))

        ran: ToolRun = (given.in_loop or MODEL_LOOP.run)(run())
        return ran

    def end_turn(
        self, state: Mapping[str, Any], update: JsonMap, redactor: Redactor, in_loop: InLoop | None
    ) -> JsonMap:
        """The update of a terminal after the hooks that come after a turn. One that fails makes the turn a failure."""
        outcome: Outcome = update["outcome"]
        if outcome.reason is StopReason.INVALID_REQUEST or not self.of("after_agent"):
            return update
        last = update["messages"][0].model_copy(update={"id": uuid4().hex})

        async def run() -> tuple[_Step, StopCause | None]:
            ended = {**state, "messages": [*state["messages"], last]}
            step = _Step(self, ended, HOOK_S, in_loop=in_loop is not None)
            try:
                await step.within(step.all("after_agent"))
            except TurnEndedError as end:
                return step, end.cause
            return step, None

        step, cause = (in_loop or MODEL_LOOP.run)(run())
        changed = _clean(step, redactor)
        told = next((each for each in changed if each.id == last.id), last)
        if cause is not None and cause.reason is StopReason.HOOK_FAILED:
            ended = f"Before that the turn had ended: {outcome.kind} ({outcome.reason}). {outcome.message}"
            way = cause.reason.how_to_go_on
            failed: JsonMap = {
                "kind": OutcomeKind.SYSTEM_ERROR,
                "reason": cause.reason,
                "message": redactor.text(cause.message),
            }
            failed |= {"diagnostics": (ended, *outcome.diagnostics), "answer": "", "value": None, "how_to_go_on": way}
            outcome = outcome.model_copy(update=failed)
        elif told is not last and outcome.kind is OutcomeKind.FINISHED:
            outcome = outcome.model_copy(update={"answer": told.text})
        return {**update, "messages": [*(each for each in changed if each is not told), told], "outcome": outcome}


def _clean(step: _Step, redactor: Redactor) -> list[AnyMessage]:
    return [
        message.model_copy(update={"content": redactor.content(message.content)}) for message in step.changed.values()
    ]
