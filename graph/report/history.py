"""What the checkpoints of a run tell: which node ran when, what it was given, and what it left. Reads, never writes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.runnables import RunnablePassthrough
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.types import StateSnapshot
from typing_extensions import TypedDict

from graph import routes
from graph.build import build_graph
from graph.context import AgentContext
from graph.open_store import thread_config
from nodes.call_model.ledger import Spending
from nodes.call_model.window import Window
from nodes.guard.grants import Grant
from nodes.heal.corrective_prompt import HealingAttempt
from nodes.language.history import is_request
from nodes.records import (
    CallError,
    CallResult,
    ExtractionError,
    LoopRecord,
    ModelReply,
    Outcome,
    Plan,
    Profile,
    StopCause,
    ToolCall,
    Verdict,
)

START: Final = routes.TRANSITIONS[0].source
END: Final = routes.TRANSITIONS[-1].target


class _Told(TypedDict, total=False):
    """The channels that are read at each checkpoint: those that grow with the run are not among them."""

    step: int
    context: AgentContext
    profile: Profile
    window: Window
    spending: Spending
    reply: ModelReply | None
    errors: list[ExtractionError]
    items: list[ToolCall | CallError]
    verdicts: list[Verdict]
    results: list[CallResult]
    healing_attempts: list[HealingAttempt]
    grants: list[Grant]
    loop: LoopRecord
    plan: Plan
    stop: StopCause | None
    outcome: Outcome | None


@dataclass(frozen=True)
class Visit:
    """One node at work. `target` is where the run went from there, "" where it has not left it yet.

    `before` and `after` are the state's small channels around it; `asked` are the questions that it put to a person.
    `taken_up`: what came before it was not its predecessor, but a run that was stopped, or the one it was forked from.
    """

    node: str
    target: str
    began: datetime
    ended: datetime | None
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    asked: tuple[Mapping[str, Any], ...] = ()
    taken_up: bool = False

    @property
    def seconds(self) -> float:
        """How long it took; 0 for one that is not over."""
        return (self.ended - self.began).total_seconds() if self.ended else 0.0

    @property
    def transition(self) -> routes.Transition | None:
        """The edge by which the run left it; None where it has not, and for one that the table does not know."""
        found = [each for each in routes.TRANSITIONS if (each.source, each.target) == (self.node, self.target)]
        loop = self.after.get("loop") or LoopRecord()
        why = routes.LOOP_ENDS.get(loop.verdict)
        return next((each for each in found if len(found) == 1 or each.label == why), None)


@dataclass(frozen=True)
class History:
    """A run's visits in order. `whole`: no step between the first and the last of them is missing.

    `values` is the newest state, `requests` what the person asked, and `messages` who said what, both oldest first.
    """

    visits: tuple[Visit, ...]
    whole: bool
    values: Mapping[str, Any]
    requests: tuple[str, ...]
    messages: tuple[tuple[str, str], ...]


def read_history(saver: BaseCheckpointSaver[Any], run_id: str) -> History:
    """What the run went through.

    Raises:
        StoreError: a checkpoint cannot be read.
    """
    snapshots = [*reversed([*_snapshots(saver, run_id)])]
    if not snapshots:
        return History((), whole=True, values={}, requests=(), messages=())
    messages: Sequence[AnyMessage] = build_graph(saver).get_state(thread_config(run_id)).values.get("messages") or ()
    newest = snapshots[-1]
    return History(
        visits=tuple(_visits(snapshots)),
        whole=_is_whole(snapshots),
        values=newest.values,
        requests=tuple(message.text for message in messages if is_request(message)),
        messages=tuple((_who(message), _said(message)) for message in messages),
    )


def _who(message: AnyMessage) -> str:
    if is_request(message):
        return "person"
    return "model" if isinstance(message, AIMessage) else "results"


def _said(message: AnyMessage) -> str:
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    return "\n".join(
        [message.text, *(f"{call['name']}({json.dumps(call['args'], default=str)})" for call in calls)]
    ).strip()


def _snapshots(saver: BaseCheckpointSaver[Any], run_id: str) -> Iterator[StateSnapshot]:
    builder = StateGraph(_Told)
    for node in routes.NODES:
        builder.add_node(node, RunnablePassthrough())  # it is never run
    builder.add_edge(START, routes.TRANSITIONS[0].target)
    return builder.compile(checkpointer=saver).get_state_history(thread_config(run_id))


def _visits(snapshots: Sequence[StateSnapshot]) -> Iterator[Visit]:
    """A checkpoint says what runs next; the one that follows from it, what came of that."""
    known = {_id(each.config): each for each in snapshots}
    for after in snapshots:
        before = known.get(_id(after.parent_config))
        if before is not None and _follows(before, after):
            target = after.next[0] if after.next else END
            for node in before.next[:1]:
                yield _visit(before, node, target, after)
    newest = snapshots[-1]
    for node in newest.next[:1]:
        yield _visit(newest, node, "", None)


def _visit(before: StateSnapshot, node: str, target: str, after: StateSnapshot | None) -> Visit:
    return Visit(
        node=node,
        target=target,
        began=_time(before),
        ended=_time(after) if after else None,
        before=before.values,
        after=after.values if after else {},
        asked=tuple(each.value for each in before.interrupts if isinstance(each.value, Mapping)),
        taken_up=_source(before) in {"update", "fork"},
    )


def _follows(before: StateSnapshot, after: StateSnapshot) -> bool:
    """Whether exactly one node ran between them: with durability exit only a turn's end is stored."""
    return _source(after) == "loop" and _number(after) == _number(before) + 1


def _is_whole(snapshots: Sequence[StateSnapshot]) -> bool:
    """Whether each checkpoint but the first follows from one that is stored, or is the start of a turn or a fork."""
    known = {_id(each.config): each for each in snapshots}
    for each in snapshots:
        before = known.get(_id(each.parent_config))
        if _source(each) == "loop" and (before is None or not _follows(before, each)):
            return False
    return True


def _source(snapshot: StateSnapshot) -> str:
    return str((snapshot.metadata or {}).get("source"))


def _number(snapshot: StateSnapshot) -> int:
    return int((snapshot.metadata or {}).get("step", -1))


def _id(config: Any) -> str:
    return str(((config or {}).get("configurable") or {}).get("checkpoint_id") or "")


def _time(snapshot: StateSnapshot) -> datetime:
    return datetime.fromisoformat(snapshot.created_at or "1970-01-01T00:00:00+00:00")
