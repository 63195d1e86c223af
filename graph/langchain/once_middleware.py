"""Exactly-once tool calls as middleware for `create_agent` and deepagents, on the journal of mendgraph's own agent."""

import asyncio
import base64
import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from langchain.agents.middleware import types
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.errors import GraphInterrupt

from mendgraph.graph.langchain.run_middleware import AsyncToolHandler, ToolAnswer, ToolHandler, failed_call, is_reading
from mendgraph.graph.langchain.work_middleware import RedactionMiddleware
from mendgraph.nodes.execute_tools.run_call import JOURNALED, unknown_outcome
from mendgraph.nodes.execute_tools.tool_outcome import RetryableToolError
from mendgraph.nodes.records import Effect, ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.sandbox import StrPath, check_workspace
from mendgraph.nodes.workspace.journal.journal import CallKey, Journal, call_fingerprint, idempotency_key
from mendgraph.nodes.workspace.store.database import StoreError
from mendgraph.nodes.workspace.store.run_folder import workspace_folder

KEY_ARGUMENT: Final = "idempotency_key"
"""The argument of a tool that gets the key of the call; annotated with `InjectedToolArg`, the model does not see it."""

_EFFECT: Final = "agent"
"""The effect of these calls in the journal, where those of mendgraph's own agent have their tools' effects."""

_REPEATABLE: Final = "repeatable"
"""The outcome of a call that had no effect yet: it waits for a person, or says that it may be tried again."""


class _OpenCall(NamedTuple):
    """A call whose intent is recorded under this number."""

    number: int
    request: types.ToolCallRequest


class ExactlyOnceMiddleware(types.AgentMiddleware[types.AgentState[Any], Any, Any]):
    """Runs each tool call once, even if the process is killed and the thread continues from its last checkpoint.

    The intent of a call is written to disk before the tool runs, its result afterwards. If the same call (thread,
    reply, call id and arguments) comes again, the recorded result is returned. An intent without a result is an error
    with the code `outcome_unknown`, and the tool is not run, unless it takes an `idempotency_key`: then it runs again
    with the same key. If the intent cannot be recorded, the call is not run. Without a checkpointer nothing is
    recorded.

    Run the agent with `durability="sync"`. With LangGraph's default, a tool may run before the reply that calls it is
    on disk; after a kill, the model then makes a new reply with new calls.

    After an `interrupt()`, or a `RetryableToolError`, which means that nothing has happened, a call runs again from its
    start. After any other exception the outcome is unknown.
    """

    def __init__(
        self, workspace: StrPath = ".", *, effects: Mapping[str, Effect] | None = None, keep_days: float = 30
    ) -> None:
        """Records are kept `keep_days` in the store of the folder `workspace`, without secrets.

        Tools that only read are not recorded: those with the effect READ or NONE in `effects`, in their metadata
        (`{"effect": "read"}`), or with the name of a reading tool of mendgraph or deepagents, such as `read_file`.

        Raises ValueError: the workspace is no folder, or has no store.
        """
        super().__init__()
        root = check_workspace(workspace)
        folder = root if isinstance(root, ToolError) else workspace_folder(root)
        if isinstance(folder, ToolError):
            raise ValueError(folder.message)  # noqa: TRY004 - the value is wrong, not its type

        self._journal = Journal(folder)
        self._effects = effects or {}
        self._keep = timedelta(days=keep_days)
        self._redaction = RedactionMiddleware()
        self._serializer = JsonPlusSerializer()
        self._one_begins = threading.Lock()  # of two parallel calls with the same id one runs
        self._is_first = True

    def wrap_tool_call(self, request: types.ToolCallRequest, handler: ToolHandler) -> ToolAnswer:
        """Run the tool unless its call has been made before."""
        call = self._begin(request)
        if call is None:
            return handler(request)
        if not isinstance(call, _OpenCall):
            return call

        try:
            answer = handler(call.request)
        except (GraphInterrupt, RetryableToolError):
            self._record(call, _REPEATABLE)
            raise

        self._record(call, self._text_of(answer))
        return answer

    async def awrap_tool_call(self, request: types.ToolCallRequest, handler: AsyncToolHandler) -> ToolAnswer:
        """Run the tool unless its call has been made before; the disk is used in a thread."""
        beginning = asyncio.ensure_future(asyncio.to_thread(self._begin, request))
        try:
            call = await asyncio.shield(beginning)
        except asyncio.CancelledError:
            call = await beginning
            if isinstance(call, _OpenCall):  # the tool has not run
                self._record(call, _REPEATABLE)

            raise

        if call is None:
            return await handler(request)
        if not isinstance(call, _OpenCall):
            return call

        try:
            answer = await handler(call.request)
        except (GraphInterrupt, RetryableToolError):
            await asyncio.to_thread(self._record, call, _REPEATABLE)
            raise

        await asyncio.shield(asyncio.to_thread(self._record, call, self._text_of(answer)))
        return answer

    def _begin(self, request: types.ToolCallRequest) -> _OpenCall | ToolAnswer | None:
        """Record the intent, or return the result of a call that must not run; None for one that needs no record."""
        key = self._key_of(request)
        if key is None:
            return None

        tool = request.tool
        takes_key = KEY_ARGUMENT in getattr(getattr(tool, "args_schema", None), "model_fields", {})
        try:
            with self._one_begins:
                self._remove_old_records()
                earlier = self._journal.find(key.thread, key.execution, key.place)
                if earlier is not None and earlier.key == key and earlier.outcome != _REPEATABLE:
                    if earlier.outcome is not None:
                        return self._recorded_answer(request, earlier.outcome)
                    if not takes_key:
                        return _failure(request, unknown_outcome(key.tool))

                number = self._journal.begin(key)
        except StoreError as error:
            message = f"{key.tool} was not run, because its effect could not be recorded: {error}"
            return _failure(request, ToolError(code=ToolErrorCode.IO_ERROR, message=message))

        if tool is None or not takes_key:
            return _OpenCall(number, request)

        call_key = idempotency_key(f"{key.thread} {key.execution}", 0, 0, key.tool, request.tool_call["args"])
        keyed = _KeyedTool(
            name=tool.name,
            description=tool.description,
            metadata=tool.metadata,
            tags=tool.tags,
            return_direct=tool.return_direct,
            keyed=tool,
            key=call_key,
        )
        return _OpenCall(number, request.override(tool=keyed))

    def _key_of(self, request: types.ToolCallRequest) -> CallKey | None:
        """Return the key of a call; None if its tool only reads, or no thread could continue after a kill."""
        call = request.tool_call
        name = call["name"]
        declared = (getattr(request.tool, "metadata", None) or {}).get("effect")
        effect = self._effects.get(name) or declared or (Effect.READ if is_reading(name) else Effect.EXECUTE)
        thread = (request.runtime.config.get("configurable") or {}).get("thread_id")
        if thread is None or effect not in JOURNALED:
            return None

        # Some endpoints number the calls of each reply from 0, so the id of the reply is a part of the key.
        execution = f"{_reply_id(request)} {call['id']}"
        return CallKey(f"agent {thread}", execution, 0, 0, name, _EFFECT, call_fingerprint(name, call["args"]))

    def _remove_old_records(self) -> None:
        """Remove the old records at the first call."""
        if self._is_first:
            self._journal.remove_calls(_EFFECT, datetime.now(UTC) - self._keep)
            self._is_first = False

    def _record(self, call: _OpenCall, outcome: str) -> None:
        with suppress(StoreError):  # after a kill the outcome of the call is unknown
            self._journal.end(call.number, outcome)

    def _text_of(self, answer: ToolAnswer) -> str:
        """Return the result as the journal stores it; "" if it cannot be stored."""
        try:
            kind, data = self._serializer.dumps_typed(self._redaction.clean(answer))
        except (TypeError, ValueError):
            return ""

        return json.dumps([kind, base64.b64encode(data).decode()])

    def _recorded_answer(self, request: types.ToolCallRequest, outcome: str) -> ToolAnswer:
        with suppress(ValueError, TypeError):  # it could not be stored, or another version wrote it
            kind, data = json.loads(outcome)
            answer: ToolAnswer = self._serializer.loads_typed((kind, base64.b64decode(data)))
            return answer

        message = f"{request.tool_call['name']} was done before the run was interrupted, and its result was not stored."
        return _failure(request, ToolError(code=ToolErrorCode.OUTCOME_UNKNOWN, message=message))


def _failure(request: types.ToolCallRequest, error: ToolError) -> ToolAnswer:
    return failed_call(request.tool_call["id"] or "", request.tool_call["name"], error)


def _reply_id(request: types.ToolCallRequest) -> str:
    """Return the id of the reply that makes the call."""
    for message in reversed(request.state["messages"]):
        if isinstance(message, AIMessage) and any(call["id"] == request.tool_call["id"] for call in message.tool_calls):
            return message.id or ""

    return ""


# --- The key as an argument


class _KeyedTool(BaseTool):
    """A tool that is called with this key. LangGraph removes arguments that the model must not set from a call."""

    keyed: BaseTool
    key: str

    def invoke(self, input: Any, config: Any = None, **more: Any) -> Any:  # noqa: A002 - LangChain's name
        return self.keyed.invoke(self._with_key(input), config, **more)

    async def ainvoke(self, input: Any, config: Any = None, **more: Any) -> Any:  # noqa: A002 - LangChain's name
        return await self.keyed.ainvoke(self._with_key(input), config, **more)

    def _with_key(self, call: Any) -> Any:
        return {**call, "args": {**call["args"], KEY_ARGUMENT: self.key}}

    def _run(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("its `invoke` runs the tool that it wraps")
