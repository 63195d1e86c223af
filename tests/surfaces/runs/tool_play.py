"""Runs on a scripted model in this process: how they are started and inspected."""

import json
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from mendgraph import AgentContext, Denied, Event, Outcome, RunResult, Session, StepDone, default_tools
from mendgraph.nodes.records import CallResult, ProviderFailure
from tests.doubles.replies import Message, Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import Use, message_of, use
from tests.vocabulary import JsonMap, Protocol
from tests.workspace_files import write_files

PROTOCOLS = [Protocol.TEXT, Protocol.NATIVE]
FILES = {"a.py": "a = 1\n", "b.py": "b = 2\n", "c.py": "c = 3\n", ".env": "A=1\n"}
DONE = Say("Done.")
OPTIONS = (
    "rules",
    "thread_id",
    "checkpointer",
    "arg_validators",
    "roles",
    "secrets",
    "middleware",
    "approve",
    "effects",
)

Line = Use | Message | ProviderFailure

_NUMBERS = count(1)


def scripted_model(protocol: Protocol, *lines: Line, then: Message | None = None) -> ScriptedModel:
    """A model with these replies in this protocol; the last one is repeated."""
    script = [line if isinstance(line, ProviderFailure) else message_of(line, protocol) for line in lines]
    return ScriptedModel(script, then)


def session(root: Path, model: Any, protocol: Protocol = Protocol.NATIVE, /, **more: Any) -> Session:
    """A session with all tools, those in `tools` added, and no calls but the model's; the rest is the context."""
    tools = (*more.pop("only_tools", default_tools()), *more.pop("tools", ()))
    options = {name: more.pop(name) for name in OPTIONS if name in more}
    settings = {"max_calls_per_turn": 50, "evidence": False, "read_ahead": False, **more}
    context = AgentContext(workspace=str(root), protocol=protocol.value, **settings)
    return Session(context, model=model, tools=tools, **options)


@dataclass(frozen=True)
class PlayedRun:
    """A run that has ended, or asks."""

    model: Any
    events: list[Event]
    result: RunResult

    @property
    def outcome(self) -> Outcome:
        """How it ended."""
        return self.result.outcome

    @property
    def codes(self) -> list[str]:
        """For each call "ok", or the code of its error."""
        return codes(self.events)

    @property
    def rules(self) -> list[str]:
        """The rules by which guard denied calls."""
        return [event.verdict.rule for event in self.events if isinstance(event, Denied)]

    @property
    def results(self) -> list[JsonMap]:
        """The result of each call, as sent to a model with native calls."""
        return [json.loads(message.text) for message in self.result.messages if message.type == "tool"]

    def sent(self, call: int = -1) -> str:
        """All that the model was sent in a call."""
        return prompt_text(self.model, call)


def play(
    root: Path,
    *lines: Line,
    request: str = "Do it.",
    protocol: Protocol = Protocol.NATIVE,
    then: Message | None = None,
    **more: Any,
) -> PlayedRun:
    """A run with these replies in the workspace; `more` are options of the session, `model`, or of the context."""
    model = more.pop("model", None)
    if model is None or isinstance(model, str):
        more |= {"model": model} if model else {}
        model = scripted_model(protocol, *lines, then=then)
    with session(root, model, protocol, **more) as opened:
        events = list(opened.stream(request))
        return PlayedRun(model, events, opened.result())


def new_workspace(folder: Path, files: dict[str, str]) -> Path:
    """A new workspace with these files, below a folder."""
    root = folder / f"workspace-{next(_NUMBERS)}"
    root.mkdir()
    write_files(root, files)
    return root


def run_events(root: Path, *lines: Line, protocol: Protocol = Protocol.NATIVE, **more: Any) -> list[Event]:
    """The events of a run."""
    return play(root, *lines, protocol=protocol, **more).events


def results_of(events: list[Event]) -> list[CallResult]:
    """The outcome of each call."""
    return [result for event in events if isinstance(event, StepDone) for result in event.results]


def codes(events: list[Event]) -> list[str]:
    """For each call "ok", or the code of its error."""
    return [result.result.error.code.value if result.result.error else "ok" for result in results_of(events)]


def prompt_text(model: Any, call: int = -1) -> str:
    """All that the model was sent in a call."""
    return "\n".join(str(message["content"]) for message in model.calls[call].prompt.messages)


def reads(*names: str) -> Use:
    """A reply that reads these files."""
    return use(*(("read_file", {"path": name}) for name in names))
