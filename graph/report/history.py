"""The course of a run, read from its checkpoints: visits of nodes, turns, and in each the steps, one for each reply."""

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
from mendgraph.nodes.execute_tools.journal.journal import parent_of
from mendgraph.nodes.language.history import is_request
from mendgraph.nodes.records import CallError, CallResult, LoopRecord, ModelReply, Outcome, ToolCall, Verdict

START: Final = routes.TRANSITIONS[0].source
END: Final = routes.TRANSITIONS[-1].target
TERMINALS = frozenset({"FINISHED", "BUDGET_STOP", "SYSTEM_ERROR"})


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
        """The duration in seconds; 0 for a visit that is not over.

        Of model calls and tools it is the time of the ledger, without that between a kill and `resume`.
        """
        duration = 0.0
        if self.ended:
            duration = (self.ended - self.began).total_seconds()

        before = self.before.get("spending") or Spending()
        after = self.after.get("spending") or Spending()
        counted = after.seconds - before.seconds
        if counted > 0 and self.node in ("call_model", "execute_tools"):
            return min(duration, counted)

        return duration

    @property
    def transition(self) -> routes.Transition | None:
        """The edge by which the run left the node; None where it has not left it, and for an unknown edge."""
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
    """A run's visits in order; `values` is the newest state, `requests` are the person's, oldest first.

    `children` are the histories of its children, by the step and the place of the call.
    """

    visits: tuple[Visit, ...]
    values: Mapping[str, Any]
    requests: tuple[str, ...]
    children: Mapping[tuple[int, int], "History"] = field(default_factory=dict)


def read_history(saver: BaseCheckpointSaver[Any], run_id: str, namespace: str = "") -> History:
    """The history of the run, or of the child with this `namespace`.

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
    """The children by step and place; of a call that was made twice, as after time travel, the later one."""
    every = (snapshot.config["configurable"]["checkpoint_ns"] for snapshot in saver.list(thread_config(run_id)))
    for namespace in reversed([*dict.fromkeys(every)]):
        parent, step = parent_of(f"{run_id}|{namespace}")
        if parent == run_id:
            yield (step, int(namespace.rpartition("|")[2])), read_history(saver, run_id, namespace)


def _visits(snapshots: Sequence[StateSnapshot]) -> Iterator[Visit]:
    """The visits between checkpoints: one holds the node that runs next, its successor the state after that."""
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
    ended = None
    values: Mapping[str, Any] = {}
    if after:
        ended = _time(after)
        values = after.values

    return Visit(
        node=before.next[0],
        target=target,
        began=_time(before),
        ended=ended,
        before=before.values,
        after=values,
        asked=tuple(interrupt.value for interrupt in before.interrupts if isinstance(interrupt.value, Mapping)),
        taken_up=_source(before) in {"update", "fork"},
    )


def _follows(before: StateSnapshot, after: StateSnapshot) -> bool:
    """Whether exactly one node ran between them: with durability exit only a turn's end is stored."""
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
class Judged:
    """One call of a reply, with its verdict and result, each None where it is unknown.

    `was` is the call of the approval request; its arguments differ where the person edited them. `child` is the course
    of the child that the call delegated to.
    """

    item: ToolCall | CallError
    verdict: Verdict | None
    result: CallResult | None
    was: Mapping[str, Any] | None = None
    child: "Course | None" = None


@dataclass
class Step:
    """A model call and the work on its reply. `number` counts in the run from 1, `turn` from 1, 0 where unknown."""

    number: int
    turn: int
    visits: list[Visit] = field(default_factory=list)
    children: dict[int, "Course"] = field(default_factory=dict)

    def of(self, node: str) -> Visit | None:
        """The last visit of this node: the model may be visited several times for one reply."""
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
        """The model's reply, None where there is none."""
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
    def calls(self) -> tuple[Judged, ...]:
        """The calls of the reply in order, with their verdicts and results."""
        guard = self.of("guard")
        if guard is None:
            return ()

        state = {**guard.before, **guard.after}
        items = state.get("items") or ()
        verdicts = list(guard.after.get("verdicts") or ())
        results = list((self.of("execute_tools") or guard).after.get("results") or ())
        requests: dict[Any, Mapping[str, Any]] = {}

        for question in guard.asked:
            for call in question.get("calls") or ():
                requests.setdefault(call.get("index"), call)  # an edited call may be asked about once more

        missing = [None] * len(items)
        if len(results) != len(items):
            results = missing

        calls = []
        for place, (item, verdict, result) in enumerate(zip(items, [*verdicts, *missing], results, strict=False)):
            calls.append(Judged(item, verdict, result, requests.get(place), self.children.get(place)))

        return tuple(calls)


@dataclass
class Turn:
    """A request and its steps. `outcomes` has several where the turn was resumed.

    `number` is 0 for steps that a fork inherits from the middle of a turn.
    """

    number: int
    request: str | None = None
    steps: list[Step] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)


@dataclass(frozen=True)
class Course:
    """All turns, the newest last, and the numbers of transitions by edge and of visits by node.

    `at` is the node that the run has not left, "" where it has ended.
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


def course_of(history: History, *, has_begun: bool = True) -> Course:
    """The turns and steps of a history; none of a fork that has not begun."""
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

    return Course(
        turns=tuple(turns),
        edges=Counter(visit.transition for visit in visits if visit.transition is not None),
        visited=Counter(visit.node for visit in visits if visit.target or visit.asked),
        at=at,
    )


def _add_children(step: Step, history: History) -> None:
    for (number, place), child in history.children.items():
        if number == step.number:
            step.children[place] = course_of(child)


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

    if visit.node == "call_model" and not (turn.steps and visit.before.get("pending_call")):
        step_number = (visit.after or visit.before).get("step", 0)
        if visit.after.get("reply") is None:  # it has not counted yet
            step_number += 1

        turn.steps.append(Step(number=step_number, turn=turn.number))

    if turn.steps and visit.node != "begin_turn":
        turn.steps[-1].visits.append(visit)
