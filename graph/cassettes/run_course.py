"""What a run went through, read from its checkpoints: its nodes, the replies it was given, its results and its ends."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from langchain_core.messages import AnyMessage
from langchain_core.runnables import RunnablePassthrough
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.types import StateSnapshot
from typing_extensions import TypedDict

from graph import routes
from graph.build import build_graph
from graph.context import AgentContext
from graph.open_store import thread_config
from nodes.call_model.window import Window
from nodes.language.history import is_request
from nodes.records import (
    CallError,
    CallResult,
    ModelReply,
    Outcome,
    Profile,
    StopCause,
    StopReason,
    ToolCall,
    ToolError,
    ToolErrorCode,
)

FAILED_CALL = frozenset({StopReason.PROVIDER_FAILED, StopReason.CONTEXT_OVERFLOW})
"""Ends that are the endpoint's word, so that its failure has to be said again."""


@dataclass
class TurnSaid:
    """What the endpoint said in one turn: replies, summaries of the history, its account, its failure at the end."""

    replies: list[ModelReply] = field(default_factory=list)
    summaries: list[str] = field(default_factory=list)
    account: str = ""
    failure: StopCause | None = None


@dataclass(frozen=True)
class ToolStep:
    """What one call came to: in which step, which tool, and the result as JSON."""

    step: int
    tool: str
    result: str


@dataclass(frozen=True)
class RunCourse:
    """A run from its first request to its last end. `path` holds (step, node); `requests` are one for each turn."""

    context: AgentContext
    profile: Profile
    requests: tuple[str, ...]
    turns: tuple[TurnSaid, ...]
    path: tuple[tuple[int, str], ...]
    results: tuple[ToolStep, ...]
    calls: tuple[ToolCall | CallError, ...]
    outcomes: tuple[Outcome, ...]
    messages: tuple[AnyMessage, ...]
    files_read: Mapping[str, str]


class _Told(TypedDict, total=False):
    """The channels that are read at each checkpoint; those that grow are read at the end alone."""

    step: int
    context: AgentContext
    profile: Profile
    window: Window
    reply: ModelReply | None
    items: list[ToolCall | CallError]
    results: list[CallResult]
    stop: StopCause | None
    outcome: Outcome | None


def read_course(saver: BaseCheckpointSaver[Any], run_id: str) -> RunCourse | ToolError:
    """What the run went through, or why that cannot be played again.

    Raises:
        StoreError: a checkpoint cannot be read.
    """
    history = [*reversed([*_snapshots(saver, run_id)])]
    problem = _problem(history)
    if problem:
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=problem)
    final = build_graph(saver).get_state(thread_config(run_id)).values
    messages = tuple(final.get("messages") or ())
    requests = tuple(message.text for message in messages if is_request(message))
    turns = _turns(history)
    begun = next(snapshot.values for snapshot in history if snapshot.next == ("call_model",))
    outcomes = tuple(snapshot.values["outcome"] for snapshot in history if not snapshot.next)
    if not len(requests) == len(turns) == len(outcomes):
        message = (
            f"The run has {len(requests)} requests and {len(outcomes)} ends: a turn of it was cut off, and what was"
            " said in it is not known. Take a run whose turns have all ended."
        )
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    return RunCourse(
        context=begun["context"],
        profile=begun["profile"],
        requests=requests,
        turns=turns,
        path=tuple((snapshot.values.get("step", 0), node) for snapshot in history for node in _nodes(snapshot)),
        results=tuple(_results(history)),
        calls=tuple(item for snapshot in history if snapshot.next == ("guard",) for item in snapshot.values["items"]),
        outcomes=outcomes,
        messages=messages,
        files_read=final.get("files_read") or {},
    )


def _snapshots(saver: BaseCheckpointSaver[Any], run_id: str) -> Iterator[StateSnapshot]:
    builder = StateGraph(_Told)
    for node in routes.NODES:
        builder.add_node(node, RunnablePassthrough())  # it is never run
    builder.add_edge(routes.TRANSITIONS[0].source, routes.TRANSITIONS[0].target)
    return builder.compile(checkpointer=saver).get_state_history(thread_config(run_id))


def _nodes(snapshot: StateSnapshot) -> Iterator[str]:
    return (node for node in snapshot.next if node in routes.NODES)


def _problem(history: Sequence[StateSnapshot]) -> str:
    """Why this history cannot be played again; "" where it can."""
    if not history or history[-1].next:
        return "The run has not ended: `mendgraph resume` goes on with it."
    if not any(snapshot.next == ("call_model",) for snapshot in history):
        if any(snapshot.next == ("begin_turn",) for snapshot in history):
            return f"The run ended before a model was called: {history[-1].values['outcome'].message}"
        return "Of the run no step is kept but its end: only runs with durability sync or async can be played again."
    for snapshot in history:
        step = snapshot.values.get("step", 0)
        if (snapshot.metadata or {}).get("source") in {"update", "fork"}:
            return (
                f"The run was forked, or taken up again after it was stopped, at step {step}: what it was before is"
                " another run's. Take a run that went on by itself."
            )
        if snapshot.interrupts:
            return f"In step {step} a person was asked, and the answer cannot be played again: take a run in mode auto."
    return ""


def _turns(history: Sequence[StateSnapshot]) -> tuple[TurnSaid, ...]:
    """What was said, turn by turn; a checkpoint after `call_model` holds what came of the call."""
    turns: list[TurnSaid] = []
    for before, snapshot in pairwise(history):
        if snapshot.next == ("begin_turn",):
            turns.append(TurnSaid())
        elif before.next == ("call_model",) and turns:
            _take(turns[-1], before.values, snapshot.values)
    return tuple(turns)


def _take(turn: TurnSaid, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    shown, was = after.get("window") or Window(), before.get("window") or Window()
    if shown.summarised_at != was.summarised_at:
        turn.summaries.append(_as_asked_for(shown.summary) if shown.summary != was.summary else "")
    reply, stop = after.get("reply"), after.get("stop")
    turn.replies += [] if reply is None or reply.preloaded else [reply]
    if stop is not None:
        turn.account = stop.account
        turn.failure = stop if stop.reason in FAILED_CALL else None


_SECTIONS = {"Done so far:": "done", "Found out:": "findings", "Left to do:": "left", "Files that matter:": "files"}


def _as_asked_for(summary: str) -> str:
    """The reply that such a summary is read from; see `nodes.call_model.compaction.summary_text`."""
    fields: dict[str, list[str]] = {}
    items: list[str] = []
    for line in summary.splitlines():
        if line in _SECTIONS:
            items = fields.setdefault(_SECTIONS[line], [])
        else:
            items.append(line.removeprefix("- "))
    return json.dumps(fields, ensure_ascii=False)


def _results(history: Sequence[StateSnapshot]) -> Iterator[ToolStep]:
    for snapshot in history:
        if snapshot.next == ("loop_check",):
            for each in snapshot.values.get("results") or ():
                result = json.dumps(each.result.as_map(), ensure_ascii=False, sort_keys=True, default=str)
                yield ToolStep(snapshot.values.get("step", 0), each.tool, result)
