"""What each node reads: the slice that its room asks for, and what binding it to the turn's context needs besides.

Slices carry no reducers: those belong to the channels of `graph.state`.
"""

from langchain_core.messages import AnyMessage

from graph.context import AgentContext
from nodes.begin_turn.node import BeginTurnState
from nodes.call_model import ledger
from nodes.call_model.exchange import CallModelState
from nodes.execute_tools.node import ExecuteToolsState
from nodes.guard.node import GuardState
from nodes.heal.node import HealState
from nodes.loop_check.node import LoopState
from nodes.parse.node import ParseState
from nodes.records import ModelReply, Profile
from nodes.stop.node import StopState


class BeginTurnSlice(BeginTurnState, total=False):
    """With the counters, which go on from turn to turn."""

    spending: ledger.Spending
    context: AgentContext


class CallModelSlice(CallModelState, total=False):
    """With the turn's context."""

    context: AgentContext


class ParseSlice(ParseState, total=False):
    """With the history, for the files that the model has been shown."""

    context: AgentContext
    profile: Profile
    messages: list[AnyMessage]


class HealSlice(HealState, total=False):
    """With what reading a rescued reply needs."""

    context: AgentContext
    messages: list[AnyMessage]


class GuardSlice(GuardState, total=False):
    """With the turn's context."""

    context: AgentContext


class ExecuteToolsSlice(ExecuteToolsState, total=False):
    """With the clock that tools run against."""

    context: AgentContext
    spending: ledger.Spending
    step: int


class LoopCheckSlice(LoopState, total=False):
    """With the counters: a step is counted when it is settled."""

    context: AgentContext
    spending: ledger.Spending


class StopSlice(StopState, total=False):
    """With what the report counts."""

    context: AgentContext
    spending: ledger.Spending
    reply: ModelReply | None
