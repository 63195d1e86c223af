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
        """How long it took; 0 for one that is not over.

        Of model calls and tools it is what the ledger counts: between a kill and `resume` nothing was at work.
        """
        if self.ended:
            passed = (self.ended - self.began).total_seconds()
        else:
            passed = 0.0

        was, now = (state.get("spending") or Spending() for state in (self.before, self.after))
        worked = now.seconds - was.seconds
        if worked > 0 and self.node in ("call_model", "execute_tools"):
            return min(passed, worked)

        return passed

    @property
    def transition(self) -> routes.Transition | None:
        """The edge by which the run left it; None where it has not, and for one that the table does not know."""
        edges = [edge for edge in routes.TRANSITIONS if (edge.source, edge.target) == (self.node, self.target)]
        pending = self.after.get("pending_call")

        if pending:
            why = pending.edge
        else:
            why = routes.LOOP_ENDS.get((self.after.get("loop") or LoopRecord()).verdict)

        return next((edge for edge in edges if len(edges) == 1 or edge.label == why), None)


@dataclass(frozen=True)
class History:
    """A run's visits in order; `values` is the newest state, `requests` what the person asked, oldest first.

    `children` are those of its children, by the step and the place of the call.
    """

    visits: tuple[Visit, ...]
    values: Mapping[str, Any]
    requests: tuple[str, ...]
    children: Mapping[tuple[int, int], "History"] = field(default_factory=dict)


def read_history(saver: BaseCheckpointSaver[Any], run_id: str, namespace: str = "") -> History:
    """What the run went through, or the child of it that has this `namespace`.

    Raises:
        StoreError: a checkpoint cannot be read.
    """
    snapshots = [*reversed([*small_history(saver, run_id, namespace)])]
    if not snapshots:
        return History((), values={}, requests=())

    newest = machine_to_read(saver, AgentState).get_state(thread_config(run_id, namespace))
    messages: Sequence[AnyMessage] = newest.values.get("messages") or ()

    return History(
        visits=tuple(_visits(snapshots)),
        values=snapshots[-1].values,
        requests=tuple(message.text for message in messages if is_request(message)),
        children=dict(_children(saver, run_id)) if any(map(_delegates, snapshots)) else {},
    )


def _delegates(snapshot: StateSnapshot) -> bool:
    context = snapshot.values.get("context")
    return context is not None and context.delegation


def _children(saver: BaseCheckpointSaver[Any], run_id: str) -> Iterator[tuple[tuple[int, int], History]]:
    """Of a call that was made twice, as after time travel, the later child."""
    every = (snapshot.config["configurable"]["checkpoint_ns"] for snapshot in saver.list(thread_config(run_id)))
    for namespace in reversed([*dict.fromkeys(every)]):
        parent, step = parent_of(f"{run_id}|{namespace}")
        if parent == run_id:
            yield (step, int(namespace.rpartition("|")[2])), read_history(saver, run_id, namespace)


def _visits(snapshots: Sequence[StateSnapshot]) -> Iterator[Visit]:
    """A checkpoint says what runs next; the one that follows from it, what came of that."""
    by_id = {_id(snapshot.config): snapshot for snapshot in snapshots}

    for after in snapshots:
        before = by_id.get(_id(after.parent_config))
        if before is not None and before.next and _follows(before, after):
            yield _visit(before, after.next[0] if after.next else END, after)

    if snapshots[-1].next:
        yield _visit(snapshots[-1], "", None)


def _visit(before: StateSnapshot, target: str, after: StateSnapshot | None) -> Visit:
    return Visit(
        node=before.next[0],
        target=target,
        began=_time(before),
        ended=_time(after) if after else None,
        before=before.values,
        after=after.values if after else {},
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
    """One call of a reply: what guard said of it and what came of it, None where that is not known (yet).

    `was` is what a person was asked about; its arguments differ where the person edited them. `child` is the course of
    the child that the call was.
    """

    item: ToolCall | CallError
    verdict: Verdict | None
    result: CallResult | None
    was: Mapping[str, Any] | None = None
    child: "Course | None" = None


@dataclass
class Step:
    """A model call and what came of its reply. `number` counts in the run from 1, `turn` from 1, 0 where unknown."""

    number: int
    turn: int
    visits: list[Visit] = field(default_factory=list)
    children: dict[int, "Course"] = field(default_factory=dict)

    def of(self, node: str) -> Visit | None:
        """The last visit of this node: the model may be visited several times for one reply."""
        return next((visit for visit in reversed(self.visits) if visit.node == node), None)

    def _after(self, node: str) -> Mapping[str, Any]:
        visit = self.of(node)
        return visit.after if visit else {}

    @property
    def seconds(self) -> float:
        """From its first node to its last one; what ran between is in it."""
        return sum(visit.seconds for visit in self.visits)

    @cached_property
    def reply(self) -> ModelReply | None:
        """What the model said."""
        return self._after("call_model").get("reply")

    @cached_property
    def spending(self) -> tuple[Spending, Spending]:
        """What had been used before the model call and after it: retries and summaries too."""
        visit = self.of("call_model")
        if visit is None or not visit.after:
            return Spending(), Spending()

        return self.visits[0].before.get("spending") or Spending(), visit.after.get("spending") or Spending()

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens in and out."""
        was = self.spending[0].usage
        now = self.spending[1].usage
        return now.total_input_tokens - was.total_input_tokens, now.total_output_tokens - was.total_output_tokens

    @cached_property
    def calls(self) -> tuple[Judged, ...]:
        """The calls of the reply in order, with their verdicts and results."""
        guard = self.of("guard")
        if guard is None:
            return ()

        items = ({**guard.before, **guard.after}).get("items") or ()
        verdicts = list(guard.after.get("verdicts") or ())
        results = list((self.of("execute_tools") or guard).after.get("results") or ())
        requests: dict[Any, Mapping[str, Any]] = {}

        for call in (call for question in guard.asked for call in question.get("calls") or ()):
            requests.setdefault(call.get("index"), call)  # who edits a call may be asked about it once more

        return tuple(
            Judged(
                item=item,
                verdict=verdicts[at] if at < len(verdicts) else None,
                result=results[at] if len(results) == len(items) else None,
                was=requests.get(at),
                child=self.children.get(at),
            )
            for at, item in enumerate(items)
        )


@dataclass
class Turn:
    """A request and the steps that followed. `outcomes` has more than one where it was taken up again.

    `number` is 0 for what a fork took over in the middle of a turn.
    """

    number: int
    request: str | None = None
    steps: list[Step] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)


@dataclass(frozen=True)
class Course:
    """All turns, the newest last; how often each edge was taken and each node visited.

    `at` is the node that the run has not left, "" where it has ended.
    """

    turns: tuple[Turn, ...]
    edges: Mapping[routes.Transition, int]
    visited: Mapping[str, int]
    at: str

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of all turns."""
        return tuple(step for turn in self.turns for step in turn.steps)


def course_of(history: History, *, begun: bool = True) -> Course:
    """The turns and steps of a history. A run that has not `begun` only stands where it will: a fork."""
    turns: list[Turn] = []
    visits = history.visits
    for visit in visits:
        _sort_in(visit, turns)

    for step in (step for turn in turns for step in turn.steps):
        children = ((place, child) for (number, place), child in history.children.items() if number == step.number)
        step.children = {place: course_of(child) for place, child in children}

    own_turns = [turn for turn in turns if turn.number]
    for turn, request in zip(reversed(own_turns), reversed(history.requests), strict=False):
        turn.request = request  # a fork has its parent's requests as well: the last ones are those of its own turns

    return Course(
        turns=tuple(turns) if begun else (),
        edges=Counter(visit.transition for visit in visits if visit.transition is not None),
        visited=Counter(visit.node for visit in visits if visit.target or visit.asked),
        at=visits[-1].node if visits and not visits[-1].target else "",
    )


def _sort_in(visit: Visit, turns: list[Turn]) -> None:
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
        failed = visit.after.get("reply") is None
        turn.steps.append(Step(number=step_number + 1 if failed else step_number, turn=turn.number))

    if turn.steps and visit.node != "begin_turn":
        turn.steps[-1].visits.append(visit)
