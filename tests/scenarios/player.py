"""Plays a scenario on the public API, against a scripted endpoint on loopback.

    recording = play(scenario, Way(Protocol.TEXT, Style.SYNC), folder)

Runs have evidence and reading ahead off unless their scenario turns them on, and each reply costs `USAGE`.
"""

import asyncio
import re
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, fields as dataclass_fields
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command

from mendgraph import (
    AgentContext,
    Asked,
    Event,
    FellBack,
    HealingBegan,
    Outcome,
    Paid,
    Session,
    StepDone,
    build_graph,
    default_tools,
    serializer,
)
from tests.doubles.history import history_problems
from tests.doubles.replies import Message, Reply, Say
from tests.doubles.scripted_server import ScriptedServer
from tests.doubles.tool_use import Use, in_protocol
from tests.scenarios.narrator import Entry, Narrator, file_diff, masked
from tests.scenarios.scenario import Decision, Scenario, Style, Way
from tests.vocabulary import JsonMap, Protocol
from tests.workspace_files import read_files, write_files

API_KEY = "sk-scripted-key"
"""The key that runs find in their environment."""

DEFAULTS: JsonMap = {"model": "scripted", "evidence": False, "read_ahead": False}
"""The settings of each run. Evidence would differ where there is no sandbox."""

USAGE = (5_000, 50)
"""Tokens that a reply costs where the script does not say: as many in both protocols, and more than what is sent."""

STEP_ENDS = (StepDone, HealingBegan, FellBack)
"""The events after which a resumed run is left, beside a try that has failed."""

_SECONDS = re.compile(r"(?<='max_seconds' exceeded: )[\d.]+")
_SIGNATURE = re.compile(r"\b[0-9a-f]{16}\b")


@dataclass
class Recording:
    """What a scenario leaves behind.

    Args:
        outcomes: one for each turn, without ids, paths and times.
        messages: of the thread: type, content and calls, without ids, paths and times.
        requests: that the endpoint received.
        files: of the workspace at the end.
        unused: replies of the script that nobody asked for.
        entries: of the transcript; none of an async run, which has no events.
        path: the nodes that ran, known of an async run. After `loop_check` its verdict stands, unless it is "fresh",
            and after `call_model` by which edge it is visited again.
        problems: what is wrong with the history after any node of an async run.
    """

    outcomes: list[Outcome]
    messages: list[tuple[str, str, str]]
    requests: list[JsonMap]
    files: dict[str, str]
    unused: int
    entries: list[Entry]
    path: list[str]
    problems: list[str]


def play(scenario: Scenario, way: Way, folder: Path) -> Recording:
    """Play all turns of a scenario in a new workspace below `folder`."""
    root = folder / f"{way.protocol.value}-{way.style.value}"
    root.mkdir()
    write_files(root, scenario.files)
    script = [in_protocol(_with_usage(reply), way.protocol) for reply in scenario.replies]

    with _environment(scenario.settings), ScriptedServer(script) as server:
        settings = {**DEFAULTS, **scenario.settings, "protocol": way.protocol.value}
        context = AgentContext(workspace=root, base_url=server.base_url, **settings)
        stage = _Stage(scenario, way, context, root, server.requests)
        _DRIVERS[way.style](stage)
        return stage.recording(server)


@contextmanager
def _environment(settings: Mapping[str, object] = MappingProxyType({})) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", API_KEY)
        if settings.get("diagnostics"):  # the linters of the workspace are those of this environment
            patch.setenv("VIRTUAL_ENV", sys.prefix)

        yield


class _Stage:
    """What the drivers share: how a session is opened, and what is kept of each turn."""

    def __init__(
        self, scenario: Scenario, way: Way, context: AgentContext, root: Path, requests: list[JsonMap]
    ) -> None:
        self.scenario = scenario
        self.context = context
        self.thread_id = uuid4().hex
        self.narrator = Narrator(way.protocol, scenario.replies, requests, usual_request(way.protocol))
        self.outcomes: list[Outcome] = []
        self.messages: list[AnyMessage] = []
        self.path: list[str] = []
        self.problems: list[str] = []
        self._protocol = way.protocol
        self._root = root
        self._files = dict(scenario.files)

    def open(self, **options: Any) -> Session:
        """Open a session of the run."""
        if self.scenario.tools:
            options["tools"] = (*default_tools(), *self.scenario.tools)
        return Session(self.context, thread_id=self.thread_id, **options)

    def decide(self, decisions: Iterator[Decision]) -> Decision:
        """Take the next decision of the turn."""
        decision = next(decisions)
        self.narrator.tell_decision(decision)
        return decision

    def end_turn(self, session: Session) -> None:
        """Keep how a turn of a session ended."""
        result, files = session.result(), read_files(self._root)
        self.narrator.end_turn(result, file_diff(self._files, files))
        self.outcomes.append(result.outcome)
        self.messages = list(result.messages)
        self._files = files

    def check_history(self, messages: list[AnyMessage]) -> None:
        """Keep what is wrong with the history as it stands."""
        self.problems += history_problems(messages, self._protocol)

    def recording(self, server: ScriptedServer) -> Recording:
        """Gather what is left of the run."""
        self.check_history(self.messages)
        return Recording(
            outcomes=[self._repeatable_outcome(outcome) for outcome in self.outcomes],
            messages=[self._repeatable_message(message) for message in self.messages],
            requests=server.requests,
            files=read_files(self._root),
            unused=server.remaining,
            entries=masked(self.narrator.entries, self._mask),
            path=self.path,
            problems=self.problems,
        )

    def _repeatable_outcome(self, outcome: Outcome) -> Outcome:
        usage = {name: value for name, value in outcome.usage.items() if not name.startswith("seconds")}
        diagnostics = tuple(map(self._mask, outcome.diagnostics))
        update = {"usage": usage, "message": self._mask(outcome.message), "diagnostics": diagnostics}
        return outcome.model_copy(update=update)

    def _repeatable_message(self, message: AnyMessage) -> tuple[str, str, str]:
        calls = message.tool_calls if isinstance(message, AIMessage) else ()
        return message.type, self._mask(message.text), str(calls)

    def _mask(self, text: str) -> str:
        """Replace the run's id, the workspace, the endpoint, and times."""
        for value, name in (
            (self.thread_id, "RUN"),
            (self.thread_id[:8], "RUN"),
            (str(self.context.base_url), "ENDPOINT"),
            (str(self._root), "WORKSPACE"),
        ):
            text = text.replace(value, name)
        return _SIGNATURE.sub("SIGNATURE", _SECONDS.sub("SECONDS", text))


# --- A session, watched event by event


def _play_sync(stage: _Stage) -> None:
    with stage.open(checkpointer=machine().checkpointer) as session:
        for turn in stage.scenario.turns:
            stage.narrator.begin_turn(turn)
            decisions = iter(turn.decisions)
            last = _watch(stage, session.stream(turn.request))
            while isinstance(last, Asked):
                last = _watch(stage, session.answer(stage.decide(decisions)))
            stage.end_turn(session)


def _watch(stage: _Stage, events: Iterator[Event]) -> Event | None:
    last = None
    for last in events:
        stage.narrator.hear(last)
    return last


# --- Async sessions, one for each step


def _play_resumed(stage: _Stage) -> None:
    asyncio.run(_play_by_steps(stage))


async def _play_by_steps(stage: _Stage) -> None:
    for turn in stage.scenario.turns:
        stage.narrator.begin_turn(turn)
        decisions = iter(turn.decisions)
        session = stage.open()
        events = session.astream(turn.request)
        last: Event | None = None
        while True:
            last = await _watch_step(stage, events, last)
            if not (isinstance(last, Asked) or _ends_step(stage, last)):
                break
            await session.aclose()
            session = stage.open()
            events = session.aanswer(stage.decide(decisions)) if isinstance(last, Asked) else session.aresume()
        stage.end_turn(session)
        await session.aclose()


async def _watch_step(stage: _Stage, events: AsyncGenerator[Event, None], left_at: Event | None) -> Event | None:
    """Watch until a step ends, and leave there. A resumed session repeats the event at which the run was left."""
    last = None
    async with aclosing(events):
        async for last in events:
            if _is_same_step(last, left_at):
                continue
            stage.narrator.hear(last)
            if _ends_step(stage, last):
                break
    return last


def _ends_step(stage: _Stage, event: Event | None) -> bool:
    """Whether a run is left here. A failed try costs nothing; where it has a fallback, that is heard after it."""
    if isinstance(event, Paid):
        return not event.output_tokens and not stage.context.fallback_models
    return isinstance(event, STEP_ENDS)


def _is_same_step(event: Event, other: Event | None) -> bool:
    if isinstance(event, StepDone) and isinstance(other, StepDone):
        return event.results == other.results
    return event == other and not isinstance(event, Paid | FellBack)


# --- The compiled graph, streamed in an event loop


@cache
def machine() -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of all async runs that have no tools of their own."""
    return build_graph(InMemorySaver(serde=serializer()))


def _play_async(stage: _Stage) -> None:
    asyncio.run(_play_graph(stage))


async def _play_graph(stage: _Stage) -> None:
    graph = machine()
    if tools := stage.scenario.tools:
        graph = build_graph(InMemorySaver(serde=serializer()), tools=(*default_tools(), *tools))

    for turn in stage.scenario.turns:
        stage.path.append("__start__")
        decisions = iter(turn.decisions)
        graph_input: Any = {"messages": [HumanMessage(turn.request)]}
        while graph_input is not None:
            is_interrupted = await _stream_graph(stage, graph, graph_input)
            graph_input = Command(resume=next(decisions)) if is_interrupted else None
        stage.path.append("__end__")


async def _stream_graph(stage: _Stage, graph: CompiledStateGraph[Any, Any, Any, Any], graph_input: Any) -> bool:
    """Run the graph to the end of the turn, or until it asks a person. Return whether it asks."""
    config: Any = {"configurable": {"thread_id": stage.thread_id}}
    values: JsonMap = {}
    is_interrupted = False
    parts: Any = graph.astream(graph_input, config, context=stage.context, stream_mode=["updates", "values"])
    async for mode, part in parts:
        if mode == "values":
            values = part
            stage.check_history(part["messages"])
            continue
        for node, update in part.items():
            if node == "__interrupt__":
                is_interrupted = True
            else:
                stage.path.append(_visited(node, update))
    if not is_interrupted:
        stage.outcomes.append(values["outcome"])
        stage.messages = values["messages"]
    return is_interrupted


def _visited(node: str, update: JsonMap) -> str:
    if pending := update.get("pending_call"):
        return f"{node} ({pending.edge})"
    verdict = update["loop"].verdict if node == "loop_check" else "fresh"
    return node if verdict == "fresh" else f"{node} ({verdict})"


_DRIVERS: dict[Style, Callable[[_Stage], None]] = {
    Style.SYNC: _play_sync,
    Style.ASYNC: _play_async,
    Style.RESUMED: _play_resumed,
}


# --- The script


@cache
def usual_request(protocol: Protocol) -> JsonMap:
    """The first request of a run with default settings, with which others are compared."""
    with _environment(), TemporaryDirectory() as root, ScriptedServer([Say("Hello.")]) as server:
        context = AgentContext(workspace=root, base_url=server.base_url, protocol=protocol.value, **DEFAULTS)
        with Session(context) as session:
            session.work("Hello.")
        return server.requests[0]


def _with_usage(reply: Use | Reply) -> Use | Reply:
    if isinstance(reply, Use):
        return Use(reply.calls, reply.usage or USAGE, reply.cut)
    if not isinstance(reply, Message):
        return reply
    values = {field.name: getattr(reply, field.name) for field in dataclass_fields(Message)}
    return Message(**{**values, "usage": USAGE if reply.usage is None else reply.usage})
