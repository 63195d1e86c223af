"""The course of a run as a person counts it: turns, and in each the steps, one for each reply. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from graph.report.history import END, START, History, Visit
from graph.routes import Transition
from nodes.call_model.ledger import Spending
from nodes.call_model.window import Window
from nodes.records import CallError, CallResult, LoopRecord, ModelReply, Outcome, ToolCall, Verdict, VerdictKind

TERMINALS = frozenset({"FINISHED", "BUDGET_STOP", "SYSTEM_ERROR"})


@dataclass(frozen=True)
class Judged:
    """One call of a reply: what guard said of it and what came of it, None where that is not known (yet).

    `asked`: a person was asked about it, as `was` shows, whose arguments differ where the person edited them.
    `granted`: nobody was asked, since a person had allowed such calls before.
    """

    item: ToolCall | CallError
    verdict: Verdict | None
    result: CallResult | None
    asked: bool = False
    was: Mapping[str, Any] | None = None
    granted: bool = False


@dataclass
class Step:
    """A model call and what came of its reply. `number` counts in the run from 1, `turn` from 1, 0 where unknown."""

    number: int
    turn: int
    visits: list[Visit] = field(default_factory=list)

    def of(self, node: str) -> Visit | None:
        """The visit of this node."""
        return next((visit for visit in self.visits if visit.node == node), None)

    @property
    def began(self) -> datetime:
        """When the model was called."""
        return self.visits[0].began

    @property
    def seconds(self) -> float:
        """From its first node to its last one; what ran between is in it."""
        return sum(visit.seconds for visit in self.visits)

    def seconds_in(self, *nodes: str) -> float:
        """Time in these nodes."""
        return sum(visit.seconds for visit in self.visits if visit.node in nodes)

    @cached_property
    def reply(self) -> ModelReply | None:
        """What the model said."""
        visit = self.of("call_model")
        found = visit.after.get("reply") if visit else None
        return found if isinstance(found, ModelReply) else None

    @property
    def asks_person(self) -> bool:
        """Whether a person was asked about calls of it."""
        return any(visit.asked for visit in self.visits)

    @cached_property
    def used(self) -> tuple[int, int, int, float, int]:
        """Calls, tokens in and out, USD of those with a price, and calls without one: retries and summaries too."""
        visit = self.of("call_model")
        if visit is None or not visit.after:
            return 0, 0, 0, 0.0, 0
        was, now = _spending(visit.before), _spending(visit.after)
        return (
            now.usage.total_calls - was.usage.total_calls,
            now.usage.total_input_tokens - was.usage.total_input_tokens,
            now.usage.total_output_tokens - was.usage.total_output_tokens,
            now.cost_usd - was.cost_usd,
            now.unpriced_calls - was.unpriced_calls,
        )

    @property
    def reasoning_tokens(self) -> int:
        """How many of its output tokens were thought and not said."""
        visit = self.of("call_model")
        if visit is None or not visit.after:
            return 0
        return _spending(visit.after).reasoning_tokens - _spending(visit.before).reasoning_tokens

    @cached_property
    def calls(self) -> tuple[Judged, ...]:
        """The calls of the reply in order, with their verdicts and results."""
        guard = self.of("guard")
        if guard is None:
            return ()
        state = {**guard.before, **guard.after}
        items = list(state.get("items") or ())
        verdicts = list(guard.after.get("verdicts") or ())
        last = self.of("execute_tools") or guard
        results = list(last.after.get("results") or ())
        asked: dict[Any, Mapping[str, Any]] = {}
        for call in (call for question in guard.asked for call in _asked_calls(question)):
            asked.setdefault(call.get("index"), call)  # who edits a call may be asked about it once more
        return tuple(
            Judged(
                item=item,
                verdict=verdicts[at] if at < len(verdicts) else None,
                result=results[at] if len(results) == len(items) else None,
                asked=at in asked,
                was=asked.get(at),
                granted=at not in asked and bool(guard.before.get("grants")) and _by_a_rule(verdicts[at : at + 1]),
            )
            for at, item in enumerate(items)
        )

    @property
    def loop(self) -> LoopRecord | None:
        """What loop control remembers after it."""
        visit = self.of("loop_check")
        found = visit.after.get("loop") if visit else None
        return found if isinstance(found, LoopRecord) else None

    @property
    def compaction(self) -> tuple[Window, Window] | None:
        """The window before and after, where the model was shown less of the conversation from here on."""
        visit = self.of("call_model")
        if visit is None or not visit.after:
            return None
        was, now = visit.before.get("window") or Window(), visit.after.get("window") or Window()
        return (was, now) if (was.first, was.head, was.cleared) != (now.first, now.head, now.cleared) else None


@dataclass
class Turn:
    """A request and the steps that followed. `outcomes` has more than one where it was taken up again.

    `number` is 0 for what a fork took over in the middle of a turn.
    """

    number: int
    request: str | None = None
    steps: list[Step] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    began: datetime | None = None


@dataclass(frozen=True)
class Course:
    """All turns, the newest last; how often each edge was taken and each node visited; the nodes in their order.

    `at` is the node that the run has not left, "" where it has ended.
    """

    turns: tuple[Turn, ...]
    edges: Mapping[Transition, int]
    visited: Mapping[str, int]
    at: str
    path: tuple[str, ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of all turns."""
        return tuple(step for turn in self.turns for step in turn.steps)


def course_of(history: History, *, begun: bool = True) -> Course:
    """The turns and steps of a history. A run that has not `begun` only stands where it will: a fork."""
    turns: list[Turn] = []
    edges: dict[Transition, int] = {}
    visited: dict[str, int] = {}
    path: list[str] = []
    at = ""
    for visit in history.visits:
        if visit.transition is not None:
            edges[visit.transition] = edges.get(visit.transition, 0) + 1
        path += [visit.node, END] if visit.target == END else [visit.node]
        at = "" if visit.target else visit.node
        if visit.target or visit.asked:
            visited[visit.node] = visited.get(visit.node, 0) + 1
        _sort_in(visit, turns)
    _give_requests(turns, history.requests)
    if not begun:
        turns = []
    return Course(tuple(turns), edges, visited, at, tuple(path))


def _sort_in(visit: Visit, turns: list[Turn]) -> None:
    if visit.node == START:
        turns.append(Turn(number=sum(turn.number > 0 for turn in turns) + 1, began=visit.began))
        return
    if not turns:
        turns.append(Turn(number=int(visit.node == "begin_turn"), began=visit.began))
    turn = turns[-1]
    outcome = visit.after.get("outcome")
    if visit.node in TERMINALS and isinstance(outcome, Outcome):
        turn.outcomes.append(outcome)
    if visit.node == "call_model":
        known = (visit.after or visit.before).get("step", 0)
        failed = visit.after.get("reply") is None
        turn.steps.append(Step(number=known + 1 if failed else known, turn=turn.number))
    if turn.steps and visit.node != "begin_turn":
        turn.steps[-1].visits.append(visit)


def _give_requests(turns: list[Turn], requests: Iterable[str]) -> None:
    """A fork has its parent's requests as well, so the last ones are those of its own turns."""
    own = [turn for turn in turns if turn.number]
    asked = [*requests]
    for turn, request in zip(reversed(own), reversed(asked), strict=False):
        turn.request = request


def _by_a_rule(verdict: Sequence[Verdict]) -> bool:
    """Whether a call is allowed by a rule: without a person's word only what no rule asks about is."""
    return any(each.kind is VerdictKind.ALLOW and each.rule for each in verdict)


def _asked_calls(question: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    calls = question.get("calls")
    return [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []


def _spending(values: Mapping[str, Any]) -> Spending:
    found = values.get("spending")
    return found if isinstance(found, Spending) else Spending()
