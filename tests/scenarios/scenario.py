"""What a scenario is: a workspace, the requests and replies of its turns, settings, and how it ends.

A scenario is data. `player` plays it, `transcript` writes down what happened.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from mendgraph import ApprovalAnswer
from tests.doubles.replies import Reply
from tests.doubles.tool_use import Use
from tests.vocabulary import JsonMap, OutcomeKind, Protocol

Decision = str | ApprovalAnswer
"""A person's answer to an approval request: one word for all calls, or a decision for each call."""


class Style(StrEnum):
    """How a scenario is driven.

    SYNC watches the events of one session. ASYNC streams the compiled graph in an event loop. RESUMED leaves the run
    after each step, closes the session, and continues the run in a new async session.
    """

    SYNC, ASYNC, RESUMED = "sync", "async", "resumed"


class Way(NamedTuple):
    """One way to play a scenario."""

    protocol: Protocol
    style: Style

    def __str__(self) -> str:
        return f"{self.protocol.value}, {self.style.value}"


@dataclass(frozen=True)
class Turn:
    """A person's request, the model's replies until the turn ends, and the decisions on what needs an approval."""

    request: str
    replies: tuple[Use | Reply, ...] = ()
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """How the last turn ends. The transcript states everything else.

    Args:
        kind: of the outcome.
        reason: of the outcome.
        files: those whose text differs from the beginning, with their new text; "" for a deleted file.
        message: a part of the outcome's message, answer or diagnostics.
        in_requests: texts that the model's requests contain, such as the words that a specification sets.
    """

    kind: OutcomeKind = OutcomeKind.FINISHED
    reason: str = "answered"
    files: Mapping[str, str] = field(default_factory=dict)
    message: str = ""
    in_requests: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One story, told by all its ways.

    Args:
        name: of the scenario and of its transcript.
        story: what happens, in one or two sentences for the reader of the transcript.
        files: the workspace before the first turn.
        turns: of one thread.
        settings: fields of `AgentContext` that differ from those of the player.
        tools: the tools that the run has beside the default ones.
        expected: how it ends.
        protocols: in which it is played.
        resumed: whether it is also played by resuming after each step.
        sandboxed: whether it starts programs, which need bubblewrap.
    """

    name: str
    story: str
    turns: tuple[Turn, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    settings: JsonMap = field(default_factory=dict)
    tools: tuple[Any, ...] = ()
    expected: Expectation = Expectation()
    protocols: tuple[Protocol, ...] = (Protocol.TEXT, Protocol.NATIVE)
    resumed: bool = False
    sandboxed: bool = False

    @property
    def ways(self) -> tuple[Way, ...]:
        """All ways in which a sweep plays the scenario."""
        styles = (Style.SYNC, Style.ASYNC, Style.RESUMED) if self.resumed else (Style.SYNC, Style.ASYNC)
        return tuple(Way(protocol, style) for protocol in self.protocols for style in styles)

    @property
    def sampled_ways(self) -> tuple[Way, ...]:
        """The ways of `make test`: both sessions of the transcript, and each other style in one protocol."""
        protocols = {Style.SYNC: self.protocols, Style.ASYNC: self.protocols[-1:], Style.RESUMED: self.protocols[:1]}
        return tuple(way for way in self.ways if way.protocol in protocols[way.style])

    @property
    def replies(self) -> tuple[Use | Reply, ...]:
        """The replies of all turns, in order."""
        return tuple(reply for turn in self.turns for reply in turn.replies)
