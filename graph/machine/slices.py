"""What each node reads: the slice that its package asks for, and what binding it to the turn's context needs besides.

Slices carry no reducers: those belong to the channels of `mendgraph.graph.machine.state`.
"""

from langchain_core.messages import AnyMessage
from typing_extensions import TypedDict

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.nodes.begin_turn.node import BeginTurnState
from mendgraph.nodes.call_model import ledger
from mendgraph.nodes.call_model.exchange import CallModelState
from mendgraph.nodes.call_model.window import Window
from mendgraph.nodes.execute_tools.node import ExecuteToolsState
from mendgraph.nodes.execute_tools.policy.alerts import Vitals
from mendgraph.nodes.guard.node import GuardState
from mendgraph.nodes.heal.corrective_prompt import HealingAttempt
from mendgraph.nodes.heal.node import HealState
from mendgraph.nodes.loop_check.repetition import LoopState
from mendgraph.nodes.parse.node import ParseState
from mendgraph.nodes.records import FileChange, LoopRecord, ModelReply, Profile
from mendgraph.nodes.stop.node import StopState


class Watched(TypedDict, total=False):
    """What a node needs whose outcome tells how the run fares."""

    context: AgentContext
    run_id: str
    vitals: Vitals


class BeginTurnSlice(BeginTurnState, total=False):
    """With the counters, which go on from turn to turn, and what the last turn has left open."""

    spending: ledger.Spending
    context: AgentContext
    run_id: str
    step: int
    files_read: dict[str, str]
    window: Window


class CallModelSlice(CallModelState, Watched, total=False):
    """With the turn's context, and the run's vital signs."""


class ParseSlice(ParseState, Watched, total=False):
    """With the turn so far: what the model has been shown and told, and what was changed."""

    profile: Profile
    messages: list[AnyMessage]
    healing_attempts: list[HealingAttempt]
    changes: list[FileChange]
    spending: ledger.Spending
    loop: LoopRecord


class HealSlice(HealState, total=False):
    """With what reading a rescued reply needs."""

    context: AgentContext
    messages: list[AnyMessage]
    changes: list[FileChange]
    spending: ledger.Spending
    loop: LoopRecord
    run_id: str


class GuardSlice(GuardState, total=False):
    """With the turn's context, what the log says of a call, and what it is previewed by."""

    context: AgentContext
    run_id: str
    step: int
    messages: list[AnyMessage]
    files_read: dict[str, str]


class ExecuteToolsSlice(ExecuteToolsState, Watched, total=False):
    """With the clock that tools run against, how often each was called in this turn, and what the turn is about."""

    messages: list[AnyMessage]
    profile: Profile
    spending: ledger.Spending
    step: int
    tool_counts: dict[str, int]


class LoopCheckSlice(LoopState, total=False):
    """With the counters: a step is counted when it is settled."""

    context: AgentContext
    run_id: str
    spending: ledger.Spending


class StopSlice(StopState, total=False):
    """With what the report counts."""

    context: AgentContext
    run_id: str
    spending: ledger.Spending
    reply: ModelReply | None
