"""The state of the machine: its channels, their reducers, and what a checkpoint may hold.

`messages` grows only by whole exchanges: a reply enters together with the results of its calls (`loop_check`) or as
the final answer (`stop`). So at every checkpoint the history is one that an endpoint accepts, whatever was killed.
Until then the reply, its calls, verdicts and results live in channels of their own, each the word of one node.
"""

import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, get_type_hints

from langgraph.channels import LastValue
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import INTERRUPT
from langgraph.errors import InvalidUpdateError
from langgraph.types import Interrupt
from typing_extensions import TypedDict

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.delta_channels import Changes, FilesRead, Messages
from mendgraph.graph.machine.scrubbing_serializer import ScrubbingSerializer
from mendgraph.nodes import records
from mendgraph.nodes.call_model.budget import APILimits, APIUsageStats
from mendgraph.nodes.call_model.ledger import Mending, RunLimits, Spending
from mendgraph.nodes.call_model.prompts.estimates import Gauge
from mendgraph.nodes.call_model.window import Window
from mendgraph.nodes.execute_tools.policy.alerts import Vitals
from mendgraph.nodes.execute_tools.secrets.known_secrets import known_values
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.guard.grants import Grant
from mendgraph.nodes.heal.corrective_prompt import HealingAttempt
from mendgraph.nodes.language.project_notes import ProjectNotes


class ContextChannel(LastValue[AgentContext]):
    """The context of the turn, which only a node can write: clients of a server write JSON, and could widen it."""

    def update(self, values: Sequence[AgentContext]) -> bool:
        """Take the value; InvalidUpdateError for one that no node has made."""
        if not all(isinstance(each, AgentContext) for each in values):
            raise InvalidUpdateError("A thread's context cannot be written: send another one with the next request.")
        return super().update(values)


class AgentInput(TypedDict):
    """What a user sends: the new message or messages. The last one must be a person's."""

    messages: Messages


class AgentOutput(TypedDict, total=False):
    """What a run returns."""

    messages: Messages
    outcome: records.Outcome | None
    changes: Changes
    plan: records.Plan
    spending: Spending


class AgentState(AgentOutput, total=False):
    """All channels. Those in the first group last as long as the thread, those in the others as long as a turn."""

    files_read: FilesRead
    step: int
    run_id: str
    vitals: Vitals
    window: Window
    grants: list[Grant]

    context: Annotated[AgentContext, ContextChannel(AgentContext)]
    profile: records.Profile
    notes: tuple[ProjectNotes, ...]
    preload: records.ModelReply | None
    reply: records.ModelReply | None
    reading: records.Reading | None
    items: list[records.ToolCall | records.CallError]
    errors: list[records.ExtractionError]
    answer: records.Answer | None
    known_files: dict[str, str]
    verdicts: list[records.Verdict]
    results: list[records.CallResult]
    tool_counts: dict[str, int]

    corrections: list[records.Correction]
    healing_attempts: list[HealingAttempt]
    loop: records.LoopRecord
    stop: records.StopCause | None


CHECKPOINT_TYPES: tuple[type, ...] = (
    AgentContext,
    APILimits,
    APIUsageStats,
    Gauge,
    Grant,
    HealingAttempt,
    Mending,
    ProjectNotes,
    RunLimits,
    Spending,
    Vitals,
    Window,
    *(
        word
        for word in vars(records).values()
        if isinstance(word, type) and word.__module__ == records.__name__ and word is not records.Record
    ),
)
"""Every type of ours that a checkpoint may hold; a saver refuses to build any other."""


def serializer(secrets: Sequence[str] = (), dictionary: bytes = b"", types: Sequence[type] = ()) -> JsonPlusSerializer:
    """The only serializer that our savers use: strict msgpack, our types and LangChain's messages, nothing else.

    `secrets` and those of the environment are written nowhere. With a `dictionary` values are compressed, for a disk.
    `types` are those of a graph around ours, whose checkpointer has to load both.
    """
    redactor = Redactor((*secrets, *known_values(os.environ)))
    return ScrubbingSerializer(redactor, (*CHECKPOINT_TYPES, *types), dictionary)


@cache
def channel_types() -> Mapping[str, Any]:
    """The types of all channels, by their names, and of LangGraph's own for questions to a person."""
    return {**get_type_hints(AgentState), INTERRUPT: list[Interrupt]}


def allowed_msgpack_modules() -> list[list[str]]:
    """`CHECKPOINT_TYPES` as `langgraph.json` spells them: module and name."""
    return [[word.__module__, word.__qualname__] for word in CHECKPOINT_TYPES]


Update = dict[str, Any]
"""What a node returns: the channels that it changes."""
