"""Spec 4's AgentLanguage for agents written in Python: the prompt, and the meaning of a reply.

It uses the functions of the nodes `call_model`, `parse` and `heal` in the text protocol.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from langchain_core.messages import AIMessage, AnyMessage

from mendgraph.nodes.call_model.turn_prompt import build_prompt
from mendgraph.nodes.documents.memory import Memory
from mendgraph.nodes.execute_tools.plain_values import json_like
from mendgraph.nodes.execute_tools.registry import ActionRegistry
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.execute_tools.tools.about_run import final_answer
from mendgraph.nodes.heal.corrective_prompt import DEFAULT_SELF_HEALING_CONFIG
from mendgraph.nodes.heal.node import heal
from mendgraph.nodes.language.history import settle_exchange
from mendgraph.nodes.language.token_estimates import estimate_tokens
from mendgraph.nodes.parse.node import parse
from mendgraph.nodes.parse.reading import ANSWER_TOOL, Reader
from mendgraph.nodes.records import (
    CallError,
    CallResult,
    Correction,
    ExtractionError,
    JsonMap,
    ModelReply,
    Profile,
    Protocol,
    ToolCall,
    ToolErrorCode,
    ToolResult,
)

_REDACTOR: Final = Redactor()


class Invocation(NamedTuple):
    """One call of an action or of `final_answer`; a terminal one ends the run. Source: spec 4."""

    tool: str
    args: JsonMap
    terminal: bool = False


class Understood(NamedTuple):
    """The meaning of a reply: its invocations in order, and its errors."""

    reply: ModelReply
    invocations: list[Invocation]
    errors: list[ExtractionError]
    items: list[ToolCall | CallError]


class AgentLanguage:
    """The protocol between an agent and its model, for the actions of a registry; `final_answer` is always one."""

    def __init__(self, actions: ActionRegistry, goals: Sequence[str] = ()) -> None:
        """`goals` are sentences of the system prompt; the request is a message of the Memory."""
        tools = [tool for spec in actions.specs() if (tool := actions.get(spec.name)) is not None]
        answering = [] if actions.get(ANSWER_TOOL) else [final_answer]
        self._actions = ActionRegistry([*tools, *answering])
        self._goals = tuple(goals)
        self._profile = Profile()
        self._terminal = {spec.name for spec in self._actions.specs() if spec.terminal}
        names = self._actions.names()
        schemas = {spec.name: spec.parameters for spec in self._actions.specs()}
        self._reader = Reader(
            self._profile, names, self._actions.validate, check_answer=lambda _: [], schema_of=schemas.__getitem__
        )

    def construct(self, memory: Memory, corrections: Sequence[Correction] = ()) -> list[JsonMap]:
        """Return the next request as messages with `role` and `content`: goals, actions, and the memory that fits."""
        prompt = partial(build_prompt, self._profile, self._actions.specs(), corrections=corrections, temperature=None)
        bare = prompt(history=[])
        goals = ""

        if self._goals:
            goals = "\n".join(["", "", "Goals:", *(f"- {goal}" for goal in self._goals)])

        besides = estimate_tokens(bare.size + len(goals.encode("utf-8", "replace")), len(bare.messages))
        front, *others = prompt(history=memory.shown(besides)).messages
        return [{**front, "content": f"{front['content']}{goals}"}, *others]

    def parse(self, reply: str) -> Understood:
        """Return the meaning of a reply. A plain answer is an invocation of `final_answer`; no call is dropped."""
        return self._read(reply)[0]

    def ask(self, model: Callable[[list[JsonMap]], str], memory: Memory) -> Understood:
        """Return the model's reply to the next request; an unreadable reply is corrected once."""
        understood, corrections = self._read(model(self.construct(memory)))
        if corrections:
            return self._read(model(self.construct(memory, corrections)))[0]

        return understood

    def exchange(self, understood: Understood, results: Sequence[JsonMap] = ()) -> list[AnyMessage]:
        """Return the messages for the memory: the reply and the `results` of its invocations, in order.

        A result is one of `Environment.execute_action`. A malformed call gets its own error.
        """
        result_values = iter(results)
        result_lines = [_result_of(item, result_values) for item in understood.items]
        if not result_lines:
            return [AIMessage(understood.reply.text)]

        return settle_exchange(understood.reply, understood.items, result_lines, Protocol.TEXT)

    def _read(self, text_of_reply: str) -> tuple[Understood, list[Correction]]:
        reply = ModelReply(text=text_of_reply)
        read: dict[str, Any] = {"reply": reply, **parse({"reply": reply}, self._reader)}
        if read["errors"]:
            failed = {**read, "profile": self._profile}
            read |= heal(failed, DEFAULT_SELF_HEALING_CONFIG)  # type: ignore[arg-type]

        items: list[ToolCall | CallError] = read["items"]
        ends = bool(items) and isinstance(items[-1], ToolCall) and items[-1].implied
        items = items[:-1] if ends else items
        calls = [
            Invocation(item.tool, item.arguments, item.tool in self._terminal)
            for item in items
            if isinstance(item, ToolCall)
        ]

        if ends:
            calls[-1] = calls[-1]._replace(terminal=True)

        if read["answer"] is not None and not items:
            calls = [Invocation(ANSWER_TOOL, {"answer": read["answer"].text}, terminal=True)]

        errors = read["errors"] or [item.error for item in items if isinstance(item, CallError)]
        return Understood(read["reply"], calls, errors, items), read.get("corrections") or []


def _result_of(item: ToolCall | CallError, results: Iterator[JsonMap]) -> CallResult:
    if isinstance(item, CallError):
        failure = ToolResult.failure(ToolErrorCode.INVALID_ARGUMENT, item.error.details)
        return CallResult(call_id=item.call_id, tool=item.tool, result=failure)

    result = next(results, {"ok": False, "error": "This call was not run.", "error_type": ToolErrorCode.CANCELLED})
    if result["ok"]:
        safe = _REDACTOR.content(json_like(result["data"]))
        data = safe if isinstance(safe, dict) else {"value": safe}
        return CallResult(call_id=item.call_id, tool=item.tool, result=ToolResult(ok=True, data=data))

    code = next((code for code in ToolErrorCode if code == result.get("error_type")), ToolErrorCode.IO_ERROR)
    return CallResult(call_id=item.call_id, tool=item.tool, result=ToolResult.failure(code, str(result["error"])))
