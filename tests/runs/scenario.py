"""What a scenario is: a story told once, and played in the text protocol and in the native one.

A reply that calls tools is written as a `Use`, which knows no protocol; whatever else a model can say is written with
the replies of `tests.doubles`. `Ends` says how the story has to end, whoever tells it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from mendgraph.nodes.records import JsonMap, OutcomeKind, Protocol, StopReason
from tests.doubles.replies import Message, Reply

Path = tuple[str, ...]

BEGIN: Path = ("begin_turn",)
ASK: Path = ("call_model", "parse")
STEP: Path = (*ASK, "guard", "execute_tools", "loop_check")
"""One reply whose calls are judged, run and settled."""
DENIED: Path = (*ASK, "guard", "loop_check")
"""One reply of which nothing may run."""
HEAL: Path = (*ASK, "heal")
"""One reply that could not be used."""
FINISHED: Path = ("FINISHED",)
ANSWER: Path = (*ASK, *FINISHED)
BUDGET_STOP: Path = ("BUDGET_STOP",)
SYSTEM_ERROR: Path = ("SYSTEM_ERROR",)


@dataclass(frozen=True)
class Use:
    """A reply that calls tools. Arguments are a map, or text that is sent to the letter.

    `usage` is (input tokens, output tokens), counted where it is None; `cut` says that the token limit ended it.
    """

    calls: tuple[tuple[str, JsonMap | str], ...]
    usage: tuple[int, int] | None = None
    cut: bool = False


@dataclass(frozen=True)
class Turn:
    """A person's request, and what the model replies until the turn ends."""

    task: str
    replies: tuple[Use | Reply, ...]


@dataclass(frozen=True, kw_only=True)
class Ends:
    """How a scenario ends.

    `path` names the nodes of all turns. `verdicts` are guard's, in order: "allow", or the rule that denied. `results`
    are those of all calls, in order: "ok", or the error's code. `files` are those that are not as they were. `message`
    is found in the outcome's message, and each text of `told` in what the model was sent.
    """

    path: Path
    kind: OutcomeKind = OutcomeKind.FINISHED
    reason: StopReason = StopReason.ANSWERED
    verdicts: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    message: str = ""
    told: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A workspace, the turns that are played in it, and how that ends.

    `cassettes` are the recordings in the text and in the native protocol; `context` overrides the run's defaults, and
    each model call takes `seconds_per_call` on the run's clock.
    """

    cassettes: tuple[str, str]
    turns: tuple[Turn, ...]
    ends: Ends
    files: Mapping[str, str] = field(default_factory=dict)
    context: JsonMap = field(default_factory=dict)
    seconds_per_call: float = 1.0

    @property
    def name(self) -> str:
        """What both cassettes have in common."""
        return self.cassettes[0].partition("/")[0]

    def script(self, protocol: Protocol) -> list[Reply]:
        """All replies of all turns, as an endpoint says them in this protocol."""
        return [spoken(reply, protocol) for turn in self.turns for reply in turn.replies]


def use(*calls: tuple[str, JsonMap | str], usage: tuple[int, int] | None = None) -> Use:
    """A reply that makes these calls."""
    return Use(calls, usage)


def spoken(reply: Use | Reply, protocol: Protocol) -> Reply:
    """A reply in one protocol: calls as native calls, or as `tool:` lines."""
    return message_of(reply, protocol) if isinstance(reply, Use) else reply


def message_of(said: Use | Message, protocol: Protocol) -> Message:
    """The same for what is a message in any case."""
    if isinstance(said, Message):
        return said
    calls = tuple((tool, text if isinstance(text, str) else _compact(text)) for tool, text in said.calls)
    if protocol is Protocol.NATIVE:
        return Message(calls=calls, finish_reason="length" if said.cut else "tool_calls", usage=said.usage)
    lines = "\n".join(f"tool: {tool}({arguments})" for tool, arguments in calls)
    return Message(text=lines, finish_reason="length" if said.cut else "stop", usage=said.usage)


def _compact(arguments: JsonMap) -> str:
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
