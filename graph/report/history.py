"""The transcript of a run, read from its checkpoints: visits of nodes, and turns with a step for each reply."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from langchain_core.messages import AnyMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import StateSnapshot

from mendgraph.graph.machine import routes
from mendgraph.graph.machine.state import AgentState
from mendgraph.graph.runs.runs import machine_to_read, small_history, thread_config
from mendgraph.nodes.call_model.ledger import Spending
from mendgraph.nodes.language.history import is_request
from mendgraph.nodes.records import CallError, CallResult, LoopRecord, ModelReply, Outcome, ToolCall, Verdict
from mendgraph.nodes.workspace.journal.journal import parent_of

START: Final = routes.TRANSITIONS[0].source
END: Final = routes.TRANSITIONS[-1].target
TERMINALS = frozenset({"FINISHED", "BUDGET_STOP", "SYSTEM_ERROR"})


@dataclass(frozen=True)
class Visit:
    """One execution of a node. `target` is the next node, "" if the run has not left this one.

    `before` and `after` are the state's small channels around it; `questions` are its interrupts for a person.
    `is_resumed`: the run was stopped before it, or forked here.
    """

    node: str
    target: str
    started_at: datetime
    ended_at: datetime | None
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    questions: tuple[Mapping[str, Any], ...] = ()
    is_resumed: bool = False

    @property
    def seconds(self) -> float:
        """The duration in seconds; 0 for a visit that has not ended.

        For model calls and tools it is the ledger's time, which leaves out the time between a kill and `resume`.
        """
        duration = 0.0
        if self.ended_at:
            duration = (self.ended_at - self.started_at).total_seconds()

        before = self.before.get("spending") or Spending()
        after = self.after.get("spending") or Spending()
        counted = after.seconds - before.seconds
        if counted > 0 and self.node in ("call_model", "execute_tools"):
            return min(duration, counted)

        return duration

    @property
    def transition(self) -> routes.Transition | None:
        """The edge by which the run left the node; None if it has not left it, or the edge is unknown."""
        edges = [edge for edge in routes.TRANSITIONS if (edge.source, edge.target) == (self.node, self.target)]
        pending = self.after.get("pending_call")

        if len(edges) == 1:
            return edges[0]

        if pending:
            label = pending.edge
        else:
            loop = self.after.get("loop") or LoopRecord()
            label = routes.LOOP_ENDS.get(loop.verdict)

        return next((edge for edge in edges if edge.label == label), None)


@dataclass(frozen=True)
class History:
    """A run's visits in order; `values` is the newest state, `requests` are the user's, oldest first.

    `children` are the histories of delegated runs, by the step and index of the call.
    """

    visits: tuple[Visit, ...]
    values: Mapping[str, Any]
    requests: tuple[str, ...]
    children: Mapping[tuple[int, int], "History"] = field(default_factory=dict)


def read_history(saver: BaseCheckpointSaver[Any], run_id: str, namespace: str = "") -> History:
    """Read the history of the run, or of the child with this `namespace`.

    Raises:
        StoreError: a checkpoint cannot be read.
    """
    snapshots = [*reversed([*small_history(saver, run_id, namespace)])]
    if not snapshots:
        return History((), values={}, requests=())

    children: dict[tuple[int, int], History] = {}
    if any(map(_delegates, snapshots)):
        children = dict(_children(saver, run_id))

    newest = machine_to_read(saver, AgentState).get_state(thread_config(run_id, namespace))
    messages: Sequence[AnyMessage] = newest.values.get("messages") or ()

    return History(
        visits=tuple(_visits(snapshots)),
        values=snapshots[-1].values,
        requests=tuple(message.text for message in messages if is_request(message)),
        children=children,
    )


def _delegates(snapshot: StateSnapshot) -> bool:
    context = snapshot.values.get("context")
    return context is not None and context.delegation


def _children(saver: BaseCheckpointSaver[Any], run_id: str) -> Iterator[tuple[tuple[int, int], History]]:
    """Yield the children by step and index; of a call that was made twice, as after time travel, the later one."""
    namespaces = (snapshot.config["configurable"]["checkpoint_ns"] for snapshot in saver.list(thread_config(run_id)))
    for namespace in reversed([*dict.fromkeys(namespaces)]):
        parent, step = parent_of(f"{run_id}|{namespace}")
        if parent == run_id:
            yield (step, int(namespace.rpartition("|")[2])), read_history(saver, run_id, namespace)


def _visits(snapshots: Sequence[StateSnapshot]) -> Iterator[Visit]:
    """Yield the visits between checkpoints: one has the next node, its successor the state after that node."""
    by_id = {_id(snapshot.config): snapshot for snapshot in snapshots}

    for after in snapshots:
        before = by_id.get(_id(after.parent_config))
        if before is not None and before.next and _follows(before, after):
            target = END
            if after.next:
                target = after.next[0]

            yield _visit(before, target, after)

    if snapshots[-1].next:
        yield _visit(snapshots[-1], "", None)


def _visit(before: StateSnapshot, target: str, after: StateSnapshot | None) -> Visit:
    ended_at = None
    values: Mapping[str, Any] = {}
    if after:
        ended_at = _time(after)
        values = after.values

    return Visit(
        node=before.next[0],
        target=target,
        started_at=_time(before),
        ended_at=ended_at,
        before=before.values,
        after=values,
        questions=tuple(interrupt.value for interrupt in before.interrupts if isinstance(interrupt.value, Mapping)),
        is_resumed=_source(before) in {"update", "fork"},
    )


def _follows(before: StateSnapshot, after: StateSnapshot) -> bool:
    """Return whether exactly one node ran between them: with durability "exit" only a turn's end is stored."""
    numbers = [int((snapshot.metadata or {}).get("step", -1)) for snapshot in (before, after)]
    return _source(after) == "loop" and numbers[1] == numbers[0] + 1


def _source(snapshot: StateSnapshot) -> str:
    return str((snapshot.metadata or {}).get("source"))


def _id(config: Any) -> str:
    return str(((config or {}).get("configurable") or {}).get("checkpoint_id") or "")


def _time(snapshot: StateSnapshot) -> datetime:
    return datetime.fromisoformat(snapshot.created_at or "1970-01-01T00:00:00+00:00")


# --- Turns and steps


@dataclass(frozen=True)
class JudgedCall:
    """One call of a reply, with its verdict and result, each None if unknown.

    `request` is the call in the approval request; its arguments differ if the user edited them. `child` is the
    transcript of the run that the call delegated to.
    """

    item: ToolCall | CallError
    verdict: Verdict | None
    result: CallResult | None
    request: Mapping[str, Any] | None = None
    child: "Transcript | None" = None


@dataclass
class Step:
    """A model call and the handling of its reply. `number` and `turn` count from 1; a turn of 0 is unknown."""

    number: int
    turn: int
    visits: list[Visit] = field(default_factory=list)
    children: dict[int, "Transcript"] = field(default_factory=dict)

    def of(self, node: str) -> Visit | None:
        """Return the last visit of this node: one reply may need several visits of the model."""
        return next((visit for visit in reversed(self.visits) if visit.node == node), None)

    def _after(self, node: str) -> Mapping[str, Any]:
        visit = self.of(node)
        if visit is None:
            return {}

        return visit.after

    @property
    def seconds(self) -> float:
        """The duration of all its visits, in seconds."""
        return sum(visit.seconds for visit in self.visits)

    @cached_property
    def reply(self) -> ModelReply | None:
        """The model's reply, if there is one."""
        return self._after("call_model").get("reply")

    @cached_property
    def spending(self) -> tuple[Spending, Spending]:
        """The spending before the model call and after it, with retries and summaries."""
        visit = self.of("call_model")
        if visit is None or not visit.after:
            return Spending(), Spending()

        return self.visits[0].before.get("spending") or Spending(), visit.after.get("spending") or Spending()

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens in and out."""
        before, after = (spending.usage for spending in self.spending)
        inputs = after.total_input_tokens - before.total_input_tokens
        return inputs, after.total_output_tokens - before.total_output_tokens

    @cached_property
    def calls(self) -> tuple[JudgedCall, ...]:
        """The calls of the reply in order, with their verdicts and results."""
        guard = self.of("guard")
        if guard is None:
            return ()

        state = {**guard.before, **guard.after}
        items = state.get("items") or ()
        verdicts = list(guard.after.get("verdicts") or ())
        results = list((self.of("execute_tools") or guard).after.get("results") or ())
        requests: dict[Any, Mapping[str, Any]] = {}

        for question in guard.questions:
            for call in question.get("calls") or ():
                requests.setdefault(call.get("index"), call)  # an edited call may be asked about once more

        missing = [None] * len(items)
        if len(results) != len(items):
            results = missing

        calls = []
        for place, (item, verdict, result) in enumerate(zip(items, [*verdicts, *missing], results, strict=False)):
            calls.append(JudgedCall(item, verdict, result, requests.get(place), self.children.get(place)))

        return tuple(calls)


@dataclass
class Turn:
    """A request and its steps. A turn that was resumed has several `outcomes`.

    `number` is 0 for steps that a fork inherits from the middle of a turn.
    """

    number: int
    request: str | None = None
    steps: list[Step] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)


@dataclass(frozen=True)
class Transcript:
    """All turns, the newest last, and the counts of transitions and of visits.

    `at` is the node that the run has not left, "" if it has ended.
    """

    turns: tuple[Turn, ...]
    edges: Mapping[routes.Transition, int]
    visited: Mapping[str, int]
    at: str

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of all turns."""
        steps: list[Step] = []
        for turn in self.turns:
            steps += turn.steps

        return tuple(steps)


def transcript_of(history: History, *, has_begun: bool = True) -> Transcript:
    """Return the turns and steps of a history; none for a fork that has not begun."""
    turns: list[Turn] = []
    visits = history.visits
    for visit in visits:
        _add_visit(visit, turns)

    for turn in turns:
        for step in turn.steps:
            _add_children(step, history)

    numbered = [turn for turn in turns if turn.number]
    for turn, request in zip(reversed(numbered), reversed(history.requests), strict=False):
        turn.request = request  # the first requests of a fork are its parent's

    at = ""
    if visits and not visits[-1].target:
        at = visits[-1].node

    if not has_begun:
        turns = []

    return Transcript(
        turns=tuple(turns),
        edges=Counter(visit.transition for visit in visits if visit.transition is not None),
        visited=Counter(visit.node for visit in visits if visit.target or visit.questions),
        at=at,
    )


def _add_children(step: Step, history: History) -> None:
    for (number, place), child in history.children.items():
        if number == step.number:
            step.children[place] = transcript_of(child)


def _is_tried_again(step: Step, visit: Visit) -> bool:
    """Return whether this visit of the model is for the reply of the last one: after a failure or a raised limit."""
    last = step.visits[-1]
    return bool(visit.before.get("pending_call")) or (last.node, last.target) == ("guard", "call_model")


def _add_visit(visit: Visit, turns: list[Turn]) -> None:
    if visit.node == START:
        turns.append(Turn(number=sum(turn.number > 0 for turn in turns) + 1))
        return

    if not turns:
        turns.append(Turn(number=int(visit.node == "begin_turn")))

    turn = turns[-1]
    outcome = visit.after.get("outcome")
    if visit.node in TERMINALS and isinstance(outcome, Outcome):
        turn.outcomes.append(outcome)

    if visit.node == "call_model" and not (turn.steps and _is_tried_again(turn.steps[-1], visit)):
        step_number = (visit.after or visit.before).get("step", 0)
        if visit.after.get("reply") is None:  # it has not counted yet
            step_number += 1

        turn.steps.append(Step(number=step_number, turn=turn.number))

    if turn.steps and visit.node != "begin_turn":
        turn.steps[-1].visits.append(visit)
