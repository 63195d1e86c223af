"""Run tasks from Python and from the terminal: one task to its outcome, or a session of many turns.

A session keeps its thread in a checkpointer (by default in memory), passes the recursion limit that belongs to its
context, and closes what it opened.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from langchain_core.messages import AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from graph.build import NO_ROLES, build_machine
from graph.context import AgentContext
from graph.events import Asked, Event, EventReader
from graph.routes import recursion_limit
from graph.state import serializer
from nodes.call_model.ledger import Spending, usage_report
from nodes.call_model.model import Model
from nodes.execute_tools.registry import Tool
from nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES, FileGuardrailRule
from nodes.records import FileChange, JsonMap, Outcome, Plan


@dataclass(frozen=True)
class RunResult:
    """A run from its end: how it ended, the thread's messages, the files that it changed, its plan."""

    outcome: Outcome
    messages: tuple[AnyMessage, ...]
    changes: tuple[FileChange, ...]
    plan: Plan
    thread_id: str


class Session:
    """A thread of turns. Use it as a context manager: it closes the connections that it opened."""

    def __init__(
        self,
        context: AgentContext | None = None,
        *,
        model: Model | None = None,
        tools: Sequence[Tool] | None = None,
        rules: tuple[FileGuardrailRule, ...] = DEFAULT_GUARDRAIL_RULES,
        roles: Mapping[str, Collection[str]] = NO_ROLES,
        secrets: Sequence[str] = (),
        checkpointer: BaseCheckpointSaver[Any] | None = None,
        thread_id: str | None = None,
    ) -> None:
        """Nothing runs and nothing is connected until the first request. `thread_id` goes on with a known thread."""
        self.context = context or AgentContext()
        self.thread_id = str(thread_id) if thread_id else uuid4().hex
        self._reader = EventReader()
        saver = checkpointer if checkpointer is not None else InMemorySaver(serde=serializer(secrets))
        self._machine, self._rooms = build_machine(
            saver, model=model, tools=tools, rules=rules, roles=roles, secrets=secrets
        )

    def __enter__(self) -> Self:
        """Return the session."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close what was opened."""
        self.close()

    def stream(self, request: str) -> Iterator[Event]:
        """Work on one request; the last event is `Ended`, or `Asked` when a person has to decide."""
        self._reader = EventReader()
        yield from self._stream(self._request(request))

    def answer(self, decisions: Mapping[str, Any] | str) -> Iterator[Event]:
        """Go on after `Asked`, with "approve", "reject", "stop", or decisions call by call."""
        yield from self._stream(Command(resume=decisions))

    async def astream(self, request: str) -> AsyncIterator[Event]:
        """Work on one request without blocking the event loop."""
        self._reader = EventReader()
        async for event in self._astream(self._request(request)):
            yield event

    async def aanswer(self, decisions: Mapping[str, Any] | str) -> AsyncIterator[Event]:
        """Go on after `Asked` without blocking the event loop."""
        async for event in self._astream(Command(resume=decisions)):
            yield event

    def scrub(self, text: str) -> str:
        """The text without the secrets that this session knows of."""
        return self._rooms.scrub(text)

    def result(self) -> RunResult:
        """The thread as it stands after a run that ended."""
        return _result(self._machine.get_state(self._config()).values, self.thread_id)

    def usage(self) -> JsonMap:
        """What the thread has used so far, a turn that was cut off included; the keys are those of an outcome."""
        spending = self._machine.get_state(self._config()).values.get("spending") or Spending()
        return usage_report(spending, self.context.limits())

    def close(self) -> None:
        """Close the connections of sync calls."""
        self._rooms.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop, and those of sync calls."""
        await self._rooms.aclose()

    def _stream(self, request: Any) -> Iterator[Event]:
        for mode, part in self._machine.stream(
            request, self._config(), context=self.context, stream_mode=["custom", "updates"]
        ):
            yield from self._reader.read(mode, part)

    async def _astream(self, request: Any) -> AsyncIterator[Event]:
        async for mode, part in self._machine.astream(
            request, self._config(), context=self.context, stream_mode=["custom", "updates"]
        ):
            for event in self._reader.read(mode, part):
                yield event

    def _request(self, text: str) -> dict[str, Any]:
        """The input of a turn; a secret in it is taken out before the first checkpoint is written."""
        return {"messages": [HumanMessage(self._rooms.scrub(text))]}

    def _config(self) -> RunnableConfig:
        limit = recursion_limit(self.context.max_calls_per_turn)
        return {"configurable": {"thread_id": self.thread_id}, "recursion_limit": limit}


def run_task(task: str, context: AgentContext | None = None, **options: Any) -> RunResult:
    """Run one task to its outcome. `options` are those of `Session`.

    A task that needs a person's approval is answered with "reject": ask for approvals through a `Session`.
    """
    with Session(context, **options) as session:
        events = list(session.stream(task))
        while isinstance(events[-1], Asked):
            events = list(session.answer("reject"))
        return session.result()


async def arun_task(task: str, context: AgentContext | None = None, **options: Any) -> RunResult:
    """Run one task to its outcome without blocking the event loop; otherwise as `run_task`."""
    session = Session(context, **options)
    try:
        events = [event async for event in session.astream(task)]
        while isinstance(events[-1], Asked):
            events = [event async for event in session.aanswer("reject")]
        return await asyncio.to_thread(session.result)
    finally:
        await session.aclose()


def _result(values: Mapping[str, Any], thread_id: str) -> RunResult:
    return RunResult(
        outcome=values["outcome"],
        messages=tuple(values.get("messages", ())),
        changes=tuple(values.get("changes", ())),
        plan=values.get("plan") or Plan(),
        thread_id=thread_id,
    )
