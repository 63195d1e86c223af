"""Plays a scenario on the real machine and writes down what happened."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_machine
from mendgraph.graph.machine.routes import recursion_limit
from mendgraph.graph.machine.state import serializer
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES
from mendgraph.nodes.records import JsonMap, Outcome, Protocol, VerdictKind
from tests.cassettes import Tape
from tests.runs.history import history_problems
from tests.runs.scenario import Scenario


@dataclass
class Played:
    """What happened: in all turns together, except for `outcomes`, of which each turn has as many as it wrote."""

    outcomes: list[list[Outcome]] = field(default_factory=list)
    path: list[str] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> Outcome:
        """The last turn's."""
        return self.outcomes[-1][-1]


def play(scenario: Scenario, protocol: Protocol, folder: Path, base_url: str, patch: pytest.MonkeyPatch) -> Played:
    """Play all turns of a scenario in `folder`, on the model at `base_url`; only what it replies makes calls."""
    write_files(folder, scenario.files)
    set_clock(patch, scenario.seconds_per_call)
    off = dict.fromkeys(("evidence", "read_ahead"), False)
    settings: JsonMap = {"model": "scripted", "protocol": protocol.value, **off, **scenario.context}
    return run(AgentContext(workspace=str(folder), base_url=base_url, **settings), *(t.task for t in scenario.turns))


def set_clock(
    patch: pytest.MonkeyPatch, seconds_per_call: float = 1.0, sleep: Callable[[float], None] | None = None
) -> list[float]:
    """Let each model call take this long on the run's clock, and waits for the next try no time; they are returned.

    They are the longest that may be drawn. With `sleep`, that is called with them instead.
    """
    waits: list[float] = []
    ticks = count(step=seconds_per_call)
    clock = SimpleNamespace(monotonic=lambda: next(ticks), sleep=waits.append)
    patch.setattr("mendgraph.nodes.call_model.driver.time", clock)
    patch.setattr("mendgraph.graph.machine.model_runtime.random", SimpleNamespace(random=lambda: 1.0))

    async def slept(seconds: float) -> None:
        waits.append(seconds) if sleep is None else sleep(seconds)

    patch.setattr(
        "mendgraph.graph.machine.bound_nodes.StopRequest.wait",
        lambda _, seconds: waits.append(seconds) if sleep is None else sleep(seconds),
    )
    patch.setattr("mendgraph.nodes.call_model.driver.asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": slept}))
    return waits


def run(context: AgentContext, *tasks: str) -> Played:
    """Run these turns in one thread, on the machine as it is delivered."""
    saver = InMemorySaver(serde=serializer())
    machine, nodes = build_machine(saver, model=None, tools=None, rules=DEFAULT_GUARDRAIL_RULES)
    config: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": recursion_limit(context.max_calls_per_turn)}
    played = Played()
    try:
        for task in tasks:
            played.outcomes.append([])
            request: Any = {"messages": [HumanMessage(task)]}
            for part in machine.stream(request, config, context=context, stream_mode="updates"):
                for node, update in part.items():
                    _note(played, node, update or {})
    finally:
        nodes.close()
    for snapshot in machine.get_state_history(config):
        if "profile" in snapshot.values:
            played.problems += history_problems(snapshot.values["messages"], snapshot.values["profile"].protocol)
    return played


def _note(played: Played, node: str, update: Mapping[str, Any]) -> None:
    played.path.append(node)
    if node == "guard":
        played.verdicts += [v.rule if v.kind is not VerdictKind.ALLOW else "allow" for v in update["verdicts"]]
    if node in {"guard", "execute_tools"}:
        errors = [result.result.error for result in update["results"]]
        played.results += [error.code.value if error else "ok" for error in errors]
    if update.get("outcome") is not None:
        played.outcomes[-1].append(update["outcome"])


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Make a workspace."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def changed_files(folder: Path, before: Mapping[str, str]) -> dict[str, str]:
    """The files that are not as they were; an empty text stands for one that is gone."""
    now = {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.is_file()
    }
    return {name: now.get(name, "") for name in {*before, *now} if now.get(name) != before.get(name)}


def prompts(tape: Tape) -> Iterator[str]:
    """Every text that the model was sent."""
    for request in (json.loads(each.request) for each in tape.exchanges):
        yield from (str(message.get("content") or "") for message in messages_of(request))


def messages_of(request: JsonMap) -> list[JsonMap]:
    """The messages of one recorded request."""
    return list(request["messages"])
