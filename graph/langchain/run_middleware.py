"""Loop control and healing as middleware, and how middleware ends the run of an agent of `create_agent`."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal, NotRequired, Protocol
from uuid import UUID

from langchain.agents.middleware import types
from langchain.agents.structured_output import AutoStrategy, ToolStrategy
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage, InvalidToolCall, ToolCall as NativeCall, ToolMessage
from langchain_core.runnables.config import ensure_config, merge_configs, var_child_runnable_config
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.types import Command
from pydantic import BaseModel, ValidationError

from mendgraph.graph.langchain.replies import ReplyAssembly
from mendgraph.graph.langchain.wrapped_models import LIMIT_FIELDS
from mendgraph.nodes import records
from mendgraph.nodes.execute_tools.action_names import effect_by_name
from mendgraph.nodes.execute_tools.registry import describe_errors
from mendgraph.nodes.guard.policy import refuse_repeat
from mendgraph.nodes.heal.corrective_prompt import DEFAULT_SELF_HEALING_CONFIG, SelfHealingConfig
from mendgraph.nodes.heal.node import heal
from mendgraph.nodes.language.history import results_in, texts_in
from mendgraph.nodes.language.text_protocol import render_native_result
from mendgraph.nodes.loop_check import repetition
from mendgraph.nodes.parse.node import parse
from mendgraph.nodes.parse.reading import Reader

Exit = Literal["end", "error"]
ModelRequest = types.ModelRequest[Any]
ModelResponse = types.ModelResponse[Any]
ExtendedResponse = types.ExtendedModelResponse[Any]
ToolAnswer = ToolMessage | Command[Any]
ToolHandler = Callable[[types.ToolCallRequest], ToolAnswer]
AsyncToolHandler = Callable[[types.ToolCallRequest], Awaitable[ToolAnswer]]
Send = Callable[[ModelRequest], Awaitable[ModelResponse]]
RunBlocking = Callable[..., Coroutine[Any, Any, Any]]


class AgentStoppedError(Exception):
    """Raised by middleware with `exit_behavior="error"` where it ends a run; `cause` has the reason and a message."""

    def __init__(self, cause: records.StopCause) -> None:
        """Its text is the message of `cause` with its reason, and the errors that led to it."""
        if cause.reason.value in cause.message:
            reason = ""
        else:
            reason = f" ({cause.reason.value})"

        super().__init__("\n".join((f"{cause.message}{reason}", *cause.diagnostics)))
        self.cause = cause


class StoppingMiddleware(types.AgentMiddleware[types.AgentState[Any], Any, Any]):
    """Middleware that may end the run, with a message or an exception."""

    def __init__(self, exit_behavior: Exit) -> None:
        super().__init__()
        if exit_behavior not in ("end", "error"):
            raise ValueError(f"exit_behavior is 'end' or 'error', not {exit_behavior!r}")

        self._exit = exit_behavior

    def end(self, cause: records.StopCause) -> dict[str, Any]:
        """Return the update that ends the run, whose message has `cause` in `response_metadata["stop"]`, or raise."""
        error = AgentStoppedError(cause)
        if self._exit == "error":
            raise error

        message = AIMessage(str(error), response_metadata={"stop": cause.model_dump(mode="json")})
        return {"messages": [message], "jump_to": "end"}

    def stopped(self, cause: records.StopCause, **update: Any) -> ExtendedResponse:
        """Return the response that ends the run in place of a reply."""
        end = self.end(cause)
        return ExtendedResponse(ModelResponse(end.pop("messages")), Command(update=end | update))


class RefusingMiddleware(types.AgentMiddleware[types.AgentState[Any], Any, Any]):
    """Middleware that may refuse tool calls."""

    def refusal(self, request: types.ToolCallRequest) -> ToolMessage | None:
        """Return the result of a refused call, None if the tool may run."""
        raise NotImplementedError

    def wrap_tool_call(self, request: types.ToolCallRequest, handler: ToolHandler) -> ToolAnswer:
        """Run the tool unless its call is refused."""
        return self.refusal(request) or handler(request)

    async def awrap_tool_call(self, request: types.ToolCallRequest, handler: AsyncToolHandler) -> ToolAnswer:
        """Run the tool unless its call is refused."""
        return self.refusal(request) or await handler(request)


class ModelCallMiddleware(types.AgentMiddleware[types.AgentState[Any], Any, Any]):
    """Middleware around model calls, written once for sync and async agents."""

    async def answer(
        self, request: ModelRequest, send: Send, recorder: "ReplyRecorder", run_blocking: RunBlocking
    ) -> ExtendedResponse:
        """Answer a request; `send` calls the model. `run_blocking` calls what may block."""
        raise NotImplementedError

    def wrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], ModelResponse]
    ) -> ExtendedResponse:
        """Answer a request of a sync agent: the coroutine never waits."""

        async def send(request: ModelRequest) -> ModelResponse:
            return handler(request)

        async def call(function: Callable[..., Any], *arguments: Any) -> Any:
            return function(*arguments)

        with _recording() as recorder:
            try:
                self.answer(request, send, recorder, call).send(None)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

        raise AssertionError("the coroutine waits for something")

    async def awrap_model_call(self, request: ModelRequest, handler: Send) -> ExtendedResponse:
        """Answer a request, in an event loop."""
        with _recording() as recorder:
            return await self.answer(request, handler, recorder, asyncio.to_thread)


class CallListener(Protocol):
    """Is notified of each call to a model that answers a request, by this middleware or another."""

    def begin(self, call_id: UUID, about: Mapping[str, Any]) -> None:
        """Note that a call is about to be sent, with LangChain's trace of it. An exception keeps it from being sent."""

    def end(self, call_id: UUID, result: records.ModelReply | BaseException) -> None:
        """Note that a call has ended with a reply or an error."""


LIMITS: Final = "limits"
"""The entry of a call's trace with the arguments that limit its reply."""


def reply_limits(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call that limit its reply; the model's package decides which one applies."""
    return {name: arguments[name] for name in LIMIT_FIELDS if arguments.get(name) is not None}


class ReplyRecorder(BaseCallbackHandler):
    """Assembles replies as they are streamed: LangChain itself completes arguments that were cut."""

    run_inline = True

    def __init__(self) -> None:
        self.listener: CallListener | None = None
        self._growing: dict[UUID, ReplyAssembly] = {}
        self._message: Any = None
        self._assembly: ReplyAssembly | None = None

    def on_chat_model_start(
        self, *_: Any, run_id: UUID, invocation_params: records.JsonMap | None = None, **more: Any
    ) -> None:
        """Pass on that a call begins."""
        if self.listener is not None:
            limits = reply_limits(invocation_params or {})
            self.listener.begin(run_id, {**(more.get("metadata") or {}), LIMITS: limits})

    def on_llm_new_token(self, *_: Any, chunk: Any = None, run_id: UUID, **__: Any) -> None:
        """Add a part of a chat model's reply."""
        message = getattr(chunk, "message", None)
        if isinstance(message, AIMessage):
            self._growing.setdefault(run_id, ReplyAssembly()).take(message)

    def on_llm_end(self, response: Any, *, run_id: UUID, **_: Any) -> None:
        """Remember the message, and its parts if it was streamed."""
        self._message = getattr(response.generations[0][0], "message", None)
        self._assembly = self._growing.pop(run_id, None)
        if self.listener is not None:
            self.listener.end(run_id, _reply_of(self._message, self._assembly))

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Pass on why a call has failed."""
        if self.listener is not None:
            self.listener.end(run_id, error)

    def is_reply(self, response: ModelResponse) -> bool:
        """Return whether the message of a response is the model's last one, and not one of middleware."""
        return self._message is response.result[0]

    def reply(self, response: ModelResponse) -> records.ModelReply:
        """Return the reply in a response, with its arguments unchanged."""
        parts = None
        if self.is_reply(response):
            parts = self._assembly

        return _reply_of(response.result[0], parts)


def _reply_of(message: Any, parts: ReplyAssembly | None) -> records.ModelReply:
    """Return the reply in a message, from its parts if there are any. Not every model sends a finish reason."""
    assembly = parts or ReplyAssembly()
    if parts is None and isinstance(message, AIMessage):
        assembly.take(message)

    reply = assembly.reply(0.0)
    if reply is None:
        assembly.finish_reason = "stop"
        reply = assembly.reply(0.0)

    return reply or records.ModelReply()


@contextmanager
def _recording() -> Iterator[ReplyRecorder]:
    recorder = ReplyRecorder()
    token = var_child_runnable_config.set(merge_configs(ensure_config(), {"callbacks": [recorder]}))

    try:
        yield recorder
    finally:
        var_child_runnable_config.reset(token)


def failed_call(call_id: str, tool: str, error: records.ToolError) -> ToolMessage:
    """Return the result of a call that was not run, in the form of mendgraph's agent."""
    result = records.CallResult(call_id=call_id, tool=tool, result=records.ToolResult(ok=False, error=error))
    return ToolMessage(render_native_result(result), tool_call_id=call_id, name=tool, status="error")


# --- Loop control

_WRITING: Final = dict.fromkeys(("write_file", "edit_file"), records.Effect.WRITE)  # tools of deepagents
_PATHS: Final = ("path", "file_path")


class _LoopState(types.AgentState[Any]):
    """The `record` of this turn as JSON, and the id of the last message that is in it."""

    mendgraph_loop: NotRequired[Annotated[dict[str, Any], types.PrivateStateAttr]]


class LoopGuardMiddleware(RefusingMiddleware, StoppingMiddleware):
    """Ends a run that repeats the same tool call.

    Calls are the same if tool and arguments are equal; `./a.py` equals `a.py`. When a loop is detected, the model is
    told with the result, and further calls are refused with a `ToolMessage` of the status "error". The next repetition
    ends the run; after other calls, the second one does. Two or three calls that alternate are also a loop. A call with
    a new result is not. After a successful call of a tool that writes, refused calls are allowed again. Each turn (one
    `invoke`) is judged separately.
    """

    state_schema = _LoopState

    def __init__(
        self,
        *,
        repeat_window: int = repetition.REPEAT_WINDOW,
        loop_repeat_threshold: int = repetition.LOOP_REPEAT_THRESHOLD,
        loop_override_retries: int = repetition.LOOP_OVERRIDE_MAX_RETRIES,
        effects: Mapping[str, records.Effect] = _WRITING,
        exit_behavior: Exit = "end",
    ) -> None:
        """`loop_repeat_threshold` same calls among the last `repeat_window` are a loop.

        `loop_override_retries` refused ones end the run; 0 ends it at the loop itself. `effects` names the
        tools that write, `{"save": Effect.WRITE}`; by default those of deepagents. With `exit_behavior` "end" a message
        says why the run ends, with "error" `AgentStoppedError` is raised.

        Raises:
            ValueError: a number is out of its bounds, or `exit_behavior` is another word.
        """
        super().__init__(exit_behavior)
        self._effects = effects
        self._config = repetition.LoopConfig(
            window=repeat_window, threshold=loop_repeat_threshold, max_overrides=loop_override_retries
        )

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any]:  # noqa: ARG002 - LangChain's signature
        """Begin a turn."""
        return _remembered(records.LoopRecord(), _last_answer(state))

    @types.hook_config(can_jump_to=["end"])
    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ARG002 - LangChain's signature
        """Judge the step that has ended: tell the model of repeated calls in their results, or end the run."""
        step = _last_answer(state)
        record, seen = _memory(state)
        if step is None or step.id == seen:
            return None

        after = state["messages"][state["messages"].index(step) + 1 :]
        results = {message.tool_call_id: message for message in after if isinstance(message, ToolMessage)}
        calls = [self._signed(tool_call) for tool_call in step.tool_calls if tool_call["id"] in results]
        targets = {}
        writes = set()
        outcomes = {}

        for call, spec, signature in calls:
            result = results[call.call_id]
            targets[signature] = (call.tool, repetition.target_of(call, spec))
            outcomes[signature] = repetition.outcome_of(records.ToolResult.success(content=result.content))
            if spec.effect is records.Effect.WRITE and result.status == "success":
                writes.add(signature)

        record = repetition.check_progress(
            record,
            tuple(signature for *_, signature in calls),
            targets,
            writes,
            answered=False,
            config=self._config,
            outcomes=outcomes,
        )
        update = _remembered(record, step)
        cause = repetition.loop_stop(record, self._config)
        if cause:
            return update | self.end(cause)

        messages = []
        for call, _, signature in calls:
            notice = repetition.override_notice(record, signature)
            if notice:
                messages.append(_with_notice(results[call.call_id], notice))

        return {**update, "messages": messages}

    def _signed(self, native: NativeCall) -> tuple[records.ToolCall, records.ToolSpec, str]:
        call = records.ToolCall(
            call_id=native["id"] or "", tool=native["name"], arguments=native["args"], raw_arguments=""
        )
        effect = self._effects.get(call.tool, records.Effect.EXECUTE)
        spec = records.ToolSpec(name=call.tool, description="", parameters={}, effect=effect, path_fields=_PATHS)

        return call, spec, repetition.signature_of(call, spec)

    def refusal(self, request: types.ToolCallRequest) -> ToolMessage | None:
        """Refuse a repetition."""
        call, _, signature = self._signed(request.tool_call)
        record, _ = _memory(request.state)

        for override in record.overrides:
            if override.signature != signature:
                continue

            error = refuse_repeat(override).error
            if error:
                return failed_call(call.call_id, call.tool, error)

        return None


def _last_answer(state: Any) -> AIMessage | None:
    return next((message for message in reversed(state["messages"]) if isinstance(message, AIMessage)), None)


def _memory(state: Any) -> tuple[records.LoopRecord, str | None]:
    memory = state.get("mendgraph_loop") or {"record": {}, "seen": None}
    return records.LoopRecord.model_validate(memory["record"]), memory["seen"]


def _remembered(record: records.LoopRecord, step: AIMessage | None) -> dict[str, Any]:
    seen = None
    if step is not None:
        seen = step.id

    return {"mendgraph_loop": {"record": record.model_dump(mode="json"), "seen": seen}}


def _with_notice(result: ToolMessage, notice: records.JsonMap) -> ToolMessage:
    text = json.dumps({"override": notice}, ensure_ascii=False)
    content: Any = [*result.content, text]
    if isinstance(result.content, str):
        content = f"{result.content}\n{text}"

    return result.model_copy(update={"content": content})


# --- Healing

_NATIVE: Final = records.Profile(protocol=records.Protocol.NATIVE)
_LOOKING: Final = frozenset({records.Effect.NONE, records.Effect.READ})
_WORDS: Final = frozenset({"text", "thinking", "redacted_thinking", "reasoning", "refusal", "tool_use", "tool_call"})
"""The types of the blocks that are read."""


class HealingMiddleware(ModelCallMiddleware, StoppingMiddleware):
    """Repairs malformed replies, or asks the model to send them again. Malformed calls never run.

    A reply is malformed if it was cut at its token limit or is empty. A call is malformed if its arguments are not JSON
    or do not fit its tool, if its tool does not exist, or if it is part of the text. An unambiguous call in the text is
    accepted, and so is one at the end of a reply with only thinking, if its tool only reads (by "effect" in its
    `metadata`, or by its name). For any other malformed reply, the model is asked again with the error; once it has
    repaired the reply, both are removed from the messages.

    Valid calls of a reply run; malformed ones get an error as their result. Put this middleware before
    `BudgetMiddleware` in the list, so that each reply is charged.
    """

    def __init__(
        self,
        *,
        max_healing_attempts: int = DEFAULT_SELF_HEALING_CONFIG.max_retries,
        max_schema_repairs: int = DEFAULT_SELF_HEALING_CONFIG.max_schema_repairs,
        include_error_details: bool = True,
        include_format_reminder: bool = True,
        exit_behavior: Exit = "end",
    ) -> None:
        """The maximum numbers of corrections in a row for malformed replies, and for arguments that do not fit.

        A correction names the errors and repeats the format, unless `include_error_details` or
        `include_format_reminder` is off.
        With `exit_behavior` "end" a message holds the errors, with "error" `AgentStoppedError` is raised.

        Raises:
            ValueError: a number is negative, or `exit_behavior` is another word.
        """
        super().__init__(exit_behavior)
        if min(max_healing_attempts, max_schema_repairs) < 0:
            raise ValueError("max_healing_attempts and max_schema_repairs are 0 or more")

        self._config = SelfHealingConfig(
            max_healing_attempts, include_error_details, include_format_reminder, max_schema_repairs
        )

    async def answer(
        self,
        request: ModelRequest,
        send: Send,
        recorder: ReplyRecorder,
        run_blocking: RunBlocking,  # noqa: ARG002
    ) -> ExtendedResponse:
        """Parse each reply, and heal a malformed one, until one is usable."""
        state: Any = {"profile": _NATIVE, "step": len(request.state["messages"]), "corrections": []}

        while True:
            messages = list(request.messages)
            for correction in state["corrections"]:
                messages += [AIMessage(correction.reply or "(empty)"), HumanMessage(correction.prompt)]

            response = await send(request.override(messages=messages))
            reply = recorder.reply(response)
            is_cut = reply.finish_reason is records.FinishReason.LENGTH

            if response.structured_response is not None and not is_cut:
                return ExtendedResponse(response)
            if not (reply.text or reply.calls or is_cut) and _has_other_content(response.result[0]):
                return ExtendedResponse(response)

            state |= {"reply": reply}
            state |= parse(state, _reader(request))
            if state["reading"] is records.Reading.MALFORMED:
                state |= heal(state, self._config)

            if "stop" in state:
                return self.stopped(state["stop"])
            if state["reading"] is not records.Reading.MALFORMED:
                return ExtendedResponse(_rewritten(response, state["items"], state["reply"]))


def _reader(request: ModelRequest) -> Reader:
    """Return the reader of replies to the request, with the tools that the model was offered and their validation."""
    tools = {tool.name: tool for tool in request.tools if isinstance(tool, BaseTool)}
    others = [tool.get("function", tool).get("name") for tool in request.tools if isinstance(tool, dict)]
    response_format = request.response_format

    if isinstance(response_format, AutoStrategy):
        response_format = ToolStrategy(response_format.schema)

    if isinstance(response_format, ToolStrategy):
        others += [spec.name for spec in response_format.schema_specs]

    def validate(name: str, arguments: records.JsonMap) -> records.JsonMap | list[str]:
        if name in tools:
            return _problems(tools[name], arguments) or arguments
        return arguments

    def schema_of(name: str) -> records.JsonMap:
        if name not in tools:
            return {}

        parameters: records.JsonMap = convert_to_openai_tool(tools[name])["function"]["parameters"]
        return parameters

    tool_names = frozenset({*tools, *others} - {None})
    effects = {name: (tool.metadata or {}).get("effect") for name, tool in tools.items()}
    looking = frozenset(name for name in tools if effects[name] in _LOOKING or (not effects[name] and is_reading(name)))

    return Reader(
        _NATIVE,
        tool_names,
        validate,
        lambda _: [],
        schema_of=schema_of,
        texts=lambda: texts_in(results_in(request.messages)),
        looking=looking,
    )


def _problems(tool: BaseTool, arguments: records.JsonMap) -> list[str]:
    """Return the errors of arguments, as the tool itself validates them.

    There are none if the tool handles validation errors, or if only values that LangGraph injects are missing.
    """
    schema = tool.args_schema
    if tool.handle_validation_error or not isinstance(schema, type) or not issubclass(schema, BaseModel):
        return []

    try:
        schema.model_validate(arguments)
    except ValidationError as error:
        names = _argument_names(tool.tool_call_schema)
        injected = _argument_names(schema) - names
        return describe_errors(error, sorted(names), but=injected)
    except Exception:  # noqa: BLE001 - a validator may fail in any way, and does so again when the tool runs
        return []

    return []


def _argument_names(schema: Any) -> set[str]:
    """Return the names and aliases of the fields of a model."""
    if not isinstance(schema, type) or not issubclass(schema, BaseModel):
        return set()

    aliases = {field.alias for field in schema.model_fields.values() if field.alias}
    return aliases | schema.model_fields.keys()


def _has_other_content(message: Any) -> bool:
    """Return whether a message without text holds other content: an image, audio, or a pause."""
    if message.response_metadata.get("stop_reason") == "pause_turn" or message.additional_kwargs.get("audio"):
        return True

    if isinstance(message.content, str):
        return False

    return any(isinstance(block, dict) and block.get("type") not in _WORDS for block in message.content)


_READING: Final = frozenset({"ls", "glob", "grep"})  # tools of deepagents, beside those that the Environment knows


def is_reading(tool: str) -> bool:
    """Return whether a tool of this name only reads, judged by the name alone."""
    return tool in _READING or effect_by_name(tool) is records.Effect.READ


def _rewritten(
    response: ModelResponse, items: list[records.ToolCall | records.CallError], reply: records.ModelReply
) -> ModelResponse:
    """Return the response with the calls that were read; unchanged if LangChain has read the same."""
    message = response.result[0]
    calls_read = [item for item in items if isinstance(item, records.ToolCall)]
    calls = [NativeCall(name=call.tool, args=call.arguments, id=call.call_id, type="tool_call") for call in calls_read]
    broken = [item for item in items if isinstance(item, records.CallError)]

    if not isinstance(message, AIMessage) or (not broken and calls == message.tool_calls):
        return response

    invalid = []
    results = []

    for call in broken:
        problem = f"{call.error.error_type.name}: {call.error.details}"
        # Endpoints refuse a history with broken JSON in it.
        invalid.append(
            InvalidToolCall(name=call.tool, args="{}", id=call.call_id, error=problem, type="invalid_tool_call")
        )
        error = records.ToolError(code=records.ToolErrorCode.INVALID_ARGUMENT, message=problem)
        results.append(failed_call(call.call_id, call.tool, error))

    read: dict[str, Any] = {"tool_calls": calls, "invalid_tool_calls": invalid}
    if reply.text != message.text:
        read["content"] = reply.text  # without the calls

    return ModelResponse(
        [message.model_copy(update=read), *response.result[1:], *results], response.structured_response
    )
