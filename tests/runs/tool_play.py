"""Runs against the policy of tool calls: how they are started, and what is looked at of them."""

from pathlib import Path
from typing import Any

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.events import Event, StepDone
from mendgraph.graph.runs.run import Session
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.records import CallResult, Protocol, ProviderFailure
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import Use, message_of, use

PROTOCOLS = [Protocol.TEXT, Protocol.NATIVE]
FILES = {"a.py": "a = 1\n", "b.py": "b = 2\n", "c.py": "c = 3\n", ".env": "A=1\n"}
DONE = Say("Done.")

Line = Use | Say | ProviderFailure


def scripted(protocol: Protocol, *lines: Line) -> ScriptedModel:
    """A model that says these lines in this protocol."""
    return ScriptedModel([line if isinstance(line, ProviderFailure) else message_of(line, protocol) for line in lines])


def session(root: Path, model: ScriptedModel, protocol: Protocol = Protocol.NATIVE, **more: Any) -> Session:
    """A session with all tools, those in `tools` added, and no calls but the model's; the rest is the context."""
    tools = (*default_tools(), *more.pop("tools", ()))
    settings = {"max_calls_per_turn": 50, "evidence": False, "read_ahead": False, **more}
    return Session(AgentContext(workspace=str(root), protocol=protocol.value, **settings), model=model, tools=tools)


def played(root: Path, *lines: Line, protocol: Protocol = Protocol.NATIVE, **more: Any) -> list[Event]:
    """The events of a run."""
    with session(root, scripted(protocol, *lines), protocol, **more) as opened:
        return list(opened.stream("Do it."))


def results_of(events: list[Event]) -> list[CallResult]:
    """What became of each call."""
    return [result for event in events if isinstance(event, StepDone) for result in event.results]


def codes(events: list[Event]) -> list[str]:
    """For each call "ok", or the code of its error."""
    return [each.result.error.code.value if each.result.error else "ok" for each in results_of(events)]


def shown(model: ScriptedModel) -> str:
    """All that the model was sent in its last call."""
    return "\n".join(str(message["content"]) for message in model.calls[-1].prompt.messages)


def reads(*names: str) -> Use:
    """A reply that reads these files."""
    return use(*(("read_file", {"path": name}) for name in names))
